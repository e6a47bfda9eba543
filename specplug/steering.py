"""What the session does with a controller: plans within the limits, cuts drafts, and tells how they fared."""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.control.fixed import FixedLength
from specplug.errors import InvalidRequestError
from specplug.protocols import Controller, TrimmingController
from specplug.sources import DraftSources
from specplug.types import (
    LENGTH_DTYPE,
    ROOT,
    Capabilities,
    DraftBuffers,
    IntArray,
    Request,
    TokenArray,
)

log = logging.getLogger("specplug")

#: Bounds of the verification cost that proposers are told.
LEAST_COST, MOST_COST = 0.002, 0.2


class Offer(NamedTuple):
    """What was drafted for a request in a step.

    Attributes:
        tokens: int32 ``[n]``, all that the proposer wrote.
        parents: int32 ``[n]`` of a tree, or None.
        verified: how many of them went to the engine; the rest was cut.
    """

    tokens: TokenArray
    parents: IntArray | None
    verified: int


class Places(dict[int, tuple[IntArray, NDArray[np.int64]]]):
    """By number of rows, arrays for their slots and for where their tokens begin and end.

    The same objects for as many rows at each step: a proposer may know by that where they lie.
    """

    def __missing__(self, rows: int) -> tuple[IntArray, NDArray[np.int64]]:
        self[rows] = made = (np.zeros(rows, LENGTH_DTYPE), np.zeros(rows + 1, np.int64))
        return made


def accepted_tokens(draft: TokenArray, parents: IntArray | None, emitted: TokenArray) -> int:
    """How many of the ``emitted`` tokens the draft had foreseen, from the first one on without a gap.

    Args:
        draft: int32 ``[n]``, a chain, or the nodes of a tree whose ``parents`` are given.
        parents: int32 ``[n]`` or None.
        emitted: int32 ``[m]``, without the token that the target added itself.
    """
    if parents is None:
        pairs = zip(draft.tolist(), emitted.tolist(), strict=False)
        return next(
            (place for place, (ours, theirs) in enumerate(pairs) if ours != theirs),
            min(len(draft), len(emitted)),
        )
    return len(accepted_path(draft, parents, emitted))


def accepted_path(draft: TokenArray, parents: IntArray, emitted: TokenArray) -> list[int]:
    """The nodes of a tree that the ``emitted`` tokens pass, from the root down; see :func:`accepted_tokens`."""
    path: list[int] = []
    node = ROOT
    for token in emitted.tolist():
        children = np.flatnonzero((parents == node) & (draft == token))
        if not len(children):
            break
        node = int(children[0])
        path.append(node)
    return path


def clip_lengths(values: IntArray, most: IntArray) -> None:
    """Bring ``values`` into ``0 .. most``; a tenth of the time of ``np.clip`` for arrays this small."""
    np.minimum(values, most, out=values)
    np.maximum(values, 0, out=values)


