"""Faults of vLLM that the adapter repairs, and the names it relies on, checked against the installed vLLM."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from specplug.adapters.vllm_v1 import host_faults, requirements

pytestmark = pytest.mark.vllm


@pytest.fixture
def sampler() -> Iterator[Any]:
    """vLLM's module with its own functions, whatever a test puts there."""
    module = import_module(host_faults.MODULE)
    names = ("expand_batch_to_tokens", "apply_top_k_top_p")
    before = {name: getattr(module, name) for name in names}
    yield module
    for name, function in before.items():
        setattr(module, name, function)


def test_every_name_we_rely_on_is_there() -> None:
    problems = [report.problem for report in requirements.HOST.examine() if report.problem]
    assert problems == []


def test_the_wrapped_names_exist_when_imported_too() -> None:
    for symbol in requirements.SYMBOLS:
        if symbol.name.partition(".")[2] in ("create_speculative_config", "_update_states"):
            owner = getattr(import_module(symbol.module), symbol.name.partition(".")[0])
            assert callable(getattr(owner, symbol.name.partition(".")[2]))


def test_this_vllm_has_the_fault(sampler: Any) -> None:
    """When this fails, vLLM was fixed: the repair then does nothing, and this test may go."""
    assert not host_faults.is_sound(sampler.expand_batch_to_tokens)


def test_the_repair_is_sound_and_announced_once(
    sampler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("specplug-test")
    with caplog.at_level(logging.WARNING):
        assert host_faults.repair(log) == "repaired"
        assert host_faults.repair(log) == "repaired"
    assert host_faults.is_sound(sampler.expand_batch_to_tokens)
    assert caplog.text.count("55005") == 1


def test_a_sound_host_is_left_alone(sampler: Any, caplog: pytest.LogCaptureFixture) -> None:
    def expand(x: Any, cu: Any, n: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        return host_faults.expand_batch_to_tokens(x, cu, n, replace_from, replace_to)

    sampler.expand_batch_to_tokens = expand
    assert host_faults.repair(logging.getLogger("specplug-test")) == "sound"
    assert sampler.expand_batch_to_tokens is expand
    assert "55005" not in caplog.text


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_the_stand_in_repeats_exactly(dtype: str) -> None:
    import torch

    values = torch.tensor([5, 0, 7, 0], dtype=getattr(torch, dtype))
    cumulative = torch.tensor([2, 3, 3, 6], dtype=torch.int32)
    plain = host_faults.expand_batch_to_tokens(values, cumulative, 6)
    assert plain.tolist() == [5, 5, 0, 0, 0, 0]
    assert plain.dtype == values.dtype
    replaced = host_faults.expand_batch_to_tokens(values, cumulative, 6, 0, 1)
    assert replaced.tolist() == [5, 5, 1, 1, 1, 1]
    assert values.tolist() == [5, 0, 7, 0], "the input was changed"
    empty = host_faults.expand_batch_to_tokens(values[:0], cumulative[:0], 0)
    assert empty.shape == (0,)


def test_a_wrong_expansion_does_not_pass_for_sound() -> None:
    def off_by_one(x: Any, cu: Any, n: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        return host_faults.expand_batch_to_tokens(x.roll(1), cu, n, replace_from, replace_to)

    def no_replacement(x: Any, cu: Any, n: int, *_: int) -> Any:
        return host_faults.expand_batch_to_tokens(x, cu, n)

    def wrong_type(x: Any, cu: Any, n: int, *replace: int) -> Any:
        return host_faults.expand_batch_to_tokens(x, cu, n, *replace).double()

    def failing(*_: Any) -> Any:
        raise RuntimeError

    for broken in (off_by_one, no_replacement, wrong_type, failing):
        assert not host_faults.is_sound(broken), broken.__name__
    assert host_faults.is_sound(host_faults.expand_batch_to_tokens)


def test_top_k_without_drafts_is_guarded(sampler: Any, caplog: pytest.LogCaptureFixture) -> None:
    import torch

    assert not host_faults.filters_nothing(sampler.apply_top_k_top_p), (
        "this vLLM no longer has the fault: the guard then does nothing, and this line may go"
    )
    own = sampler.apply_top_k_top_p
    with caplog.at_level(logging.WARNING):
        host_faults.repair(logging.getLogger("specplug-test"))
        host_faults.repair(logging.getLogger("specplug-test"))
    assert caplog.text.count("apply_top_k_top_p") == 1
    assert host_faults.filters_nothing(sampler.apply_top_k_top_p)
    logits = torch.tensor([[1.0, 3.0, 2.0], [0.5, 0.1, 0.2]])
    k = torch.tensor([2, 1], dtype=torch.int32)
    assert torch.equal(
        sampler.apply_top_k_top_p(logits.clone(), k, None), own(logits.clone(), k, None)
    )


SECOND_ENGINE = """
import logging, sys
from vllm.platforms import current_platform
assert current_platform.is_cpu()
import vllm.v1.worker.gpu_model_runner
current_platform.register_triton_kernel_overrides()
import numba
if sys.argv[1] == "repaired":
    from specplug.adapters.vllm_v1 import host_faults
    host_faults.repair(logging.getLogger("specplug"))
current_platform.register_triton_kernel_overrides()
"""


def test_a_second_engine_can_start_in_the_process() -> None:
    def start(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", SECOND_ENGINE, how]
        return subprocess.run(command, capture_output=True, text=True)

    assert start("repaired").returncode == 0
    assert "has no attribute 'get'" in start("as it is").stderr, (
        "this vLLM no longer has the fault: the guard then does nothing, and this line may go"
    )


def test_registering_imports_no_worker_module() -> None:
    """The plugin runs in every process; the worker modules cost seconds and may initialise a device."""
    code = """
import sys
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.engine.arg_utils import EngineArgs
assert hasattr(EngineArgs.create_speculative_config, "__wrapped__"), "not installed"
loaded = [m for m in sys.modules if m.startswith(("vllm.v1.worker", "numba", "specplug.session"))]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
