"""Real vLLM in its V2 runner with look-ups on the device, asynchronous scheduling on; all of Triton interpreted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Batch, Counters, Driver

from .compare import Tally, check_greedy
from .prompts import VARIED
from .test_vllm_v2 import ENVIRONMENT, SMALL, WIDTH

SPECULATION = {
    "method": "specplug.suffix",
    "num_speculative_tokens": WIDTH,
    "specplug": {"lookup": {"name": "device", "store_mb": 0.1}, "controller": "fixed"},
}
NAMES = list(VARIED)[:10]
GREEDY = {"temperature": 0, "max_tokens": 20}


@pytest.fixture(scope="module")
def device(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """The engine; vLLM would switch asynchronous scheduling off on a CPU, ``SPECPLUG_TEST_AHEAD`` keeps it."""
    options = {
        **{"model": model, "dtype": "float32", "max_model_len": 256, "max_num_seqs": 4},
        **SMALL,
        "speculative_config": SPECULATION,
    }
    log = tmp_path_factory.mktemp("v2") / "device.log"
    environment = {**ENVIRONMENT, "SPECPLUG_TEST_AHEAD": "1"}
    with EngineProcess(options, name="device", env=environment, log=log, wait=False) as engine:
        engine.ready()
        yield engine


@pytest.fixture(scope="module")
def served(device: EngineProcess) -> tuple[Batch, Counters]:
    """Ten prompts, four at a time, and what the drafts brought."""
    before = device.metrics()
    got = device.generate([VARIED[name] for name in NAMES], GREEDY)
    return got, device.metrics() - before


def test_it_runs_ahead_of_the_device(device: EngineProcess) -> None:
    assert "Using V2 Model Runner" in device.log_text
    assert "Async scheduling not supported" not in device.log_text
    own = device.metrics().own
    assert (own["runner"], own["lookup"]) == ("V2", "device")


def test_greedy_answers_are_those_of_plain_decoding(
    device: EngineProcess, plain: Driver, served: tuple[Batch, Counters], tally: Tally
) -> None:
    got, gained = served
    want = plain.generate([VARIED[name] for name in NAMES], GREEDY)
    for name, expected, result in zip(NAMES, want.results, got.results, strict=True):
        check_greedy(plain, tally, name, expected.prompt_token_ids, expected.only, result.only)
    assert gained.accepted_tokens > 20, gained
    assert device.metrics().own["adapter_faults"] == 0
