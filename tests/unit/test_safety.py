"""Safe token ids: few rows and tokens, looked at as lists, and many, against the rules written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from specplug.safety import _FEW_ROWS, _FEW_TOKENS, Safety
from specplug.stats import SessionStats
from specplug.types import SEPARATOR, Context, allocate_drafts

CONTEXT = Context(vocab_size=100, max_length=50, max_draft=6)


def by_hand(tokens: list[int], length: int, ceiling: int, stops: frozenset[int]) -> list[int]:
    kept: list[int] = []
    for token in tokens[: max(0, min(length, ceiling))]:
        if not 0 <= token < 100:
            break
        kept.append(token)
        if token in stops:
            break
    return kept


@pytest.mark.parametrize("rows", [1, _FEW_ROWS, _FEW_ROWS + 1, 40])
@pytest.mark.parametrize("different", [3, 30], ids=["few stop tokens", "many"])
def test_small_and_large_batches_are_cut_alike(rows: int, different: int) -> None:
    rng = np.random.default_rng(rows + different)
    clipped = 0
    for _ in range(20):
        out = allocate_drafts(rows, 6)
        out.tokens[:] = rng.integers(-3, 106, (rows, 6))
        out.lengths[:] = rng.integers(-2, 9, rows)
        ceilings = rng.integers(0, 7, rows).tolist()
        stops = [
            frozenset(rng.integers(0, 100, rng.integers(different)).tolist()) for _ in range(rows)
        ]
        plain = zip(out.tokens.tolist(), out.lengths.tolist(), ceilings, stops, strict=True)
        expected = [by_hand(*row) for row in plain]
        stats = SessionStats()
        drafts = Safety(CONTEXT, stats).cut(out, out.lengths.tolist(), ceilings, stops)
        assert drafts == expected
        assert out.lengths.tolist() == [len(draft) for draft in expected]
        clipped += stats.clipped
    assert clipped


@pytest.mark.parametrize("count", [1, _FEW_TOKENS, _FEW_TOKENS + 1])
@pytest.mark.parametrize("foreign", [None, -1, 100, 2**31 - 1])
def test_few_and_many_tokens_are_cleaned_alike(count: int, foreign: int | None) -> None:
    given = (np.arange(count) % 100).astype(np.int32)
    expected = given.tolist()
    if foreign is not None:
        given[-1] = foreign
        expected[-1] = SEPARATOR
    cleaned, listed = Safety(CONTEXT, SessionStats()).clean_with_list(given)
    assert cleaned.tolist() == listed == expected
    assert not np.shares_memory(cleaned, given)
