"""The last decisions of a controller, with what became of them: a ring of plain numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Why a step drafted what it did.
REASONS = (
    "plan",  # the plan that pays most
    "nothing offered",  # no proposer had anything to say
    "does not pay",  # every draft would have cost more than it was expected to bring
    "probe",  # drafted to find out
    "cautious",  # drafts cost more than predicted, lately
    "resting",  # proposing itself costs more host time than it brings
)

_NUMBERS = {reason: number for number, reason in enumerate(REASONS)}

DECISION: np.dtype[Any] = np.dtype(
    [
        ("step", np.int64),
        ("rows", np.int32),
        ("offered", np.int32),
        ("budget", np.int32),
        ("drafted", np.int32),
        ("expected", np.float64),
        ("accepted", np.int32),
        ("ratio", np.float64),
        ("predicted", np.float64),
        ("measured", np.float64),
        ("reason", np.int8),
    ]
)


class Decisions:
    """A ring buffer of :data:`DECISION`, and totals since the start.

    Attributes:
        step: decisions so far.
        totals: sums over all decisions of ``offered``, ``drafted``, ``accepted``, ``wasted``, ``expected`` (tokens),
            ``predicted`` and ``measured`` (seconds, over the steps for which both are known), ``budget`` (tokens
            that might have been drafted, by what was asked for, the caps and what the cost model knows).
        ring: the last decisions; :func:`specplug.control.live.share` moves it into a file.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self.ring = np.zeros(capacity, DECISION)
        self.ring["step"] = -1
        self.step = 0
        self._predicted = np.nan
        self.totals = {
            "offered": 0.0,
            "budget": 0.0,
            "drafted": 0.0,
            "accepted": 0.0,
            "wasted": 0.0,
            "expected": 0.0,
            "predicted": 0.0,
            "measured": 0.0,
        }
        self.reasons = [0] * len(REASONS)

    @property
    def ring(self) -> NDArray[Any]:
        """Structured array of :data:`DECISION`."""
        return self._ring

    @ring.setter
    def ring(self, ring: NDArray[Any]) -> None:
        self._ring = ring
        # Plain arrays over the same memory: writing through a memory-mapped one takes microseconds longer.
        self._rows = np.asarray(ring)
        self._accepted = self._rows["accepted"]
        self._measured = self._rows["measured"]

    def add(
        self,
        *,
        rows: int,
        offered: int,
        budget: int,
        drafted: int,
        expected: float,
        ratio: float,
        predicted: float,
        reason: str,
    ) -> None:
        """Note a decision; what it came to is added by :meth:`accepted` and :meth:`measured`."""
        number = _NUMBERS[reason]
        self._rows[self.step % len(self._rows)] = (
            self.step,
            rows,
            offered,
            budget,
            drafted,
            expected,
            0,
            ratio,
            predicted,
            np.nan,
            number,
        )
        self._predicted = predicted
        self.step += 1
        self.reasons[number] += 1
        totals = self.totals
        totals["offered"] += offered
        totals["budget"] += budget
        totals["drafted"] += drafted
        totals["expected"] += expected

    def accepted(self, tokens: int, wasted: int = 0) -> None:
        """Drafts of the last decision that were accepted, and that were not."""
        if self.step:
            self._accepted[(self.step - 1) % len(self._rows)] += tokens
            self.totals["accepted"] += tokens
            self.totals["wasted"] += wasted

    def measured(self, seconds: float) -> None:
        """How long the step took that verified the last decision."""
        if not self.step:
            return
        self._measured[(self.step - 1) % len(self._rows)] = seconds
        if math.isfinite(self._predicted):
            self.totals["predicted"] += self._predicted
            self.totals["measured"] += seconds

    def last(self, most: int | None = None) -> NDArray[Any]:
        """The newest decisions, oldest first: structured array of :data:`DECISION`."""
        count = min(self.step, len(self.ring))
        if most is not None:
            count = min(count, most)
        return self.ring[(np.arange(count) + self.step - count) % len(self.ring)]

    def as_dict(self) -> dict[str, Any]:
        """Totals and how often each reason held, as plain values."""
        counts = dict(zip(REASONS, self.reasons, strict=True))
        return {
            "decisions": self.step,
            **self.totals,
            "reasons": {reason: count for reason, count in counts.items() if count},
        }

    def write(self, path: str) -> None:
        """The ring as a CSV file with a header, for a plot or a spreadsheet."""
        from specplug.control.live import write_log

        write_log(self.last(), Path(path))
