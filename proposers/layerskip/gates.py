"""Who decides whether one more pass is made for a batch: the controller, or a rule."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specplug.layers.policy import StopRule
from specplug.protocols import PassPlanner
from specplug.types import DraftBuffers, IntArray


class Gate(Protocol):
    """Asked in turn: :meth:`begin` once per step, then :meth:`runs` and :meth:`proposes` around each pass."""

    def begin(
        self, slots: IntArray, limits: IntArray, drafting: NDArray[np.int64], out: DraftBuffers
    ) -> None:
        """A step: int32 ``[B]`` each, and the rows that may draft by passes; ``out`` holds what text has drafted."""

    def runs(self, rows: NDArray[np.int64], place: int) -> bool:
        """Whether a pass is made for ``rows``, which have ``place`` tokens each."""

    def proposes(self, confidences: NDArray[np.float64]) -> bool:
        """Whether what came out is drafted: float64 ``[R]``; false ends the draft."""


class Ruled:
    """One rule for the batch, by the mean confidence of its rows."""

    def __init__(self, rule: StopRule) -> None:
        self._rule = rule

    def begin(
        self, slots: IntArray, limits: IntArray, drafting: NDArray[np.int64], out: DraftBuffers
    ) -> None:
        """See :class:`Gate`."""
        self._rule.begin()

    def runs(self, rows: NDArray[np.int64], place: int) -> bool:
        """See :class:`Gate`."""
        return self._rule.runs()

    def proposes(self, confidences: NDArray[np.float64]) -> bool:
        """See :class:`Gate`."""
        return self._rule.proposes(float(confidences.mean()))


class Planned:
    """The controller, which knows what steps and passes take and how each request's drafts fare."""

    def __init__(self, planner: PassPlanner) -> None:
        self._planner = planner

    def begin(
        self, slots: IntArray, limits: IntArray, drafting: NDArray[np.int64], out: DraftBuffers
    ) -> None:
        """See :class:`Gate`."""
        self._slots, self._limits, self._drafting, self._out = slots, limits, drafting, out

    def runs(self, rows: NDArray[np.int64], place: int) -> bool:
        """See :class:`Gate`."""
        out = self._out
        if place:
            places = np.searchsorted(self._drafting, rows)
            return self._planner.next_pass(places, out.survival[rows, :place])
        text = np.flatnonzero(out.lengths)
        beside = self._slots[text], out.survival[text], out.lengths[text]
        return self._planner.first_pass(self._slots[rows], self._limits[rows], beside)

    def proposes(self, confidences: NDArray[np.float64]) -> bool:
        """Always: what does not pay is cut later."""
        return True
