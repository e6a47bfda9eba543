"""Small proposers whose drafts are drawn at random, or branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from specplug.testing.targets import MarkovTarget
from specplug.testing.toys import HistoryProposer
from specplug.types import Capabilities, Context, DraftBuffers, IntArray, ProbArray

#: Draws a token from a law (float64 ``[V]``). A proposer of sampled drafts takes its chance from
#: nowhere else, so that the enumeration can follow every draw.
Draw = Callable[[ProbArray], int]


class SampledProposer(HistoryProposer):
    """Draws every draft from a small Markov model, as a draft model would.

    Attributes:
        draw: where its chance comes from; see :data:`Draw`.
    """

    capabilities = Capabilities(sampled=True)

    def __init__(self, context: Context, model: MarkovTarget, draw: Draw) -> None:
        super().__init__(context)
        self.model = model
        self.draw = draw

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        assert out.draft_probs is not None
        for row, (slot, ceiling) in enumerate(zip(slots.tolist(), ceilings.tolist(), strict=True)):
            history = list(self.histories[slot])
            for position in range(ceiling):
                law = self.draft_law(history)
                if not self.worth_drafting(law, position):
                    break
                history.append(self.draw(law))
                out.tokens[row, position] = history[-1]
                out.draft_probs[row, position] = law
                out.survival[row, position] = 0.5
                out.lengths[row] = position + 1

    def draft_law(self, history: list[int]) -> ProbArray:
        """The law of the next draft token after ``history``, float64 ``[V]``."""
        return np.exp(self.model.logits(tuple(history)))

    def worth_drafting(self, law: ProbArray, position: int) -> bool:
        """Whether to draft on; must not look at what will be drawn."""
        return True


class ConfidentProposer(SampledProposer):
    """Drafts on only while its law is peaked: a length that depends on the law alone, which is allowed."""

    def worth_drafting(self, law: ProbArray, position: int) -> bool:
        return float(law.max()) >= 0.6


class TreeProposer(HistoryProposer):
    """Drafts a tree of fixed shape, whose tokens are a function of the history; siblings may repeat a token."""

    capabilities = Capabilities(trees=True)

    def __init__(self, context: Context, parents: Sequence[int], tokens: Sequence[int]) -> None:
        super().__init__(context)
        self.parents = parents
        self.tokens = tokens

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        assert out.parents is not None
        for row, (slot, ceiling) in enumerate(zip(slots.tolist(), ceilings.tolist(), strict=True)):
            shift = sum(self.histories[slot])
            for node, parent in enumerate(self.parents[:ceiling]):
                out.tokens[row, node] = (self.tokens[node] + shift) % self.context.vocab_size
                out.parents[row, node] = parent
                out.survival[row, node] = 0.5
                out.lengths[row] = node + 1


class SampledTreeProposer(SampledProposer):
    """Draws a tree of fixed shape from a small Markov model, siblings with or without replacement."""

    capabilities = Capabilities(trees=True, sampled=True)

    def __init__(
        self,
        context: Context,
        model: MarkovTarget,
        draw: Draw,
        parents: Sequence[int] = (-1, -1, 0),
        replacement: bool = False,
    ) -> None:
        super().__init__(context, model, draw)
        self.parents = parents
        self.replacement = replacement

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        assert out.draft_probs is not None
        assert out.parents is not None
        for row, (slot, ceiling) in enumerate(zip(slots.tolist(), ceilings.tolist(), strict=True)):
            branches: list[list[int]] = []
            for node, parent in enumerate(self.parents[:ceiling]):
                branch = branches[parent] if parent >= 0 else []
                law = self.draft_law(self.histories[slot] + branch)
                if not self.replacement:
                    elders = [n for n in range(node) if self.parents[n] == parent]
                    law[out.tokens[row, elders]] = 0.0
                if law.sum() == 0.0:
                    # All tokens are taken. To stop because of elder siblings is allowed.
                    break
                law /= law.sum()
                branches.append([*branch, self.draw(law)])
                out.tokens[row, node] = branches[node][-1]
                out.draft_probs[row, node] = law
                out.parents[row, node] = parent
                out.survival[row, node] = 0.5
                out.lengths[row] = node + 1
