"""A proposer made of several: each drafts by itself, the draft that promises most is taken."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specplug.errors import InvalidRequestError
from specplug.index.rest import WARM_CALLS
from specplug.kernels import contest as kernels
from specplug.kernels.forms import as_kernel_array
from specplug.protocols import Proposer
from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
    allocate_drafts,
)

log = logging.getLogger("specplug")


def new_contest(context: Context, sources: int) -> kernels.Contest:
    """Nothing seen yet; every source is trusted and asked at every step."""
    n, width = context.max_requests, context.max_draft
    record = np.zeros((sources, 3))
    record[:, kernels.PAUSE] = 1.0
    return kernels.Contest(
        np.zeros((n, sources, width), np.int32),
        np.full((n, sources, 3), -1, np.int64),
        np.tile(np.array([0, -1, -1], np.int64), (n, 1)),
        np.zeros((sources, 3, kernels.BINS, 2)),
        np.zeros((n, sources)),
        record,
        np.array([40.0, 20.0]),
    )


class ContestProposer:
    """A :class:`~specplug.protocols.Proposer` over others that draft chains. Not thread-safe.

    A source that brings nothing is asked less and less, down to every 64th step of a request; as soon as it brings
    something it is asked more often again. The first source is always asked. A source that raises is left out from then
    on; the others go on.

    Args:
        context: limits of the engine process.
        sources: name and proposer, the most trusted one first.
        cost: of a draft token, in plain decoding steps.
    """

    def __init__(
        self, context: Context, sources: Sequence[tuple[str, Proposer]], cost: float
    ) -> None:
        self.context, self.cost = context, float(cost)
        shared = any(source.capabilities.shares_requests for _, source in sources)
        self.capabilities = Capabilities(shares_requests=shared)
        self.names = [name for name, _ in sources]
        self.sources: list[Proposer | None] = [source for _, source in sources]
        self.state = new_contest(context, len(sources))
        n, width = context.max_requests, context.max_draft
        self._offers = kernels.Offers(
            np.zeros((len(sources), n, width), np.int32),
            np.zeros((len(sources), n, width)),
            np.zeros((len(sources), n), np.int32),
        )
        self._spare = allocate_drafts(n, width)
        self.asked = np.zeros(len(sources), np.int64)
        self.won = np.zeros(len(sources), np.int64)
        self._number_sources()
        _warm_up()

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        self.state.slots[slot] = (0, -1, -1)
        for number, source in enumerate(self.sources):
            if source is not None:
                with _Guard(self, number):
                    source.start(slot, request, history)

    def observe(self, observed: Observed) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        slots = as_kernel_array(observed.slots, np.int32)
        self._check_slots(slots)
        kernels.judge_drafts(
            self.state,
            slots,
            as_kernel_array(observed.offsets, np.int64),
            as_kernel_array(observed.tokens, np.int32),
            self.cost,
        )
        for number, source in enumerate(self.sources):
            if source is not None:
                with _Guard(self, number):
                    source.observe(observed)

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        slots = as_kernel_array(slots, np.int32)
        self._check_slots(slots)
        rows = len(slots)
        offers = self._offers
        offers.lengths[:, :rows] = -1
        for number, source in enumerate(self.sources):
            if source is not None:
                with _Guard(self, number):
                    self._ask(number, source, slots, ceilings)
        # A ceiling may be wider than what this step's buffers hold.
        np.minimum(offers.lengths, out.tokens.shape[1], out=offers.lengths)
        kernels.choose(
            *(self.state, slots, offers, self.cost, (out.tokens, out.survival, out.lengths))
        )
        winners = self.state.slots[slots, kernels.WINNER]
        self.won += np.bincount(winners[winners >= 0], minlength=len(self.names))
        self.draft_sources[slots] = self._first_name[winners][:, None]
        for number, inner in self._inner_sources:
            taken = slots[winners == number]
            self.draft_sources[taken] += inner[taken]

    def finish(self, slot: int, keep: bool) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        for number, source in enumerate(self.sources):
            if source is not None:
                with _Guard(self, number):
                    source.finish(slot, keep)

    def set_verify_cost(self, cost: float) -> None:
        """What verifying one more draft token costs from now on, for the choice and for every source that asks."""
        self.cost = float(cost)
        for number, source in enumerate(self.sources):
            tell = getattr(source, "set_verify_cost", None)
            if tell is not None:
                with _Guard(self, number):
                    tell(cost)

    def close(self) -> None:
        """The engine shuts down: every source that keeps something saves it."""
        for number, source in enumerate(self.sources):
            end = getattr(source, "close", None)
            if end is not None:
                with _Guard(self, number):
                    end()

    def state_digest(self) -> bytes:
        """Of all that later drafts depend on, sources included, for :mod:`specplug.checksum`."""
        digest = hashlib.sha256()
        for array in self.state:
            digest.update(array.tobytes())
        for source in self.sources:
            part = getattr(source, "state_digest", None)
            digest.update(b"-" if part is None else part())
        return digest.digest()

    def counts(self) -> dict[str, dict[str, float]]:
        """By source: request-steps in which it was asked and in which its draft was taken, and its pause now."""
        pauses = self.state.record[:, kernels.PAUSE].tolist()
        rows = zip(self.names, self.asked.tolist(), self.won.tolist(), pauses, strict=True)
        return {name: {"asked": a, "taken": t, "pause": p} for name, a, t, p in rows}

    def _number_sources(self) -> None:
        """Number the names of all sources, a source of several texts under the names that it has for them."""
        n, width = self.context.max_requests, self.context.max_draft
        self.source_names: tuple[str, ...] = ()
        #: By slot, where each token of the last draft came from: uint8 ``[max_requests, max_draft]``.
        self.draft_sources = np.zeros((n, width), np.uint8)
        self._inner_sources: list[tuple[int, NDArray[np.uint8]]] = []
        first = []
        for number, (name, source) in enumerate(zip(self.names, self.sources, strict=True)):
            first.append(len(self.source_names))
            parts = tuple(getattr(source, "source_names", ()))
            inner = getattr(source, "draft_sources", None)
            if len(parts) > 1 and inner is not None:
                self._inner_sources.append((number, inner))
            self.source_names += parts if len(parts) > 1 and inner is not None else (name,)
        # Row -1 stands for no winner, whose draft is empty.
        self._first_name = np.array([*first, 0], np.uint8)

    def _ask(self, number: int, source: Proposer, slots: IntArray, ceilings: IntArray) -> None:
        """The offers of one source for the rows whose turn it is; a function of each row's own past."""
        offers, rows = self._offers, len(slots)
        pause = int(self.state.record[number, kernels.PAUSE])
        due = np.flatnonzero(self.state.slots[slots, kernels.STEPS] % pause == 0)
        if not len(due):
            return
        self.asked[number] += len(due)
        if len(due) == rows:
            part = DraftBuffers(
                *(offers.tokens[number, :rows], offers.lengths[number, :rows]),
                offers.survival[number, :rows],
            )
            part.lengths[:] = 0
            source.propose(slots, ceilings, part)
            return
        spare = self._spare
        part = DraftBuffers(
            spare.tokens[: len(due)], spare.lengths[: len(due)], spare.survival[: len(due)]
        )
        part.lengths[:] = 0
        source.propose(slots[due], np.asarray(ceilings)[due], part)
        offers.tokens[number, due], offers.lengths[number, due] = part.tokens, part.lengths
        offers.survival[number, due] = part.survival

    def _check_slots(self, slots: IntArray) -> None:
        # Kernels do not check bounds.
        for slot in slots.tolist():
            if not 0 <= slot < self.context.max_requests:
                raise InvalidRequestError(
                    f"slot must be 0 .. {self.context.max_requests - 1}, got {slot}"
                )


