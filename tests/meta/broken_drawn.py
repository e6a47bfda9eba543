"""Proposers of drawn drafts that are wrong in one way each; the table is in ``broken_proposers.py``."""

from __future__ import annotations

import numpy as np

from specplug.testing.targets import MarkovTarget
from specplug.testing.toys_sampled import SampledProposer, SampledTreeProposer
from specplug.types import Context, DraftBuffers, IntArray


def model_of(context: Context) -> MarkovTarget:
    """An uneven draft model: some of its draws are unlikely."""
    weights = np.arange(context.vocab_size, 0, -1.0)
    return MarkovTarget(weights / weights.sum())


class _Drawn(SampledProposer):
    def __init__(self, context: Context) -> None:
        super().__init__(context, model_of(context), lambda law: 0)


class DropsUnlikelyDraws(_Drawn):
    """The classic mistake: draws a token, finds it unlikely, and does not draft it."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, ceilings, out)
        for row, length in enumerate(out.lengths.tolist()):
            unlikely = np.flatnonzero(out.tokens[row, :length] != 0)
            if len(unlikely):
                out.lengths[row] = unlikely[0]


class ReportsAnotherLaw(_Drawn):
    """Draws from its model, and reports a flat law."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, ceilings, out)
        assert out.draft_probs is not None
        out.draft_probs[:] = 1.0 / self.context.vocab_size


class ReportsNoLaw(_Drawn):
    """Leaves the draft law as it finds it."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, ceilings, out)
        assert out.draft_probs is not None
        out.draft_probs[:] = 0.0


class _DrawnTree(SampledTreeProposer):
    def __init__(self, context: Context) -> None:
        super().__init__(context, model_of(context), lambda law: 0, (-1, -1), replacement=True)


class SortsSiblings(_DrawnTree):
    """Puts the siblings that it drew in order of their ids."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, ceilings, out)
        for row, length in enumerate(out.lengths.tolist()):
            out.tokens[row, :length].sort()


class DropsRepeatedSiblings(_DrawnTree):
    """Draws with replacement, and leaves a sibling out if its token is there already."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, ceilings, out)
        for row, length in enumerate(out.lengths.tolist()):
            if length == 2 and out.tokens[row, 0] == out.tokens[row, 1]:
                out.lengths[row] = 1


class ForgetsReplacement(_DrawnTree):
    """Draws without replacement, but reports the law of drawing with replacement."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.replacement = False

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, ceilings, out)
        assert out.draft_probs is not None
        for row, length in enumerate(out.lengths.tolist()):
            for node in range(length):
                out.draft_probs[row, node] = self.draft_law([])
