"""A proposer under watch: every call is held against the protocol, before any safety net of the session.

The watch hands out buffers with a margin filled with a pattern, read-only inputs, and compares
what comes back with what :class:`specplug.protocols.Proposer` demands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.protocols import Proposer
from specplug.testing.targets import DraftRow
from specplug.types import (
    LENGTH_DTYPE,
    TOKEN_DTYPE,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
    draft_shapes,
)

#: What stands in every place of a buffer that the proposer may not touch.
PATTERN = 77

#: How far a sum of draft probabilities may be from 1.
SUM_TOLERANCE = 1e-6


class ContractError(AssertionError):
    """A proposer or controller broke its protocol; the message says which sentence of it, where and how."""


@dataclass(frozen=True)
class Proposal:
    """What one call of ``propose`` wrote for one slot."""

    slot: int
    row: DraftRow
    survival: NDArray[np.float64]

    @property
    def tokens(self) -> list[int]:
        """The draft, as a list."""
        drafted: list[int] = self.row.tokens.tolist()
        return drafted


class Watched:
    """Wraps a proposer for the session or for direct use; satisfies the protocol itself.

    Args:
        proposer: what is watched.
        context: what it was built with.
        overwrite: whether arrays that were handed in are overwritten after the call.
    """

    def __init__(self, proposer: Proposer, context: Context, overwrite: bool = True) -> None:
        self.proposer = proposer
        self._overwrite = overwrite
        self.context = context
        self.capabilities = proposer.capabilities
        self._name = type(proposer).__name__

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        """As the protocol says. The array is overwritten afterwards: what the proposer keeps it must have copied."""
        given = history.copy()
        self.proposer.start(slot, request, given)
        self._unchanged("start", "history", given, history)
        if self._overwrite:
            given[:] = PATTERN % self.context.vocab_size

    def observe(self, observed: Observed) -> None:
        """As the protocol says, with arrays that are overwritten afterwards."""
        given = Observed(observed.slots.copy(), observed.offsets.copy(), observed.tokens.copy())
        self.proposer.observe(given)
        for name in Observed._fields:
            self._unchanged("observe", name, getattr(given, name), getattr(observed, name))
        if self._overwrite:
            given.tokens[:] = PATTERN % self.context.vocab_size

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """As the protocol says; raises :class:`ContractError` where the proposer does not keep to it."""
        for proposal, index in zip(self.ask(slots, ceilings), range(len(slots)), strict=True):
            length = len(proposal.tokens)
            out.lengths[index] = length
            out.survival[index, :length] = proposal.survival
            for name in ("tokens", "parents", "draft_probs"):
                written, target = getattr(proposal.row, name), getattr(out, name)
                if target is not None:
                    target[index, :length] = written

    def finish(self, slot: int, keep: bool) -> None:
        """As the protocol says."""
        self.proposer.finish(slot, keep)

    def ask(self, slots: IntArray, ceilings: IntArray) -> list[Proposal]:
        """Call ``propose`` with guarded buffers, one draft per slot, each checked."""
        width = self.context.max_draft
        guarded = _Guarded(len(slots), width, self.context, self.capabilities)
        given = slots.copy(), ceilings.copy()
        self.proposer.propose(given[0], given[1], guarded.inner)
        self._unchanged("propose", "slots", given[0], slots)
        self._unchanged("propose", "ceilings", given[1], ceilings)
        touched = guarded.touched()
        if touched:
            raise ContractError(f"{self._name}.propose wrote outside of its buffers: {touched}")
        return [
            self._checked(guarded.inner, row, int(slot), int(ceiling))
            for row, (slot, ceiling) in enumerate(zip(slots, ceilings, strict=True))
        ]

    def _checked(self, out: DraftBuffers, row: int, slot: int, ceiling: int) -> Proposal:
        length = int(out.lengths[row])
        where = f"{self._name}.propose, row {row} (slot {slot})"
        if not 0 <= length <= ceiling:
            raise ContractError(f"{where}: wrote {length} tokens, but the ceiling is {ceiling}")
        tokens = out.tokens[row, :length].copy()
        foreign = np.flatnonzero((tokens < 0) | (tokens >= self.context.vocab_size))
        if len(foreign):
            raise ContractError(
                f"{where}: drafted the id {tokens[foreign[0]]} at position {foreign[0]}, but the vocabulary "
                f"has the ids 0 to {self.context.vocab_size - 1}"
            )
        parents = None if out.parents is None else out.parents[row, :length].copy()
        laws = None if out.draft_probs is None else out.draft_probs[row, :length].copy()
        survival = out.survival[row, :length].copy()
        self._check_parents(where, parents)
        self._check_survival(where, survival, parents)
        self._check_laws(where, tokens, laws)
        return Proposal(slot, DraftRow(tokens, parents, laws), survival)

    def _check_parents(self, where: str, parents: IntArray | None) -> None:
        for node, parent in enumerate([] if parents is None else parents.tolist()):
            if not -1 <= parent < node:
                raise ContractError(
                    f"{where}: the parent of node {node} is {parent}, expected -1 (the last committed token) "
                    f"or a node before {node}"
                )

    def _check_survival(
        self, where: str, survival: NDArray[np.float64], parents: IntArray | None
    ) -> None:
        for node, value in enumerate(survival.tolist()):
            if not 0.0 <= value <= 1.0:
                raise ContractError(f"{where}: survival[{node}] is {value}, expected 0 to 1")
            parent = node - 1 if parents is None else int(parents[node])
            if parent >= 0 and value > survival[parent] * (1.0 + 1e-9):
                raise ContractError(
                    f"{where}: survival[{node}] is {value}, more than {survival[parent]} of its parent "
                    f"{parent}; it is the probability that a token and all before it are accepted"
                )

    def _check_laws(self, where: str, tokens: TokenArray, laws: NDArray[np.float64] | None) -> None:
        for position, law in enumerate([] if laws is None else list(laws)):
            if (
                not np.isfinite(law).all()
                or (law < 0.0).any()
                or abs(law.sum() - 1) > SUM_TOLERANCE
            ):
                raise ContractError(
                    f"{where}: draft_probs[{position}] is no distribution: {_short(law)}"
                )
            if law[tokens[position]] == 0.0:
                raise ContractError(
                    f"{where}: drafted {tokens[position]} at position {position}, which has probability 0 in "
                    f"draft_probs: {_short(law)}"
                )

    def _unchanged(self, method: str, name: str, now: NDArray[Any], before: NDArray[Any]) -> None:
        if not np.array_equal(now, before):
            raise ContractError(
                f"{self._name}.{method} changed its argument {name!r}: it was {before.tolist()}, now it is "
                f"{now.tolist()}"
            )


class _Guarded:
    """Draft buffers as views into larger arrays, whose margin must keep its pattern."""

    def __init__(self, rows: int, width: int, context: Context, capabilities: Any) -> None:
        shapes = draft_shapes(rows, width, context.vocab_size, capabilities)
        self._outer: dict[str, NDArray[Any]] = {}
        views: dict[str, NDArray[Any]] = {}
        for name, (shape, dtype) in shapes.items():
            # Margins before and behind the rows: a view of whole rows stays contiguous.
            outer = np.full((shape[0] + 2, *shape[1:]), PATTERN, dtype)
            self._outer[name] = outer
            views[name] = outer[1:-1]
        views["lengths"][:] = 0
        self.inner = DraftBuffers(**views)

    def touched(self) -> list[str]:
        return [
            name
            for name, outer in self._outer.items()
            if (outer[0] != PATTERN).any() or (outer[-1] != PATTERN).any()
        ]


def ask_one(watched: Watched, slot: int, ceiling: int) -> list[int]:
    """The draft of a single slot."""
    slots, ceilings = np.array([slot], LENGTH_DTYPE), np.array([ceiling], LENGTH_DTYPE)
    return watched.ask(slots, ceilings)[0].tokens


def tell(watched: Watched, news: Iterable[tuple[int, Iterable[int]]]) -> None:
    """Observe tokens of several slots, given as pairs of a slot and its new tokens."""
    pairs = [(slot, list(tokens)) for slot, tokens in news]
    offsets = np.zeros(len(pairs) + 1, np.int64)
    np.cumsum([len(tokens) for _, tokens in pairs], out=offsets[1:])
    watched.observe(
        Observed(
            np.array([slot for slot, _ in pairs], LENGTH_DTYPE),
            offsets,
            np.array([token for _, tokens in pairs for token in tokens], TOKEN_DTYPE),
        )
    )


def _short(law: NDArray[np.float64]) -> str:
    shown = np.array2string(law[:8], precision=4)
    return f"{shown}{' ...' if len(law) > 8 else ''} (sum {law.sum():.6g})"
