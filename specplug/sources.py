"""How the drafts of each source fare: drafted and accepted tokens by source and position, counted at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.types import ROOT, Context, IntArray

#: Name of the only source of a proposer that names none.
UNNAMED = ("unnamed",)
#: Positions that are told apart; the last stands for all behind it too.
POSITIONS = 16
#: Batches of at least so many rows are counted with array operations, which take 15 us for one row or for a hundred.
_MANY = 6


class DraftSources:
    """Counts by source. A proposer that drafts from several texts says which by two optional attributes:

    * ``source_names``, a tuple of strings;
    * ``draft_sources``, uint8 ``[max_requests, max_draft]``: by slot, which of them each token (or node) of the last
      draft came from. One array for the life of the proposer; not needed where there is one name.

    Attributes:
        names: of the sources.
        drafted, accepted: float64 ``[S, P]``, tokens by source and position (depth, in a tree).
    """

    def __init__(self, proposer: object, context: Context) -> None:
        names = tuple(map(str, getattr(proposer, "source_names", ()) or ()))
        array = getattr(proposer, "draft_sources", None)
        if len(names) > 1 and not _fits(array, context):
            names = ()
        self.names = names or UNNAMED
        self._of: NDArray[np.uint8] | None = array if len(self.names) > 1 else None
        self._width = min(context.max_draft, POSITIONS)
        shape = (len(self.names), self._width)
        self.drafted, self.accepted = np.zeros(shape), np.zeros(shape)
        # One cell is reached in a third of the time by a view of plain memory.
        self._drafted = self.drafted.data.cast("B").cast("d")
        self._accepted = self.accepted.data.cast("B").cast("d")
        # Place of each position within a row of the two tables.
        self._place = np.minimum(np.arange(context.max_draft), self._width - 1)

    @property
    def by_slot(self) -> NDArray[np.uint8] | None:
        """The proposer's array of sources; None where all drafts are of one, and for an array that kernels cannot take.

        They are compiled for contiguous, writable arrays; any other would be compiled for in the middle of a request.
        """
        return self._of if self._of is not None and self._of.flags.carray else None

    def count_drafted(
        self, slots: Sequence[int], lengths: Sequence[int], parents: IntArray | None = None
    ) -> None:
        """Drafts that go to the engine, with ``parents`` int32 ``[B, K]`` for trees. O(B K)."""
        if parents is not None:
            self._count_trees(slots, lengths, parents)
        else:
            self._count(self.drafted, self._drafted, slots, lengths)

    def count_accepted(self, slots: Sequence[int], accepted: Sequence[int]) -> None:
        """How many tokens of the last drafts of these slots were accepted. O(B K)."""
        self._count(self.accepted, self._accepted, slots, accepted)

    def count_path(self, slot: int, nodes: list[int]) -> None:
        """These nodes of the last tree of ``slot`` were accepted, from the root down."""
        most, last = len(self.names) - 1, self._width - 1
        for depth, node in enumerate(nodes):
            source = min(int(self._of[slot, node]), most) if self._of is not None else 0
            self.accepted[source, min(depth, last)] += 1.0

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Drafted and accepted tokens by source."""
        sums = zip(
            self.drafted.sum(axis=1).tolist(), self.accepted.sum(axis=1).tolist(), strict=True
        )
        return {
            name: {"drafted": int(drafted), "accepted": int(accepted)}
            for name, (drafted, accepted) in zip(self.names, sums, strict=True)
        }

    def _count(
        self,
        table: NDArray[np.float64],
        flat: memoryview[float],
        slots: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        if len(slots) < _MANY:
            for slot, length in zip(slots, lengths, strict=True):
                if length:
                    self._count_row(table, flat, slot, length)
            return
        known = np.arange(max(lengths)) < np.array(lengths)[:, None]
        cells = np.broadcast_to(self._place[: known.shape[1]], known.shape)[known]
        if self._of is not None:
            sources = self._of[np.array(slots), : known.shape[1]][known]
            cells = cells + self._width * np.minimum(sources, len(self.names) - 1)
        table += np.bincount(cells, minlength=table.size).reshape(table.shape)

    def _count_row(
        self, table: NDArray[np.float64], cells: memoryview[float], slot: int, length: int
    ) -> None:
        """Count one draft; ``cells`` are those of ``table``, of which one is reached in a third of the time."""
        most, last = len(self.names) - 1, self._width - 1
        if self._of is None:
            table[0, :length] += 1.0
            table[0, last] += max(0, length - self._width)
            return
        for place, source in enumerate(self._of[slot, :length].tolist()):
            first = source if source < most else most
            cells[first * self._width + (place if place < last else last)] += 1.0

    def _count_trees(self, slots: Sequence[int], lengths: Sequence[int], parents: IntArray) -> None:
        most, last = len(self.names) - 1, self._width - 1
        for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
            depths: list[int] = []
            for node, parent in enumerate(parents[row, :length].tolist()):
                source = min(int(self._of[slot, node]), most) if self._of is not None else 0
                depths.append(0 if parent == ROOT else depths[parent] + 1)
                self.drafted[source, min(depths[-1], last)] += 1.0


def _fits(array: Any, context: Context) -> bool:
    return (
        isinstance(array, np.ndarray)
        and array.dtype == np.uint8
        and array.ndim == 2
        and array.shape[0] >= context.max_requests
        and array.shape[1] >= context.max_draft
    )
