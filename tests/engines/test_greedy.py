"""Greedy decoding with speculation says what plain greedy decoding says."""

from __future__ import annotations

import pytest

from specplug.testing.engine_protocol import Batch, Driver

from .compare import Tally, check_greedy
from .engines import Engine, need
from .prompts import VARIED

GREEDY = {"temperature": 0, "max_tokens": 64}
NAMES = list(VARIED)


@pytest.fixture(scope="module")
def expected(plain: Driver) -> Batch:
    """What plain decoding says to every prompt."""
    return plain.generate(list(VARIED.values()), GREEDY)


def compare(plain: Driver, tally: Tally, expected: Batch, got: Batch, names: list[str]) -> None:
    by_name = dict(zip(NAMES, expected.results, strict=True))
    for name, result in zip(names, got.results, strict=True):
        want = by_name[name]
        assert result.prompt_token_ids == want.prompt_token_ids
        check_greedy(plain, tally, name, want.prompt_token_ids, want.only, result.only)


def test_all_at_once(plain: Driver, spec: Driver, expected: Batch, tally: Tally) -> None:
    before = spec.metrics()
    got = spec.generate(list(VARIED.values()), GREEDY)
    gained = spec.metrics() - before
    assert len(VARIED) >= 20
    # Equality without accepted drafts would prove nothing.
    assert gained.draft_tokens > gained.accepted_tokens > 100, gained
    assert gained.generated_tokens == got.generated_tokens
    compare(plain, tally, expected, got, NAMES)


def test_drafts_and_counters_agree(spec: Driver) -> None:
    before = spec.metrics()
    got = spec.generate([VARIED["repeat-line"]], GREEDY)
    gained = spec.metrics() - before
    steps = got.results[0].only.steps
    drafted = [s for s in steps if s.draft]
    assert gained.drafted_steps == len(drafted) > 0
    assert gained.draft_tokens == sum(len(s.draft) for s in drafted)
    for step in drafted:
        # What was accepted is a prefix of the draft; the verifier's own token follows.
        assert step.sampled[: step.accepted] == step.draft[: step.accepted]
    assert gained.mal_per_drafted_step > 2.0
    assert gained.mal_per_step > 1.5


def test_one_at_a_time_and_again(
    plain: Driver, spec: Driver, expected: Batch, tally: Tally
) -> None:
    names = ["repeat-story", "code-repeat", "chat-copy", "chat-story", "one-token"]
    for _ in range(2):
        for name in names:
            got = spec.generate([VARIED[name]], GREEDY)
            compare(plain, tally, expected, got, [name])


def test_order_of_the_batch_does_not_matter(
    plain: Driver, spec: Driver, expected: Batch, tally: Tally
) -> None:
    names = NAMES[::-1]
    got = spec.generate([VARIED[name] for name in names], GREEDY)
    compare(plain, tally, expected, got, names)


def test_more_requests_than_rows(
    plain: Driver, spec: Driver, expected: Batch, tally: Tally
) -> None:
    """80 requests for 64 rows: late ones take over rows, and drafts must not follow the row."""
    names = [NAMES[i % len(NAMES)] for i in range(80)]
    # Different lengths make the rows move.
    lengths = [4 + (7 * i) % 40 for i in range(80)]
    params = [{**GREEDY, "max_tokens": n} for n in lengths]
    got = spec.generate([VARIED[name] for name in names], params)
    by_name = dict(zip(NAMES, expected.results, strict=True))
    for name, length, result in zip(names, lengths, got.results, strict=True):
        want = by_name[name].only
        if result.only.token_ids == want.token_ids[:length]:
            tally.compared += 1
        else:
            check_greedy(plain, tally, name, result.prompt_token_ids, want, result.only)


def test_several_sequences_per_request(
    engine: Engine, plain: Driver, spec: Driver, expected: Batch, tally: Tally
) -> None:
    """``n`` > 1: vLLM forbids it with temperature 0; with top_k=1 sampling has only one choice."""
    need(engine, "top_k")
    names = ["repeat-line", "code-repeat", "chat-list"]
    params = {"temperature": 1.0, "top_k": 1, "n": 3, "max_tokens": 64}
    before = spec.metrics()
    got = spec.generate([VARIED[name] for name in names], params)
    assert (spec.metrics() - before).accepted_tokens > 50
    by_name = dict(zip(NAMES, expected.results, strict=True))
    for name, result in zip(names, got.results, strict=True):
        assert len(result.completions) == 3
        for completion in result.completions:
            want = by_name[name]
            check_greedy(plain, tally, name, want.prompt_token_ids, want.only, completion)
