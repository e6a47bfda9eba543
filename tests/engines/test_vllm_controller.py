"""The controller in the real vLLM: same answers, no drafts where they are never right, and back when they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specplug.cli import main
from specplug.control import live
from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Driver

from .compare import Tally, check_greedy
from .conftest import Start
from .prompts import VARIED

WIDTH = 8
GREEDY = {"temperature": 0, "max_tokens": 48}
NAMES = ("repeat-line", "code-repeat", "chat-copy", "chat-story")


@pytest.fixture(scope="module")
def adaptive(start: Start) -> EngineProcess:
    """vLLM's own ngram under the controller."""
    inner = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    engine = start(
        "adaptive",
        speculative_config={
            "method": "specplug.adaptive",
            "num_speculative_tokens": WIDTH,
            "specplug": {"inner": inner},
        },
    )
    engine.ready()
    return engine


def test_ngram_under_the_controller_says_what_plain_decoding_says(
    plain: Driver, adaptive: Driver, tally: Tally
) -> None:
    prompts = [VARIED[name] for name in NAMES]
    expected = plain.generate(prompts, GREEDY)
    before = adaptive.metrics()
    got = adaptive.generate(prompts, GREEDY)
    gained = adaptive.metrics() - before
    assert gained.accepted_tokens > 5, gained
    for name, want, have in zip(NAMES, expected.results, got.results, strict=True):
        check_greedy(plain, tally, name, want.prompt_token_ids, want.only, have.only)


def test_the_governor_heard_of_steps_and_drafts(adaptive: EngineProcess) -> None:
    adaptive.generate([VARIED["repeat-line"]], GREEDY)
    found = adaptive.call("run", target="specplug.adapters.vllm_v1.adaptive:report")["value"]
    assert found["cost_steps"] >= 5
    assert found["offered"] >= found["drafted"] > 0
    assert found["accepted"] > 0
    assert found["plain_step_seconds"] > 0


@pytest.fixture(scope="module")
def drafting(start: Start, model: str) -> EngineProcess:
    """The model as its own draft model: greedy, every draft is right, and each costs as much as a step."""
    engine = start(
        "drafting",
        speculative_config={
            "method": "specplug.adaptive",
            "num_speculative_tokens": 4,
            "specplug": {"inner": {"method": "draft_model", "model": model}},
        },
    )
    engine.ready()
    return engine


def test_a_draft_model_is_told_its_lengths_and_the_answers_stay(
    plain: Driver, drafting: EngineProcess, tally: Tally
) -> None:
    prompts = [VARIED[name] for name in NAMES]
    expected = plain.generate(prompts, GREEDY)
    got = drafting.generate(prompts, GREEDY)
    for name, want, have in zip(NAMES, expected.results, got.results, strict=True):
        check_greedy(plain, tally, name, want.prompt_token_ids, want.only, have.only)
    for _ in range(3):
        drafting.generate([VARIED["repeat-line"]], GREEDY)
    found = drafting.call("run", target="specplug.adapters.vllm_v1.adaptive:report")["value"]
    assert found["cost_steps"] >= 5
    assert found["drafted"] > 0
    assert found["accepted"] > 0.8 * (found["accepted"] + found["wasted"])
    # Drafts as expensive as steps never pay, however right they are.
    assert found["reasons"].get("plan", 0) < found["decisions"]


@pytest.fixture(scope="module")
def live_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engine's controller keeps its last decisions."""
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def governed(start: Start, live_folder: Path) -> EngineProcess:
    """The configuration of the README: nothing is said about the controller."""
    config = {"method": "specplug.suffix", "num_speculative_tokens": WIDTH}
    process = {"env": {live.VARIABLE: str(live_folder)}}
    engine = start("governed", speculative_config=config, process=process)
    engine.ready()
    return engine


def test_our_own_method_under_the_default_controller(
    plain: Driver, governed: Driver, tally: Tally
) -> None:
    prompts = [VARIED[name] for name in NAMES]
    expected = plain.generate(prompts, GREEDY)
    got = governed.generate(prompts, GREEDY)
    for name, want, have in zip(NAMES, expected.results, got.results, strict=True):
        check_greedy(plain, tally, name, want.prompt_token_ids, want.only, have.only)


def test_the_controller_of_our_own_method_heard_of_them_too(governed: Driver) -> None:
    governed.generate([VARIED["repeat-line"]], GREEDY)
    found = governed.metrics().own["controller"]
    assert found["controller"] == "goodput"
    assert found["cost_steps"] >= 5
    assert found["accepted"] > 0
    # What it expects is what comes.
    assert 0.3 * found["expected"] - 10 < found["accepted"] < 3 * found["expected"] + 20


def test_the_doctor_sees_what_the_running_engine_decides(
    governed: Driver,
    live_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    governed.generate([VARIED["repeat-line"]], GREEDY)
    monkeypatch.setenv(live.VARIABLE, str(live_folder))
    assert main(["doctor", "--live", "--json"]) == 0
    [(name, decisions)] = json.loads(capsys.readouterr().out).items()
    assert name.startswith("specplug.suffix, process ")
    assert decisions[-1]["step"] == len(decisions) - 1
    assert sum(d["accepted"] for d in decisions) > 0
    assert {"plan"} <= {d["reason"] for d in decisions}
    known = [d for d in decisions if d["predicted"] and d["measured"]]
    assert len(known) > 5
