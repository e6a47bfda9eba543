"""Which of vLLM's two model runners a method of ours gets, on stand-ins for platforms; no GPU is needed to ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from specplug.adapters import vllm_v2
from specplug.adapters.common.host import HostRequirements
from specplug.adapters.vllm_v1 import install as v1_install
from specplug.adapters.vllm_v1 import report as v1_report
from specplug.adapters.vllm_v1.options import translate
from specplug.adapters.vllm_v2 import choice, requirements
from specplug.errors import HostMismatchError, SettingsError
from specplug.testing.stub_host import stub_modules

GOOD = {"method": "specplug.null", "num_speculative_tokens": 4}
NGRAM = {
    **{"method": "specplug.adaptive", "num_speculative_tokens": 4},
    "specplug": {"inner": {"method": "ngram"}},
}


class EngineArgs(SimpleNamespace):
    """As far as the wrappers read it."""

    spec_method = spec_tokens = spec_model = scheduler_cls = None
    v2_in_the_end = True

    def create_speculative_config(self, model: Any = None, parallel: Any = None) -> Any:
        return SimpleNamespace(**self.speculative_config)

    def create_engine_config(self) -> Any:
        made = self.create_speculative_config(None, getattr(self, "parallel", None))
        return SimpleNamespace(speculative_config=made, use_v2_model_runner=self.v2_in_the_end)


@pytest.fixture(autouse=True)
def wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter is installed, vLLM is the right one, and the user chose nothing."""
    monkeypatch.delenv(vllm_v2.VARIABLE, raising=False)
    monkeypatch.setattr(HostRequirements, "require", lambda _self: "")
    monkeypatch.setattr(requirements, "require", lambda: None)
    monkeypatch.setattr(v1_install.salts, "carry", lambda load=False: None)
    monkeypatch.setattr(v1_install.metrics, "offer", lambda: None)
    for name, wrap in (
        ("create_speculative_config", v1_install.wrap),
        ("create_engine_config", v1_install.wrap_whole),
    ):
        monkeypatch.setattr(EngineArgs, name, wrap(getattr(EngineArgs, name)))


@contextmanager
def platform(gpu: bool, triton: bool = True) -> Iterator[None]:
    found = SimpleNamespace(is_cuda_alike=lambda: gpu, is_cpu=lambda: not gpu)
    modules: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.platforms": {"current_platform": found},
        "vllm.triton_utils": {"HAS_TRITON": triton},
    }
    with stub_modules(modules):
        yield


def made(**given: Any) -> Any:
    """The speculative configuration that vLLM gets in the end."""
    return EngineArgs(speculative_config=GOOD, **given).create_engine_config().speculative_config


def is_v2(config: Any) -> bool:
    return config.method == vllm_v2.CARRIER and config.prompt_lookup_max == 0


def is_v1(config: Any) -> bool:
    return bool(config == SimpleNamespace(**translate(GOOD)))


def test_on_a_gpu_it_is_the_runner_that_vllm_takes_by_itself() -> None:
    with platform(gpu=True):
        assert is_v2(made())
        assert vllm_v2.possible()


@pytest.mark.parametrize(
    ("where", "given", "reason"),
    [
        ({"gpu": False}, {}, "on CUDA and ROCm only"),
        ({"gpu": True, "triton": False}, {}, "needs Triton"),
        ({"gpu": True}, {"parallel": SimpleNamespace(use_ubatching=True)}, "dual batch overlap"),
        *(({"gpu": True}, {name: 2}, f"one GPU, and this is {name}=2") for name in choice.PARALLEL),
    ],
    ids=str,
)
def test_what_v2_cannot_do_is_done_in_v1_with_the_reason(
    where: dict[str, bool], given: dict[str, Any], reason: str
) -> None:
    with platform(**where):
        assert is_v1(made(**given))
        args = EngineArgs(speculative_config=GOOD, **given)
        door = choice.choose(args, given.get("parallel"))
    assert not door.v2
    assert reason in str(door)
    assert str(door).startswith("V1 model runner, because ")


