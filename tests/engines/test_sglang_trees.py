"""Draft trees in the real SGLang: verified by a mask, the accepted branch moved to where the cache expects it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Driver

from .compare import Tally, check_greedy
from .conftest import WITH_PLUGINS, Start
from .engines import SGLANG, speculation
from .law import LawTest, compare_laws, sample
from .prompts import VARIED
from .test_distribution import LOWEST_P, PROMPT

GREEDY = {"temperature": 0, "max_tokens": 32, "logprobs": 1}
NAMES = ["repeat-words", "repeat-line", "repeat-story", "code-repeat", "chat-story"]


@pytest.fixture(scope="module", params=["branching", "suffix"])
def trees(request: pytest.FixtureRequest, start: Start) -> Iterator[EngineProcess]:
    """A proposer whose second branch is often right, and the suffix drafter with its option."""
    name = f"specplug.{request.param}"
    ours = {} if name == "specplug.branching" else {"tree": True, "verify_cost": 0.001}
    settings, environment = speculation(SGLANG, name, **ours)
    settings["speculative_num_draft_tokens"] = 9
    process = {"env": {**WITH_PLUGINS, **environment}}
    running = start(f"trees-{request.param}", process=process, **settings)
    running.ready()
    yield running
    running.close()


def test_trees_change_no_greedy_answer(plain: Driver, trees: Driver, tally: Tally) -> None:
    prompts = [VARIED[name] for name in NAMES]
    expected = plain.generate(prompts, GREEDY)
    before = trees.metrics()
    got = trees.generate(prompts, GREEDY)
    gained = trees.metrics() - before
    assert gained.draft_tokens > gained.accepted_tokens > 30, gained
    moved = 0
    for name, want, result in zip(NAMES, expected.results, got.results, strict=True):
        check_greedy(plain, tally, name, want.prompt_token_ids, want.only, result.only)
        for step in result.only.steps:
            moved += step.accepted > 0 and step.sampled[0] != step.draft[0]
        assert want.only.logprobs is not None
        assert result.only.logprobs is not None
        if want.only.token_ids == result.only.token_ids:
            for token, one, other in zip(
                want.only.token_ids, want.only.logprobs, result.only.logprobs, strict=True
            ):
                assert abs(one[token] - other[token]) < 1e-3
    least = 3 if "BRANCHING" in str(trees.info()["method"]) else 0
    assert moved > least, "the second branch must have been accepted, or nothing was moved"


def test_trees_are_verified_when_sampling(trees: Driver) -> None:
    before = trees.metrics()
    params = {"temperature": 0.6, "top_p": 0.9, "max_tokens": 24}
    got = trees.generate([VARIED["repeat-line"]] * 4, params)
    assert (trees.metrics() - before).accepted_tokens > 10
    for result in got.results:
        assert len(result.only.token_ids) == 24 or result.only.finish_reason == "stop"


@pytest.mark.long
def test_the_law_with_trees_is_that_of_the_target(plain: Driver, trees: Driver) -> None:
    if "BRANCHING" in str(trees.info()["method"]):
        pytest.skip("it drafts from the request's own text only, and this one says nothing twice")
    case = LawTest({"temperature": 1.0, "max_tokens": 3, "ignore_eos": True}, samples=300)
    reference, _, _ = sample(plain, plain.tokenize(PROMPT), case, seed=1)
    drawn, _, gained = sample(trees, plain.tokenize(PROMPT), case, seed=2)
    verdict = compare_laws(reference, drawn)
    assert gained.draft_tokens > gained.accepted_tokens > 30, gained
    assert verdict.worst_p > LOWEST_P, verdict


@pytest.mark.long
def test_a_failing_verification_changes_no_answer(
    plain: Driver, trees: EngineProcess, tally: Tally
) -> None:
    trees.call("run", target="engine_test_branching:break_verification", times=3)
    params = {**GREEDY, "frequency_penalty": 0.5}
    prompt = VARIED["repeat-line"]
    want = plain.generate([prompt], params).results[0]
    got = trees.generate([prompt], params).results[0]
    check_greedy(plain, tally, "failing", want.prompt_token_ids, want.only, got.only)
    own = trees.metrics().own
    assert own["verify_faults"] == own["counters"]["fallbacks"] == 3
    assert "verification failed" in trees.log_text
