"""Sorts the entries of a datastore: all at once where they fit in memory, else by ranges of last tokens.

The order is the same either way, and for any number of threads. Ranges do not overlap, so that threads need no locks.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.index.datastore_format import bits_for
from specplug.kernels import datastore_layout as places
from specplug.kernels.contexts import collect_entries, sort_entries
from specplug.kernels.ordering import (
    COUNTS,
    bits_above,
    deal_entries,
    order_entries,
    rank_keys,
    round_after,
    sort_runs,
)

Entries = NDArray[np.int64]
Keys = NDArray[np.uint64]
Ranks = NDArray[np.int32]
#: See :func:`specplug.kernels.ordering.rank_keys`.
How = tuple[int, int, int, int]
#: ``map``, or that of several threads.
Each = Callable[..., Iterable[Any]]

#: Bytes per entry that sorting needs: in ranges, and all at once (two numbers, two lists of runs); per token (a rank).
SORT_BYTES = 33 + 8
WHOLE_BYTES, RANK_BYTES = 16 + 8 + 4, 4
#: Entries that are worth a thread.
WORTH = 1 << 17


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def sorted_entries(
    shelf: places.Shelf, tally: places.Tally, memory: int, threads: int = 1
) -> Iterator[Entries]:
    """The entries of a corpus in their order, in parts; above the bits that a position needs may stand others.

    A part holds until the next one is asked for.

    Args:
        shelf: the section of tokens.
        tally: its entries by last token.
        memory: bytes that may be used, about; one last token is always sorted at once.
    """
    total = int(tally.starts[-1])
    tokens = int(shelf.meta[places.TOKENS])
    threads = max(1, min(threads, total // WORTH))
    at_once = total * WHOLE_BYTES + tokens * RANK_BYTES <= memory and tokens < 1 << 31
    if at_once and threads == 1:
        room = _room_for(total, tokens)
        yield _sorted_at_once(shelf, tally, room)
        if len(room.ranks) == KEPT:
            _KEPT[:] = [room]
        return
    with ThreadPoolExecutor(threads) as pool:
        if at_once:
            yield _sorted_in_parts(shelf, tally, pool.map, threads)
            return
        counts = tally.counts
        waiting: deque[Future[Entries]] = deque()
        for low, high in ranges(counts, max(1, memory // SORT_BYTES // threads)):
            if not counts[low:high].any():
                continue
            waiting.append(pool.submit(sorted_range, shelf, counts, low, high))
            if len(waiting) == threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Room(NamedTuple):
    """What sorting at once needs: 28 bytes per entry, 4 per token.

    Attributes:
        runs, left: int32 ``[n, 2]``, what is to be sorted, and what is left of it.
        ranks: int32 ``[tokens]``.
    """

    order: places.Ordering
    runs: Ranks
    left: Ranks
    ranks: Ranks


#: Room for so many tokens that a build has done with: for a small one, fresh pages would take as long as sorting.
KEPT = 1 << 16
_KEPT: list[_Room] = []


def _room_for(entries: int, tokens: int) -> _Room:
    """Room; whoever gets it has it alone. Nothing is known of what is in it."""
    size = max(entries, KEPT)
    if tokens <= KEPT:
        try:
            return _KEPT.pop()
        except IndexError:
            pass
    # There are no more buckets than entries. All in one piece, most of which then comes in pages of 2 MB.
    ends = np.cumsum([size, size, size, size // 2 + 1, -(-max(tokens, KEPT) // 2)])
    keys, spare, runs, left, ranks = np.split(np.empty(ends[-1], np.uint64), ends[:-1])
    return _Room(
        places.Ordering(keys, spare, np.zeros(COUNTS, np.int64)),
        *(runs.view(np.int32).reshape(-1, 2), left.view(np.int32).reshape(-1, 2)),
        ranks.view(np.int32),
    )


def ranges(counts: Entries, most: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of last tokens with at most ``most`` entries each, or with one token that alone has more."""
    ends = np.cumsum(counts)
    low = 0
    while low < len(counts):
        before = int(ends[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield low, high
        low = high


def sorted_range(shelf: places.Shelf, counts: Entries, low: int, high: int) -> Entries:
    """The entries whose last token lies in ``low .. high - 1``, sorted."""
    work = _collected(shelf, counts, low, high)
    sort_entries(shelf, work)
    return work.positions


def _collected(shelf: places.Shelf, counts: Entries, low: int, high: int) -> places.Sorting:
    """The entries of a range by last token, and what sorting them needs."""
    starts = np.cumsum(counts[low:high]) - counts[low:high]
    size = int(counts[low:high].sum())
    same = np.ones(size, np.uint8)
    same[starts[counts[low:high] > 0]] = 0
    work = places.Sorting(
        *(np.empty(size, np.int64), np.empty(size, np.int64)),
        *(np.empty(size, np.uint64), np.empty(size, np.uint64)),
        *(same, np.zeros(1 << 11, np.int64)),
    )
    collect_entries(shelf, low, high, starts, work.positions)
    return work


def _widths(shelf: places.Shelf, tally: places.Tally) -> tuple[int, int, int, int]:
    """Tokens per key, bits of the number of a token, of a position, of a rank."""
    bits = bits_for(len(tally.present))
    position_bits = bits_for(int(shelf.meta[places.TOKENS]) - 1)
    per_key = min((64 - position_bits) // bits, int(shelf.meta[places.DEPTH]) - 1)
    return per_key, bits, position_bits, bits_for(int(tally.starts[-1]))


def _sorted_at_once(shelf: places.Shelf, tally: places.Tally, room: _Room) -> Entries:
    """All entries: by a few tokens, then by ranks, which double the tokens that are compared in every round."""
    order_entries(shelf, tally, *room, _widths(shelf, tally))
    return room.order.keys[: int(tally.starts[-1])].view(np.int64)


class _Part:
    """Some of the entries, with what sorting them needs: views, so that threads share nothing but the ranks.

    Args:
        everything, spare: uint64 ``[entries]``, see :class:`specplug.kernels.datastore_layout.Ordering`.
        buckets: int32 ``[n, 2]``, of this part, see :func:`deal_entries`.
        position_bits: of an entry.
    """

    def __init__(self, everything: Keys, spare: Keys, buckets: Ranks, position_bits: int) -> None:
        self._first, end = int(buckets[0, 0]), int(buckets[-1, 1])
        self._bits, size = position_bits, end - self._first
        self._order = places.Ordering(
            everything[self._first : end], spare[self._first : end], np.zeros(COUNTS, np.int64)
        )
        # What is to be sorted, and room for what is left of it.
        self._count = len(buckets)
        most = max(self._count, size // 2 + 1)
        self._runs, self._room = (np.empty((most, 2), np.int32) for _ in range(2))
        self._runs[: self._count] = buckets - self._first

    def rank(self, ranks: Ranks, how: How) -> None:
        """New keys, see :func:`rank_keys`."""
        rank_keys(self._order, self._runs, self._count, ranks, how)

    def sort(self, ranks: Ranks, more: np.uint64, above: int) -> bool:
        """Sort by the keys and renew the ranks, see :func:`sort_runs`; returns whether anything is left."""
        how = (self._bits, more, self._first, above)
        left = sort_runs(self._order, self._runs, self._count, how, ranks, self._room)
        self._runs, self._room, self._count = self._room, self._runs, left
        return bool(left)


def _sorted_in_parts(shelf: places.Shelf, tally: places.Tally, each: Each, threads: int) -> Entries:
    """What :func:`order_entries` does, by several threads."""
    depth, total = int(shelf.meta[places.DEPTH]), int(tally.starts[-1])
    per_key, bits, position_bits, rank_bits = _widths(shelf, tally)
    everything, spare = np.empty(total, np.uint64), np.empty(total, np.uint64)
    buckets = np.empty((len(tally.present), 2), np.int32)
    deal_entries(shelf, tally, buckets, (per_key, bits, position_bits), everything, spare)
    # Two parts per thread, because they do not take the same time.
    parts = [
        _Part(everything, spare, buckets[low:high], position_bits)
        for low, high in ranges(np.diff(tally.starts), -(-total // (2 * threads)))
    ]
    ranks = np.zeros(int(shelf.meta[places.TOKENS]), np.int32)
    compared, width, above = 1 + per_key, bits, position_bits + (per_key - 1) * bits
    while True:
        # Not what the kernel returns, which is an integer of Python: that would be compiled anew.
        more = np.uint64(bits_above(width, position_bits) if compared < depth else 0)
        step = partial(_Part.sort, ranks=ranks, more=more, above=above)
        if not any(list(each(step, parts))):
            return everything.view(np.int64)
        back, further = round_after(compared, depth, position_bits, rank_bits)
        how = (position_bits, back, further, rank_bits)
        list(each(partial(_Part.rank, ranks=ranks, how=how), parts))
        compared, width, above = compared + max(back, further), rank_bits, 0
