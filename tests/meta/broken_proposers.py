"""Proposers that are wrong in one way each. The table at the end says which check must catch each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specplug.settings import option
from specplug.testing.targets import MarkovTarget
from specplug.testing.toys import CopyProposer
from specplug.testing.toys_sampled import SampledProposer, SampledTreeProposer
from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    ProbArray,
    Request,
    TokenArray,
)


class TooLong(CopyProposer):
    """One token more than the ceiling allows."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, ceilings, out)
        for row, ceiling in enumerate(ceilings):
            if out.lengths[row] == ceiling and ceiling < out.tokens.shape[1]:
                out.tokens[row, ceiling] = 0
                out.survival[row, ceiling] = 0.1
                out.lengths[row] += 1


class OnePastTheEnd(CopyProposer):
    """Takes the vocabulary size itself for an id."""

    def guess(self, slot: int, history: list[int]) -> list[int]:
        return [self.context.vocab_size] if history else []


class DraftsSeparators(CopyProposer):
    """Copies separators along with the text."""

    def _readable(self, tokens: list[int]) -> list[int]:
        return tokens


class CrossesSeparators(CopyProposer):
    """Leaves separators out and goes on behind them."""

    def _readable(self, tokens: list[int]) -> list[int]:
        return [token for token in tokens if token >= 0]


class StaleSlot(CopyProposer):
    """A request that takes over a slot finds the text of the one before it."""

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        old = self.stale.get(slot, [])
        super().start(slot, request, history)
        self.histories[slot] = old + self.histories[slot]

    def finish(self, slot: int, keep: bool) -> None:
        self.stale[slot] = list(self.histories[slot])
        super().finish(slot, keep)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.stale: dict[int, list[int]] = {}


class KeepsUnkept(CopyProposer):
    """Keeps the text of requests that asked to be forgotten."""

    def finish(self, slot: int, keep: bool) -> None:
        super().finish(slot, keep=True)


class IgnoresNamespaces(CopyProposer):
    """One store for all tenants."""

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        super().start(slot, replace(request, namespace=""), history)


class SharesSilently(CopyProposer):
    """Shares text between requests without saying so."""

    capabilities = Capabilities(shares_requests=False)


class PeeksAtNeighbours(CopyProposer):
    """Copies from requests that still run, of whatever namespace."""

    def guess(self, slot: int, history: list[int]) -> list[int]:
        neighbours = [t for s, text in sorted(self.histories.items()) if s != slot for t in text]
        return super().guess(slot, [*neighbours, *history])


class DependsOnRow(CopyProposer):
    """Takes the number of the row for that of the slot."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        rows = np.arange(len(slots), dtype=np.int32)
        known = np.array(
            [r if r in self.histories else s for r, s in zip(rows, slots, strict=True)]
        )
        super().propose(known, ceilings, out)


class DependsOnBatch(CopyProposer):
    """Shares a fixed number of tokens out over the rows of the batch."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        share = np.minimum(ceilings, 4 // max(1, len(slots)))
        super().propose(slots, share, out)


class UsesGlobalGenerator(CopyProposer):
    """Breaks ties with the global random generator."""

    def guess(self, slot: int, history: list[int]) -> list[int]:
        return super().guess(slot, history)[: int(np.random.randint(1, 4))]


class CountsCalls(CopyProposer):
    """Depends on how often the class was used before in this process."""

    calls = itertools.count()

    def guess(self, slot: int, history: list[int]) -> list[int]:
        return super().guess(slot, history)[: next(self.calls) % 3]


class KeepsReference(CopyProposer):
    """Holds on to the array of the history instead of copying it."""

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        super().start(slot, request, history)
        self.given[slot] = history

    def guess(self, slot: int, history: list[int]) -> list[int]:
        begun = self.given[slot].tolist()
        return super().guess(slot, begun + history[len(begun) :])

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.given: dict[int, TokenArray] = {}


class SpoilsCeilings(CopyProposer):
    """Uses its argument as a scratch pad."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, ceilings, out)
        ceilings -= out.lengths


class RecordsDrafts(CopyProposer):
    """Takes its own drafts for text, accepted or not."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, ceilings, out)
        for row, slot in enumerate(slots.tolist()):
            self.histories[slot] += out.tokens[row, : out.lengths[row]].tolist()


class NeedsHistory(CopyProposer):
    """Fails on a request without a prompt."""

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        assert history[-1] is not None
        super().start(slot, request, history)


class NeedsRows(CopyProposer):
    """Fails on a batch without rows."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, np.minimum(ceilings, ceilings.max()), out)


class OnlyTheFirstSlots(CopyProposer):
    """Its table has one slot too few."""

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        if slot == self.context.max_requests - 1:
            raise IndexError("slot out of range")
        super().start(slot, request, history)


class OverrunsContext(CopyProposer):
    """Reads one token past the end of a full context."""

    def observe(self, observed: Observed) -> None:
        super().observe(observed)
        for slot in observed.slots.tolist():
            np.zeros(self.context.max_length)[len(self.histories[slot])]


class OnlyEverShorter(CopyProposer):
    """Never drafts more than what was accepted last: after one bad round, nothing ever again."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.cap: dict[int, int] = {}
        self.last: dict[int, list[int]] = {}

    def observe(self, observed: Observed) -> None:
        for row, slot in enumerate(observed.slots.tolist()):
            new = observed.tokens[observed.offsets[row] : observed.offsets[row + 1]].tolist()
            if self.last.get(slot):
                pairs = zip(self.last[slot], new, strict=False)
                kept = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
                self.cap[slot] = min(self.cap.get(slot, 99), kept)
        super().observe(observed)

    def guess(self, slot: int, history: list[int]) -> list[int]:
        self.last[slot] = super().guess(slot, history)[: self.cap.get(slot, 99)]
        return self.last[slot]