def test_a_vllm_without_what_is_relied_on_in_v2_runs_it_in_v1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise HostMismatchError("vllm.x has no y")

    monkeypatch.setattr(requirements, "require", refuse)
    with platform(gpu=True):
        assert is_v1(made())
        assert "has no y" in choice.choose(EngineArgs(speculative_config=GOOD)).reason
    monkeypatch.setenv(vllm_v2.VARIABLE, "1")
    with pytest.raises(HostMismatchError, match="has no y"):
        made()


def test_where_vllm_takes_v1_for_a_reason_of_its_own_the_configuration_is_made_again() -> None:
    """Else it would run its own ngram in V1 under our name."""
    with platform(gpu=True):
        assert is_v1(made(v2_in_the_end=False))
        args = EngineArgs(
            speculative_config=None, spec_method=GOOD["method"], spec_tokens=4, v2_in_the_end=False
        )
        assert is_v1(args.create_engine_config().speculative_config)
        # Made a second time, as vLLM does, it is the same.
        assert is_v1(args.create_engine_config().speculative_config)
        foreign = EngineArgs(speculative_config={"method": "ngram"}, v2_in_the_end=False)
        assert foreign.create_engine_config().speculative_config.method == "ngram"


def test_a_method_that_needs_v1_gets_it_unless_the_user_says_v2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = EngineArgs(speculative_config=GOOD)
    with platform(gpu=True):
        assert choice.choose(args, None, "it needs V1") == choice.Door(False, "it needs V1")
        monkeypatch.setenv(vllm_v2.VARIABLE, "1")
        assert choice.choose(args, None, "it needs V1").v2


def test_what_the_user_says_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in (("1", True), ("2", True), ("0", False), ("", False), ("true", False)):
        monkeypatch.setenv(vllm_v2.VARIABLE, value)
        assert choice.wished() is expected
        assert vllm_v2.possible() is expected
        with platform(gpu=not expected):
            assert is_v2(made()) is expected
    monkeypatch.delenv(vllm_v2.VARIABLE)
    assert choice.wished() is None


def test_what_v2_cannot_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in choice.PARALLEL:
        monkeypatch.setenv(vllm_v2.VARIABLE, "1")
        with pytest.raises(SettingsError, match=f"{name}=2.*set VLLM_USE_V2_MODEL_RUNNER=0"):
            made(**{name: 2})
        monkeypatch.setenv(vllm_v2.VARIABLE, "0")
        assert is_v1(made(**{name: 2}))


@pytest.mark.parametrize("asked", ["0", "1", None])
@pytest.mark.parametrize("gpu", [False, True])
def test_prefill_context_parallelism_is_refused_in_both_runners(
    asked: str | None, gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went to V1 before, where vLLM then refused it without a word about specplug."""
    if asked:
        monkeypatch.setenv(vllm_v2.VARIABLE, asked)
    with (
        platform(gpu=gpu),
        pytest.raises(SettingsError, match=r"prefill_context_parallel_size=2: .* use 1"),
    ):
        made(prefill_context_parallel_size=2)


@pytest.mark.parametrize("asked", ["1", None])
def test_adaptive_over_ngram_is_refused_before_the_model_loads(
    asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if asked:
        monkeypatch.setenv(vllm_v2.VARIABLE, asked)
    args = EngineArgs(speculative_config=NGRAM)
    with (
        platform(gpu=True),
        pytest.raises(
            SettingsError, match=r"'ngram' stay on the device.*VLLM_USE_V2_MODEL_RUNNER=0"
        ),
    ):
        args.create_engine_config()


def test_the_doctor_says_which_runner_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    for value, cpu, expected in (
        (None, True, "V1 model runner, because this vLLM is built for CPUs"),
        (None, False, "V1 model runner, because V2 needs Triton, which is not installed"),
        ("0", False, "V1 model runner, because VLLM_USE_V2_MODEL_RUNNER=0"),
        ("1", True, "V2 model runner, because VLLM_USE_V2_MODEL_RUNNER=1"),
    ):
        if value is not None:
            monkeypatch.setenv(vllm_v2.VARIABLE, value)
        assert str(choice.expected(cpu)).startswith(expected)
        assert v1_report._expected(cpu) == str(choice.expected(cpu))
    monkeypatch.delenv(vllm_v2.VARIABLE)
    monkeypatch.setattr(choice, "find_spec", lambda name: name)
    assert str(choice.expected(False)).startswith(
        "V2 model runner, because vLLM takes it by itself"
    )
