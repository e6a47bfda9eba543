"""Overlap scheduling, forced on the CPU: outputs arrive one step late, and everything is as without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Driver

from .compare import Tally, check_greedy, check_preemption
from .conftest import WITH_PLUGINS, Start
from .engines import SGLANG
from .prompts import VARIED

NAMES = ["repeat-line", "repeat-story", "code-repeat", "chat-copy", "chat-short", "prose"]
GREEDY = {"temperature": 0, "max_tokens": 48}


@pytest.fixture(scope="module")
def overlap(start: Start) -> Iterator[EngineProcess]:
    """Speculates with overlap; 1,024 tokens of KV cache, so that a full batch does not fit."""
    environment = {**WITH_PLUGINS, "SPECPLUG_SGLANG_CPU_OVERLAP": "1"}
    options = {**SGLANG.methods["specplug.suffix"], "disable_overlap_schedule": False}
    small = {"max_total_tokens": 1024, "schedule_conservativeness": 0.01}
    running = start("overlap", process={"env": environment}, **options, **small)
    running.ready()
    assert "overlap on" in running.log_text
    yield running
    running.close()


def test_different_requests_side_by_side(plain: Driver, overlap: Driver, tally: Tally) -> None:
    """Stop rules, penalties, bias and a grammar (which SGLang runs without overlap) in one batch."""
    changes = [
        {},
        {"stop": ["\n"]},
        {"frequency_penalty": 0.5},
        {"logit_bias": {"5": 2.0}},
        {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        {"max_tokens": 3},
    ]
    prompts = [VARIED[name] for name in NAMES]
    params = [{**GREEDY, **change} for change in changes]
    before = overlap.metrics()
    got = overlap.generate(prompts, params)
    assert (overlap.metrics() - before).accepted_tokens > 20
    expected = plain.generate(prompts, params)
    for name, want, have in zip(NAMES, expected.results, got.results, strict=True):
        check_greedy(plain, tally, name, want.prompt_token_ids, want.only, have.only)
        assert have.only.finish_reason == want.only.finish_reason


def test_retraction(plain: Driver, overlap: Driver, tally: Tally) -> None:
    """Answers of more than twice the cache, so that some are retracted however the requests arrive."""
    check_preemption(plain, overlap, tally, max_tokens=240)


def test_abort_and_what_is_left(plain: Driver, overlap: Driver, tally: Tally) -> None:
    prompts = [VARIED[name] for name in NAMES]
    aborted = {0: 5, 3: 20}
    # Without an end of their own, and with far more tokens than the cancellation can be late.
    params = [{**GREEDY, "min_tokens": 400 if i in aborted else 48} for i in range(len(NAMES))]
    for i in aborted:
        params[i]["max_tokens"] = 400
    got = overlap.generate(prompts, params, abort_after=aborted)
    reasons = [result.only.finish_reason for result in got.results]
    assert reasons == ["abort", "length", "length", "abort", "length", "length"]
    overlap.generate(["a"], {"temperature": 0, "max_tokens": 2})
    own = overlap.metrics().own
    assert own["live_requests"] <= 1
    assert own["session"]["faults"] == own["adapter_faults"] == own["verify_faults"] == 0


def test_a_flushed_cache_forgets_what_was_learned(overlap: EngineProcess) -> None:
    """As often as it is asked; in between the second answer to a prompt is drafted from the first."""
    prompt = [VARIED["chat-story"]]

    def accepted() -> int:
        before = overlap.metrics()
        overlap.generate(prompt, GREEDY)
        return (overlap.metrics() - before).accepted_tokens

    fresh = []
    for _ in range(2):
        assert overlap.call("run", target="engine_test_sglang:flush")["value"]
        fresh.append(accepted())
        assert accepted() > fresh[-1] + 15, "the store brought nothing"
    assert fresh[0] == fresh[1]