class Leaks(CopyProposer):
    """Keeps a little of every request for ever."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.log: list[list[int]] = []

    def finish(self, slot: int, keep: bool) -> None:
        self.log.append(list(self.histories[slot]))
        super().finish(slot, keep)


@dataclass(frozen=True)
class BudgetSettings:
    """One option, which nobody looks at."""

    store_mb: float = option(1.0, minimum=0.0, help="Memory for finished requests, in MB.")


class IgnoresBudget(CopyProposer):
    """Has a budget and does not keep to it."""

    Settings = BudgetSettings

    def __init__(self, context: Context, settings: BudgetSettings) -> None:
        super().__init__(context)


class RisingSurvival(CopyProposer):
    """Deeper tokens are said to be more likely to be accepted."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, ceilings, out)
        out.survival[:] = np.linspace(0.1, 0.9, out.survival.shape[1])


class MisplacedParents(CopyProposer):
    """A tree in which a node names itself as its parent."""

    capabilities = Capabilities(trees=True, shares_requests=True)

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, ceilings, out)
        assert out.parents is not None
        out.parents[:] = np.arange(out.parents.shape[1])


class WritesOutside(CopyProposer):
    """Writes one row too many, as compiled code without bounds checks can."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, ceilings, out)
        rows, width = out.tokens.shape
        beyond = np.lib.stride_tricks.as_strided(out.tokens, (rows + 1, width), out.tokens.strides)
        beyond[rows, 0] = 0


#: The draft model of the sampled ones: peaked, so that some draws are unlikely.
MODEL = MarkovTarget(np.array([0.7, 0.3]))


def _model_of(context: Context) -> MarkovTarget:
    weights = np.arange(context.vocab_size, 0, -1.0)
    return MarkovTarget(weights / weights.sum())


class _Drawn(SampledProposer):
    def __init__(self, context: Context) -> None:
        super().__init__(context, _model_of(context), lambda law: 0)


class DropsUnlikelyDraws(_Drawn):
    """The classic mistake: draws a token, finds it unlikely, and does not draft it."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        super().propose(slots, ceilings, out)
        for row, length in enumerate(out.lengths.tolist()):
            unlikely = np.flatnonzero(out.tokens[row, :length] != 0)
            if len(unlikely):
                out.lengths[row] = unlikely[0]


class ReportsAnotherLaw(_Drawn):
    """Draws from its model at a temperature, and reports the model's law."""

    def draft_law(self, history: list[int]) -> ProbArray:
        return super().draft_law(history)

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
        super().__init__(context, _model_of(context), lambda law: 0, (-1, -1), replacement=True)


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


#: Which check must catch which of them, and which words its message must have.
CAUGHT: dict[Callable[..., Any], tuple[str, str]] = {
    TooLong: ("valid_drafts", "wrote 1 tokens, but the ceiling is 0"),
    OnePastTheEnd: ("valid_drafts", "drafted the id 6 at position 0"),
    DraftsSeparators: ("valid_drafts", "drafted the id -1"),
    SpoilsCeilings: ("valid_drafts", "changed its argument 'ceilings'"),
    RisingSurvival: ("valid_drafts", "of its parent"),
    MisplacedParents: ("valid_drafts", "the parent of node 0 is 0"),
    WritesOutside: ("valid_drafts", "wrote outside of its buffers: ['tokens']"),
    ReportsNoLaw: ("valid_drafts", "is no distribution"),
    NeedsHistory: ("empty_history", "IndexError"),
    NeedsRows: ("nothing_asked", "zero-size array"),
    OnlyTheFirstSlots: ("all_slots", "slot out of range"),
    OverrunsContext: ("full_context", "IndexError"),
    Leaks: ("no_leak", "finish(slot, keep=False) must free everything"),
    IgnoresBudget: ("memory_budget", "with store_mb = 0.1"),
    OnlyEverShorter: ("recovery", "never recovers"),
    UsesGlobalGenerator: ("deterministic", "two fresh proposers were told the same"),
    CountsCalls: ("deterministic", "two fresh proposers were told the same"),
    DependsOnRow: ("row_order", "only the order of the rows differed"),
    DependsOnBatch: ("batch_composition", "in a batch of the slots"),
    KeepsReference: ("copies_input", "the caller reused its arrays"),
    RecordsDrafts: ("rollback", "rejected tokens were taken for text"),
    CrossesSeparators: ("separators", "it was copied across the separator"),
    StaleSlot: ("forgets_unkept", "a request that had ended with keep=False"),
    KeepsUnkept: ("forgets_unkept", "a request that had ended with keep=False"),
    IgnoresNamespaces: ("namespaces", "a kept request of another namespace"),
    PeeksAtNeighbours: ("namespaces", "a running request of another namespace"),
    SharesSilently: ("sharing_is_declared", "a kept request"),
    DropsUnlikelyDraws: ("output_law", "differs from plain decoding"),
    ReportsAnotherLaw: ("output_law", "differs from plain decoding"),
    SortsSiblings: ("output_law", "differs from plain decoding"),
    DropsRepeatedSiblings: ("output_law", "differs from plain decoding"),
    ForgetsReplacement: ("output_law", "differs from plain decoding"),
}
