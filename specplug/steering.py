"""What the session does with a controller: plans within the limits, cuts drafts, and tells how they fared."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
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

#: Up to so many rows, a loop in Python over lists takes less time than array operations.
FEW_ROWS = 8

#: Bounds of the verification cost that proposers are told.
LEAST_COST, MOST_COST = 0.002, 0.2


class Offer(NamedTuple):
    """What was drafted for a request in a step.

    Attributes:
        tokens: all that the proposer wrote.
        parents: of the nodes that went to the engine, if it is a tree, or None.
        verified: how many of the tokens went to the engine; the rest was cut.
    """

    tokens: list[int]
    parents: list[int] | None
    verified: int


class Place(NamedTuple):
    """Arrays for the slots of some rows and for where their tokens begin and end; and the same as plain memory."""

    slots: IntArray
    offsets: NDArray[np.int64]
    slot_cells: memoryview[int]
    ends: memoryview[int]


class Places(dict[int, Place]):
    """By number of rows; the same arrays at each step: a proposer may know by that where they lie."""

    def __missing__(self, rows: int) -> Place:
        slots, offsets = np.zeros(rows, LENGTH_DTYPE), np.zeros(rows + 1, np.int64)
        self[rows] = made = Place(slots, offsets, slots.data, offsets.data)
        return made


def accepted_tokens(draft: TokenArray, parents: IntArray | None, emitted: TokenArray) -> int:
    """How many of the ``emitted`` tokens the draft had foreseen, from the first one on without a gap.

    Args:
        draft: int32 ``[n]``, a chain, or the nodes of a tree whose ``parents`` are given.
        parents: int32 ``[n]`` or None.
        emitted: int32 ``[m]``, without the token that the target added itself.
    """
    if parents is None:
        return agreement(draft.tolist(), emitted.tolist(), min(len(draft), len(emitted)))
    return len(accepted_path(draft.tolist(), parents.tolist(), emitted.tolist()))


def agreement(ours: Sequence[int], theirs: Sequence[int], most: int) -> int:
    """How many of the first ``most`` tokens are the same in both, up to the first that is not."""
    for place in range(most):
        if ours[place] != theirs[place]:
            return place
    return most


def accepted_path(
    draft: Sequence[int], parents: Sequence[int], emitted: Sequence[int]
) -> list[int]:
    """The nodes of a tree that the ``emitted`` tokens pass, from the root down; see :func:`accepted_tokens`."""
    path: list[int] = []
    node = ROOT
    for token in emitted:
        # Parents stand before their children.
        children = range(node + 1, len(parents))
        node = next((c for c in children if parents[c] == node and draft[c] == token), ROOT)
        if node == ROOT:
            break
        path.append(node)
    return path


def clip_lengths(values: IntArray, most: IntArray) -> None:
    """Bring ``values`` into ``0 .. most``."""
    if len(values) <= FEW_ROWS:
        for value, limit in zip(values.tolist(), most.tolist(), strict=True):
            if not 0 <= value <= limit:
                break
        else:
            return
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
        self._take(controller)
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

    def _take(self, controller: Controller) -> None:
        self.controller = controller
        self._learns = bool(getattr(controller, "learns", True))
        self._price: Callable[[], float] | None = getattr(controller, "verify_cost", None)

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
        if self._price is None:
            return
        tell = getattr(proposer, "set_verify_cost", None)
        if tell is None:
            return
        try:
            tell(min(max(0.5 * self._price(), LEAST_COST), MOST_COST))
        except Exception:  # a hint is worth no request, whoever it is that fails
            if self._raise:
                raise
            self.faults += 1

    def trim(self, slots: IntArray, out: DraftBuffers) -> tuple[list[int], list[int]]:
        """Let the controller shorten the drafts; returns how long they were, and how long they are."""
        offered = left = out.lengths.tolist()
        if self._trimming is not None:
            if not self._guarded("trim", slots, out.survival, out.lengths):
                out.lengths[:] = 0
            clip_lengths(out.lengths, np.array(offered, LENGTH_DTYPE))
            left = out.lengths.tolist()
        if self.sources is not None:
            self.sources.count_drafted(slots.tolist(), left, out.parents)
        return offered, left

    def judge(self, judged: list[tuple[int, Offer, list[int]]]) -> int:
        """Tell the controller about slots, what was offered and what was emitted; returns accepted draft tokens."""
        fared: list[tuple[int, int, int]] = []
        compared: list[tuple[int, int, int]] = []
        paths: list[tuple[int, list[int]]] = []
        for slot, offer, new in judged:
            # The target's own token judges the next position of the offer, although it was not verified.
            reach = min(len(offer.tokens), len(new))
            agreed = agreement(offer.tokens, new, reach)
            if offer.verified:
                accepted = min(agreed, offer.verified, len(new) - 1)
                if offer.parents is not None:
                    path = accepted_path(offer.tokens, offer.parents, new[:-1])
                    paths.append((slot, path))
                    accepted = len(path)
                fared.append((slot, offer.verified, accepted))
            compared.append((slot, min(agreed + 1, reach), agreed))
        if compared and self._trimming is not None:
            self._guarded("compare", *_columns(compared))
        if fared and self._learns:
            self._guarded("observe", *_columns(fared))
        if self.sources is not None:
            if not paths:
                self.sources.count_accepted([f[0] for f in fared], [f[2] for f in fared])
            for slot, path in paths:
                self.sources.count_path(slot, path)
        return sum([accepted for _, _, accepted in fared])

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
            self._take(FixedLength(0))
            self._trimming = None
            return False
        return True


def _columns(rows: list[tuple[int, int, int]]) -> list[IntArray]:
    """As one int32 array per column."""
    return [np.array(column, LENGTH_DTYPE) for column in zip(*rows, strict=True)]
