"""Proposers that are wrong in one way each. The table at the end says which check must catch each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specplug.settings import option
from specplug.testing.toys import CopyProposer
from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
)

from .broken_drawn import (
    DropsRepeatedSiblings,
    DropsUnlikelyDraws,
    ForgetsReplacement,
    ReportsAnotherLaw,
    ReportsNoLaw,
    SortsSiblings,
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


class SixteenBits(CopyProposer):
    """Stores ids in sixteen bits."""

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        packed = [int.from_bytes(int(t).to_bytes(2, "big"), "big") for t in history if t >= 0]
        super().start(slot, request, np.array(packed, np.int32))


class SmallInbox(CopyProposer):
    """Has room for sixteen new tokens per call."""

    def observe(self, observed: Observed) -> None:
        inbox = np.zeros(16, np.int32)
        inbox[: len(observed.tokens)] = observed.tokens
        super().observe(observed)


class NeverLetsGo(CopyProposer):
    """Takes a slot that was used once for one that is in use."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.used: set[int] = set()

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        if slot in self.used:
            raise RuntimeError("the slot is in use")
        self.used.add(slot)
        super().start(slot, request, history)


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
    SixteenBits: ("large_ids", "OverflowError"),
    SmallInbox: ("preemption", "could not broadcast"),
    NeverLetsGo: ("slot_reuse", "the slot is in use"),
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
