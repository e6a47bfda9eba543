"""Threads share a batch and learn beside the target: the same drafts, the same state as without them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from specplug.index import suffix
from specplug.index.helpers import Helpers
from specplug.index.suffix import SuffixIndex
from specplug.types import Context, Observed, allocate_drafts

ROWS, WIDTH = 7, 6


def play(threads: int, steps: int = 60) -> tuple[list[tuple[list[int], list[float]]], SuffixIndex]:
    """Requests that repeat themselves and each other; some end and begin anew, some are absent for a while."""
    index = SuffixIndex(Context(1000, 4000, WIDTH, ROWS, threads=threads), 1 << 16, 0.02)
    rng = np.random.default_rng(11)
    texts = [np.tile(rng.integers(0, 30, 40), 40).astype(np.int32) for _ in range(ROWS)]
    out = allocate_drafts(ROWS, WIDTH)
    at = [60] * ROWS
    drafts = []
    for slot in range(ROWS):
        index.start(slot, "", 50, texts[slot][:60])
    for _ in range(steps):
        slots = np.flatnonzero(rng.random(ROWS) < 0.8).astype(np.int32)
        gains = rng.integers(0, 4, len(slots))
        news = [texts[s][at[s] : at[s] + g] for s, g in zip(slots, gains, strict=True)]
        offsets = np.concatenate([[0], np.cumsum(gains)])
        index.observe(Observed(slots, offsets, np.concatenate([*news, texts[0][:0]])))
        for s, g in zip(slots, gains, strict=True):
            at[s] += g
        for _ in range(rng.integers(1, 3)):
            index.draft(slots, np.full(len(slots), WIDTH, np.int32), out)
            for row, length in enumerate(out.lengths[: len(slots)]):
                drafts.append(
                    (out.tokens[row, :length].tolist(), out.survival[row, :length].tolist())
                )
        if rng.random() < 0.2:
            slot = int(rng.integers(ROWS))
            index.finish(slot, True, frozenset({7}))
            index.start(slot, "", 20, texts[slot][:20])
            at[slot] = 20
    return drafts, index


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_drafts_and_state_do_not_depend_on_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suffix, "SHARED_ROWS", 2)
    drafts, index = play(threads)
    alone, single = play(1)
    assert sum(len(tokens) for tokens, _ in alone) > 500
    assert drafts == alone
    for each in (index, single):
        each.learn()
        assert each.check_invariants() == ""
    for got, expected in zip(index.state.model, single.state.model, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_small_batches_start_no_thread() -> None:
    before = threading.active_count()
    play(8, steps=5)
    assert threading.active_count() <= before  # threads of other tests may end meanwhile


def test_no_more_threads_than_allowed_work_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "SHARED_ROWS", 2)
    before = threading.active_count()
    play(3, steps=20)
    assert threading.active_count() <= before + 2


def test_an_error_of_a_helper_is_raised_where_its_work_is_waited_for() -> None:
    def fail() -> None:
        raise OSError("broken")

    helpers = Helpers(2)
    helpers.start(fail)
    with pytest.raises(OSError, match="broken"):
        helpers.wait()
    helpers.wait()  # only once


@pytest.mark.parametrize(("rows", "threads"), [(1, 2), (5, 2), (6, 3), (7, 8), (64, 3)])
def test_every_row_is_worked_on_once(rows: int, threads: int) -> None:
    seen = []

    def work(handle: int, first: int, end: int, cost: float) -> int:
        seen.extend((row, handle) for row in range(first, end))
        return -1 if first <= rows - 1 < end else 0

    assert Helpers(threads).share(work, range(threads), rows, 0.1) == -1
    assert sorted(row for row, _ in seen) == list(range(rows))
    assert len({handle for _, handle in seen}) <= threads