class _Guard:
    """Leaves a source out once it has raised, unless it is the only one left: then the session handles it."""

    def __init__(self, contest: ContestProposer, number: int) -> None:
        self._contest, self._number = contest, number

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        if kind is None or not issubclass(kind, Exception) or issubclass(kind, InvalidRequestError):
            return False
        contest = self._contest
        left = sum(source is not None for source in contest.sources)
        if left <= 1:
            return False
        log.exception(
            "specplug: source %r failed and is left out; answers are not affected",
            contest.names[self._number],
        )
        contest.sources[self._number] = None
        contest._offers.lengths[self._number] = -1
        return True


@functools.cache
def _warm_up() -> None:
    """Compile the kernels before a request waits."""
    context = Context(vocab_size=2, max_length=8, max_draft=2, max_requests=1)
    state = new_contest(context, 2)
    slots = np.zeros(1, np.int32)
    offers = kernels.Offers(
        np.zeros((2, 1, 2), np.int32), np.ones((2, 1, 2)), np.ones((2, 1), np.int32)
    )
    out = allocate_drafts(1, 2)
    buffers = (out.tokens, out.survival, out.lengths)
    offsets, token = np.array([0, 1], np.int64), np.zeros(1, np.int32)
    for _ in range(WARM_CALLS):
        kernels.choose(state, slots, offers, 0.1, buffers)
        kernels.judge_drafts(state, slots, offsets, token, 0.1)
