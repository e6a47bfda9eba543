"""Counts of a text that only repeats itself: no rate comes to 0 or 1, and what was learned before stays good."""

from __future__ import annotations

import numpy as np
import pytest

from specplug.index.suffix import SuffixIndex
from specplug.kernels import layout
from specplug.kernels._jit import kernel
from specplug.kernels.ranking import _bounded_odds
from specplug.steering import agreement
from specplug.types import Context, Observed, allocate_drafts

K = 16
COST = 0.03


class Replay:
    """One slot, driven by texts that are known."""

    def __init__(self) -> None:
        self.index = SuffixIndex(Context(5000, 1 << 17, K, 1), 1 << 20, COST)
        self.slots, self.ceilings = np.zeros(1, np.int32), np.full(1, K, np.int32)
        self.out = allocate_drafts(1, K)

    def step(self, truth: list[int]) -> int:
        """Draft what ``truth`` begins with; returns how many tokens that brings."""
        self.index.draft(self.slots, self.ceilings, self.out)
        draft = self.out.tokens[0, : int(self.out.lengths[0])].tolist()
        right = agreement(draft, truth, min(len(draft), len(truth)))
        new = np.array(truth[: right + 1], np.int32)
        self.index.observe(Observed(self.slots, np.array([0, len(new)], np.int64), new))
        return len(new)

    def repeat(self, steps: int) -> None:
        """A request that says one token again and again."""
        self.index.start(0, "", 4, np.full(8, 7, np.int32))
        for _ in range(steps):
            self.step([7] * (K + 1))
        self.index.learn()

    def copying(self) -> float:
        """Tokens per step of six requests that repeat their prompt with a few edits."""
        random, tokens, steps = np.random.default_rng(3), 0, 0
        for _ in range(6):
            prompt = random.integers(100, 3000, 600).astype(np.int32)
            truth = np.where(random.random(600) < 0.03, 9, prompt).tolist()
            self.index.start(0, "", len(prompt), prompt)
            while truth:
                truth = truth[self.step(truth) :]
                steps += 1
            tokens += len(prompt)
            self.index.finish(0, True, frozenset())
        return tokens / steps


def test_a_text_that_only_repeats_itself_does_not_spoil_later_drafts() -> None:
    """Misses that were halved until they were 0 made features of -709, whose weights then outvoted all else."""
    fresh, spoiled = Replay(), Replay()
    spoiled.repeat(2500)
    model, log = spoiled.index.state.model, spoiled.index.state.log
    rates = model.parents[..., 2]
    assert rates.max() == pytest.approx(1.0 - layout.RAREST), "it has come as far as it goes"
    assert np.abs(log.features).max() < 20.0
    assert np.abs(model.weights).max() < 2.0
    spoiled.index.finish(0, True, frozenset())
    assert spoiled.copying() > 0.85 * fresh.copying()
    assert spoiled.index.check_invariants() == ""


@kernel
def _odds(cell: object, hopes: float, doubts: float) -> float:
    found: float = _bounded_odds(cell, hopes, doubts)
    return found


def test_misses_are_counted_as_exactly_as_the_twin_counts_them() -> None:
    """Counts are kept in 32 bits; their difference must not be rounded to as many."""
    cell = np.array([1.5 * 2.0**-12, 10000.5], np.float32)
    hits, trials = cell.tolist()
    assert _odds(cell, 1.5, 3.5) == (hits + 1.5) / (trials - hits + 3.5)
    assert _odds(np.array([0.0, 20000.0], np.float32), 0.0, 1.0) == layout.RAREST
    assert _odds(np.array([20000.0, 20000.0], np.float32), 1.0, 0.0004) == 1.0 / layout.RAREST
