"""What the scheduler does to requests: chunked prefill, prefix caching, preemption, abort, the context's end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Driver

from .compare import Tally, check_greedy, check_preemption
from .conftest import METHOD, Start
from .engines import Engine
from .prompts import LONG, REPETITIVE, VARIED

CHUNK = 64
CONTEXT = 512
GREEDY = {"temperature": 0, "max_tokens": 64}


@pytest.fixture(scope="module")
def small(start: Start, engine: Engine) -> Iterator[EngineProcess]:
    """Speculates; 640 tokens of KV cache, prefill in chunks of 64 tokens, context of 512."""
    options = {**engine.methods[METHOD], **engine.small}
    running = start("small", **options, max_model_len=CONTEXT, max_num_seqs=16)
    running.ready()
    yield running
    running.close()


def test_prompt_longer_than_a_chunk(plain: Driver, small: Driver, tally: Tally) -> None:
    """A long prefill in pieces, beside requests that are already decoding with drafts."""
    prompts = [VARIED["repeat-line"], LONG, VARIED["repeat-numbers"]]
    expected = plain.generate(prompts, GREEDY)
    before = small.metrics()
    got = small.generate(prompts, GREEDY)
    assert len(got.results[1].prompt_token_ids) > 4 * CHUNK
    assert (small.metrics() - before).accepted_tokens > 20
    for want, have in zip(expected.results, got.results, strict=True):
        check_greedy(plain, tally, "chunked", want.prompt_token_ids, want.only, have.only)


def test_preemption(plain: Driver, small: Driver, tally: Tally) -> None:
    check_preemption(plain, small, tally, max_tokens=150)


def test_end_of_the_context(engine: Engine, plain: Driver, small: Driver, tally: Tally) -> None:
    """Drafts stop at the context's end, for each request by itself."""
    tokens = small.tokenize(LONG)
    assert len(tokens) < CONTEXT
    tokens = (tokens * 2)[: CONTEXT - 1]
    room = [r for r in (1, 2, 5, 9, 17) if r >= engine.least_room]
    prompts = [tokens[-(CONTEXT - engine.unused_context - r) :] for r in room]
    expected = plain.generate(prompts, [{"temperature": 0, "max_tokens": r} for r in room])
    # One after the other (the cache holds one such request), and beside a short one.
    for i, r in enumerate(room):
        got = small.generate([prompts[i], VARIED["repeat-words"]], {**GREEDY, "max_tokens": 40})
        have, want = got.results[0].only, expected.results[i].only
        assert (len(have.token_ids), have.finish_reason) == (r, "length")
        check_greedy(plain, tally, f"room {r}", prompts[i], want, have)
        assert all(len(s.draft) < max(2, r) for s in have.steps), (r, have.steps)


def test_prefix_caching(plain: Driver, spec: EngineProcess, tally: Tally) -> None:
    # SGLang's blocks are one token long.
    block = max(16, spec.info()["block_size"])
    tokens = spec.tokenize(LONG * 2)
    # Whole blocks and one token more is a case of its own: the request joins the batch as if it were
    # decoding, with placeholder drafts.
    prompts = [tokens[: 2 * block + extra] for extra in (0, 1, 2, block // 2)]
    expected = plain.generate(prompts, GREEDY)
    for turn in range(2):
        got = spec.generate(prompts, GREEDY)
        for want, have in zip(expected.results, got.results, strict=True):
            check_greedy(plain, tally, "cached", want.prompt_token_ids, want.only, have.only)
            if turn:
                assert have.cached_tokens >= block
    again = [spec.generate([prompt], GREEDY).results[0] for prompt in prompts]
    for want, have in zip(expected.results, again, strict=True):
        assert have.cached_tokens >= block
        check_greedy(plain, tally, "cached, alone", want.prompt_token_ids, want.only, have.only)


def test_abort_in_mid_flight(plain: Driver, spec: EngineProcess, tally: Tally) -> None:
    names = [*REPETITIVE, "prose"]
    prompts = [VARIED[name] for name in names]
    params = {**GREEDY, "ignore_eos": True}
    expected = plain.generate(prompts, params)
    # Far more tokens than the cancellation can be late.
    given = [{**params, "max_tokens": 500} if i in (0, 2) else params for i in range(len(names))]
    got = spec.generate(prompts, given, abort_after={0: 5, 2: 20})
    for i, (want, have) in enumerate(zip(expected.results, got.results, strict=True)):
        if i in (0, 2):
            assert have.only.finish_reason == "abort"
            assert 5 <= len(have.only.token_ids) < 500
            common = min(len(have.only.token_ids), len(want.only.token_ids))
            assert have.only.token_ids[:common] == want.only.token_ids[:common]
        else:
            check_greedy(plain, tally, names[i], want.prompt_token_ids, want.only, have.only)
    # Ends are reported with the next step: one more request flushes them.
    spec.generate(["a"], {"temperature": 0, "max_tokens": 2})
    own = spec.metrics().own
    if METHOD != "ngram":
        assert own["live_requests"] <= 1, own
        assert own["session"]["faults"] == own["adapter_faults"] == 0
        assert own["session"]["recycled"] == 0


def test_abort_everything(spec: EngineProcess) -> None:
    long = {**GREEDY, "max_tokens": 500, "ignore_eos": True}
    got = spec.generate([VARIED["prose"]] * 4, long, abort_after=dict.fromkeys(range(4), 3))
    assert [r.only.finish_reason for r in got.results] == ["abort"] * 4
    assert spec.generate(["a"], GREEDY).generated_tokens > 0
