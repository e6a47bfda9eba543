"""What a replay drives: a proposer by its protocol alone, or the whole session on top of it.

Anything with these methods can be replayed, so a benchmark wraps a foreign library in a driver of its own. Only
``begin``, ``step`` and ``end`` are timed; they do what an engine would wait for and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specplug.protocols import Proposer
from specplug.session import Session
from specplug.types import (
    LENGTH_DTYPE,
    TOKEN_DTYPE,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
    allocate_drafts,
)

#: ``Observed(*parts)`` in half the time, which an engine in compiled code would not spend.
_observed: Callable[[tuple[IntArray, NDArray[np.int64], TokenArray]], Observed] = partial(
    tuple.__new__, Observed
)


class Draft(NamedTuple):
    """What one step drafted for one request.

    Attributes:
        tokens: int32 ``[n]``.
        survival: float64 ``[n]``, see :class:`specplug.types.DraftBuffers`; None if the drafter gives none.
        parents: int32 ``[n]`` of a tree, or None for a chain.
    """

    tokens: TokenArray
    survival: NDArray[np.float64] | None = None
    parents: IntArray | None = None


class Driver(Protocol):
    """One drafter with one state; requests come one after the other."""

    def hold(self, tokens: TokenArray, fresh: bool) -> None:
        """These tokens come next, before the call that hands them over; with ``fresh`` they are a prompt.

        Not timed: the place for what an engine keeps anyway, such as the whole text of a request.
        """

    def begin(self, prompt: TokenArray) -> None:
        """A request with this prompt (int32 ``[n]``) starts."""

    def step(self, new: TokenArray) -> None:
        """These tokens (int32 ``[n]``, at least one) became certain; draft what follows them."""

    def draft(self) -> Draft:
        """What the last :meth:`step` drafted; valid until the next call of any method."""

    def end(self, new: TokenArray) -> None:
        """The request is over; ``new`` are its last tokens."""

    def memory(self) -> Mapping[str, int] | None:
        """Bytes and tokens of the running requests and of the shared store, as :func:`memory_of` has them."""

    def broken_invariant(self) -> str:
        """ "" if the state is sound, else a sentence; reads the whole state."""


class ProposerDriver:
    """Calls ``start``, ``observe``, ``propose`` and ``finish`` with the same buffers every time."""

    def __init__(self, proposer: Proposer, context: Context) -> None:
        self.proposer = proposer
        self._serial = 0
        self._slots = np.zeros(1, LENGTH_DTYPE)
        self._ceilings = np.full(1, context.max_draft, LENGTH_DTYPE)
        self._offsets = np.zeros(2, np.int64)
        self._out = allocate_drafts(1, context.max_draft, context.vocab_size, proposer.capabilities)
        # One number is written in half the time through a view of plain memory.
        self._end, self._length = self._offsets.data[1:], self._out.lengths.data

    def hold(self, tokens: TokenArray, fresh: bool) -> None:
        """See :class:`Driver`: a proposer copies what it keeps, so there is nothing to hold."""

    def begin(self, prompt: TokenArray) -> None:
        """See :class:`Driver`."""
        self._serial += 1
        self.proposer.start(0, Request(str(self._serial), len(prompt)), prompt)

    def step(self, new: TokenArray) -> None:
        """See :class:`Driver`."""
        self._end[0] = len(new)
        self.proposer.observe(_observed((self._slots, self._offsets, new)))
        self._length[0] = 0
        self.proposer.propose(self._slots, self._ceilings, self._out)

    def draft(self) -> Draft:
        """See :class:`Driver`."""
        return row_of(self._out)

    def end(self, new: TokenArray) -> None:
        """See :class:`Driver`."""
        self._end[0] = len(new)
        self.proposer.observe(_observed((self._slots, self._offsets, new)))
        self.proposer.finish(0, True)

    def memory(self) -> Mapping[str, int] | None:
        """See :class:`Driver`."""
        return memory_of(self.proposer)

    def broken_invariant(self) -> str:
        """See :class:`Driver`."""
        return broken_invariant_of(self.proposer)


class HeldText:
    """The text of one request in one growing array, as engines keep it."""

    def __init__(self) -> None:
        self._length = 0
        self._array = np.zeros(0, TOKEN_DTYPE)

    def hold(self, tokens: TokenArray, fresh: bool) -> None:
        """Append ``tokens`` (int32 ``[n]``), with ``fresh`` to nothing."""
        start = 0 if fresh else self._length
        end = start + len(tokens)
        if end > len(self._array):
            grown = np.zeros(2 * end, TOKEN_DTYPE)
            grown[:start] = self._array[:start]
            self._array = grown
        self._array[start:end] = tokens
        self._length = end

    @property
    def text(self) -> TokenArray:
        """All of it: int32 ``[n]``, a view."""
        return self._array[: self._length]


class SessionDriver(HeldText):
    """Goes through :class:`specplug.session.Session`, as the adapters do."""

    def __init__(self, proposer: Proposer, context: Context) -> None:
        super().__init__()
        self.session = Session(proposer, context, on_fault="raise")
        self._serial = 0
        self._out = allocate_drafts(1, context.max_draft, context.vocab_size, proposer.capabilities)

    def begin(self, prompt: TokenArray) -> None:
        """See :class:`Driver`."""
        self._serial += 1
        self.session.begin(Request(str(self._serial), len(prompt)), self.text)

    def step(self, new: TokenArray) -> None:
        """See :class:`Driver`."""
        self._out = self.session.step([str(self._serial)], [self.text])

    def draft(self) -> Draft:
        """See :class:`Driver`."""
        return row_of(self._out)

    def end(self, new: TokenArray) -> None:
        """See :class:`Driver`. Engines learn only afterwards that a request is over, so there is a last step."""
        self.step(new)
        self.session.finish(str(self._serial))

    def memory(self) -> Mapping[str, int] | None:
        """See :class:`Driver`."""
        return memory_of(self.session.proposer)

    def broken_invariant(self) -> str:
        """See :class:`Driver`."""
        return broken_invariant_of(self.session.proposer)


def row_of(out: DraftBuffers, row: int = 0) -> Draft:
    """One row of draft buffers, as views."""
    n = int(out.lengths[row])
    parents = None if out.parents is None else out.parents[row, :n]
    return Draft(out.tokens[row, :n], out.survival[row, :n], parents)


def memory_of(proposer: object) -> Mapping[str, int] | None:
    """What the optional method ``memory()`` of a proposer says; None if it has no such method.

    A mapping with ``request_bytes`` and ``request_tokens`` (of all running requests), ``store_bytes``,
    ``store_tokens`` (there now) and ``store_capacity`` (the most tokens that fit).
    """
    method = getattr(proposer, "memory", None)
    return None if method is None else method()


def broken_invariant_of(proposer: object) -> str:
    """What the optional method ``check_invariants()`` of a proposer says; "" if it has none."""
    method = getattr(proposer, "check_invariants", None)
    return "" if method is None else str(method())
