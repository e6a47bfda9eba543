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
#: So many drafts are counted together, with array operations that take 15 us for one draft or for a hundred.
_TOGETHER = 128


class DraftSources:
    """Counts by source. A proposer that drafts from several texts says which by two optional attributes:

    * ``source_names``, a tuple of strings;
    * ``draft_sources``, uint8 ``[max_requests, max_draft]``: by slot, which of them each token (or node) of the last
      draft came from. One array for the life of the proposer; not needed where there is one name.

    Positions are depths, in a tree.

    Attributes:
        names: of the sources.
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
        self._tables = (np.zeros(shape), np.zeros(shape))
        #: Sources of drafted and of accepted tokens that are not counted yet, one string of bytes per draft.
        self._waiting: tuple[list[bytes], list[bytes]] = ([], [])
        # Place of each position within a row of the two tables.
        self._place = np.minimum(np.arange(context.max_draft), self._width - 1)

    @property
    def drafted(self) -> NDArray[np.float64]:
        """Tokens by source and position, a view: float64 ``[S, P]``."""
        self._add_up(0)
        return self._tables[0]

    @property
    def accepted(self) -> NDArray[np.float64]:
        """Those that were accepted."""
        self._add_up(1)
        return self._tables[1]

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
            self._note(0, slots, lengths)

    def count_accepted(self, slots: Sequence[int], accepted: Sequence[int]) -> None:
        """How many tokens of the last drafts of these slots were accepted. O(B K)."""
        self._note(1, slots, accepted)

    def count_path(self, slot: int, nodes: list[int]) -> None:
        """These nodes of the last tree of ``slot`` were accepted, from the root down."""
        most, last = len(self.names) - 1, self._width - 1
        for depth, node in enumerate(nodes):
            source = min(int(self._of[slot, node]), most) if self._of is not None else 0
            self._tables[1][source, min(depth, last)] += 1.0

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Drafted and accepted tokens by source."""
        sums = zip(
            self.drafted.sum(axis=1).tolist(), self.accepted.sum(axis=1).tolist(), strict=True
        )
        return {
            name: {"drafted": int(drafted), "accepted": int(accepted)}
            for name, (drafted, accepted) in zip(self.names, sums, strict=True)
        }

    def _note(self, which: int, slots: Sequence[int], lengths: Sequence[int]) -> None:
        waiting = self._waiting[which]
        for slot, length in zip(slots, lengths, strict=True):
            if length:
                waiting.append(
                    bytes(length) if self._of is None else self._of[slot, :length].tobytes()
                )
        if len(waiting) >= _TOGETHER:
            self._add_up(which)

    def _add_up(self, which: int) -> None:
        waiting, table = self._waiting[which], self._tables[which]
        if not waiting:
            return
        sources = np.frombuffer(b"".join(waiting), np.uint8).astype(np.int64)
        places = np.concatenate([self._place[: len(draft)] for draft in waiting])
        cells = places + self._width * np.minimum(sources, len(self.names) - 1)
        table += np.bincount(cells, minlength=table.size).reshape(table.shape)
        waiting.clear()

    def _count_trees(self, slots: Sequence[int], lengths: Sequence[int], parents: IntArray) -> None:
        most, last = len(self.names) - 1, self._width - 1
        for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
            depths: list[int] = []
            for node, parent in enumerate(parents[row, :length].tolist()):
                source = min(int(self._of[slot, node]), most) if self._of is not None else 0
                depths.append(0 if parent == ROOT else depths[parent] + 1)
                self._tables[0][source, min(depths[-1], last)] += 1.0


def _fits(array: Any, context: Context) -> bool:
    return (
        isinstance(array, np.ndarray)
        and array.dtype == np.uint8
        and array.ndim == 2
        and array.shape[0] >= context.max_requests
        and array.shape[1] >= context.max_draft
    )