class Steering:
    """A controller, held to its limits; an exception in it costs the drafts from then on, never a request.

    Args:
        controller: the controller.
        capabilities: of the proposer that it steers.
        raise_faults: let exceptions through (for tests).
        sources: counts what is drafted and accepted by source.

    Raises:
        InvalidRequestError: a controller that cuts drafts, for a proposer whose drafts must not be cut.
    """

    def __init__(
        self,
        controller: Controller,
        capabilities: Capabilities,
        raise_faults: bool,
        sources: DraftSources | None = None,
    ) -> None:
        self.controller = controller
        self.sources = sources
        self.faults = 0
        self._raise = raise_faults
        self._introduced = False
        self._trimming: TrimmingController | None = None
        if getattr(controller, "trims", False):
            if capabilities.sampled or capabilities.trees:
                raise InvalidRequestError(
                    f"{type(controller).__name__} cuts drafts after they are made, which is allowed for deterministic "
                    "chains only; build it with trims=False for this proposer"
                )
            assert isinstance(controller, TrimmingController)
            self._trimming = controller
            tell = getattr(controller, "know_sources", None)
            if tell is not None and sources is not None and sources.by_slot is not None:
                tell(len(sources.names), sources.by_slot)

    def begin(self, slot: int, request: Request) -> None:
        """A request takes a slot."""
        if hasattr(self.controller, "begin"):
            self._guarded("begin", slot, request)

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        """The ceilings of a step, within 0 and ``limits`` whatever the controller writes."""
        if not self._guarded("plan", slots, limits, ceilings):
            ceilings[:] = 0
        clip_lengths(ceilings, limits)

    def hint(self, proposer: object) -> None:
        """Tell a proposer that asks for it what verifying costs, so that it need not draft what would be cut.

        Half of it: the controller decides, and what it cuts is still compared with the truth. One that drafts by passes
        is told once who plans them.
        """
        if not self._introduced:
            self._introduced = True
            use = getattr(proposer, "use_planner", None)
            if use is not None and hasattr(self.controller, "first_pass"):  # perhaps wrapped
                use(self.controller)
        tell = getattr(proposer, "set_verify_cost", None)
        price = getattr(self.controller, "verify_cost", None)
        if tell is None or price is None:
            return
        try:
            tell(min(max(0.5 * price(), LEAST_COST), MOST_COST))
        except Exception:  # a hint is worth no request, whoever it is that fails
            if self._raise:
                raise
            self.faults += 1

    def trim(self, slots: IntArray, out: DraftBuffers) -> IntArray:
        """Let the controller shorten the drafts; returns how long they were: int32 ``[B]``."""
        offered = out.lengths.copy()
        if self._trimming is not None:
            if not self._guarded("trim", slots, out.survival, out.lengths):
                out.lengths[:] = 0
            clip_lengths(out.lengths, offered)
        if self.sources is not None:
            self.sources.count_drafted(slots, out.lengths, out.parents)
        return offered

    def judge(self, judged: list[tuple[int, Offer, TokenArray]]) -> int:
        """Tell the controller about slots, what was offered and what was emitted; returns accepted draft tokens."""
        fared: list[tuple[int, int, int]] = []
        compared: list[tuple[int, int, int]] = []
        for slot, offer, new in judged:
            if offer.verified:
                draft = offer.tokens[: offer.verified]
                accepted = accepted_tokens(draft, offer.parents, new[:-1])
                fared.append((slot, offer.verified, accepted))
            if self._trimming is not None:
                # The target's own token judges the next position of the offer, although it was not verified.
                reach = min(len(offer.tokens), len(new))
                agreed = accepted_tokens(offer.tokens[:reach], None, new[:reach])
                compared.append((slot, min(agreed + 1, reach), agreed))
        if compared:
            self._guarded("compare", *np.array(compared, LENGTH_DTYPE).T.copy())
        if fared:
            slots, drafted, accepted_counts = np.array(fared, LENGTH_DTYPE).T.copy()
            self._guarded("observe", slots, drafted, accepted_counts)
            if self.sources is not None:
                self._count_accepted(slots, accepted_counts, judged)
        return sum(accepted for _, _, accepted in fared)

    def _count_accepted(
        self, slots: IntArray, accepted: IntArray, judged: list[tuple[int, Offer, TokenArray]]
    ) -> None:
        assert self.sources is not None
        trees = [(s, o, n) for s, o, n in judged if o.verified and o.parents is not None]
        if not trees:
            self.sources.count_accepted(slots, accepted)
        for slot, offer, new in trees:
            assert offer.parents is not None
            draft = offer.tokens[: offer.verified]
            self.sources.count_path(slot, accepted_path(draft, offer.parents, new[:-1]))

    def _guarded(self, method: str, *arguments: object) -> bool:
        try:
            getattr(self.controller, method)(*arguments)
        except Exception:  # whatever a controller raises, the engine must go on
            if self._raise:
                raise
            self.faults += 1
            log.exception(
                "specplug: controller %s failed in %s(); answers are not affected, "
                "but nothing is drafted from now on",
                type(self.controller).__name__,
                method,
            )
            self.controller, self._trimming = FixedLength(0), None
            return False
        return True
