"""Host time of the adapter per engine step, kept for the last few thousand steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class StepTimes:
    """A ring of the most recent step times, in nanoseconds in, microseconds out."""

    def __init__(self, capacity: int = 4096) -> None:
        self._ring: NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.count = 0

    def add(self, nanoseconds: int) -> None:
        """Note the time of one step."""
        self._ring[self.count % len(self._ring)] = nanoseconds
        self.count += 1

    def microseconds(self) -> NDArray[np.float64]:
        """The times kept, float64 ``[min(count, capacity)]``, in no particular order."""
        return self._ring[: min(self.count, len(self._ring))] / 1000.0

    def as_dict(self) -> dict[str, float | int | None]:
        """Steps seen, and median and 99th percentile in microseconds over those kept."""
        kept = self.microseconds()
        if not len(kept):
            return {"steps": 0, "median_us": None, "p99_us": None}
        return {
            "steps": self.count,
            "median_us": float(np.median(kept)),
            "p99_us": float(np.percentile(kept, 99)),
        }
