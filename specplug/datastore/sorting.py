"""Sorts the entries of a datastore: all at once where they fit in memory, else by ranges of last tokens.

The order is the same either way, and for any number of threads. Ranges do not overlap, so that threads need no locks.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.index.datastore_format import bits_for
from specplug.kernels import datastore_layout as places
from specplug.kernels.contexts import collect_entries, sort_entries
from specplug.kernels.ordering import deal_entries, rank_runs, sort_runs

Entries = NDArray[np.int64]
Keys = NDArray[np.uint64]
Ranks = NDArray[np.int32]
#: See :func:`specplug.kernels.ordering.sort_runs`.
How = tuple[int, np.uint64, int, int, int]
#: ``map``, or that of several threads.
Each = Callable[..., Iterable[Any]]

#: Bytes per entry that sorting needs: in ranges, and all at once (two numbers, two lists of runs, a rank).
SORT_BYTES = 33 + 8
WHOLE_BYTES = 16 + 8 + 4
#: Entries that are worth a thread.
WORTH = 1 << 17


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def sorted_entries(
    shelf: places.Shelf, tally: tuple[Entries, Entries], memory: int, threads: int = 1
) -> Iterator[Entries]:
    """The entries of a corpus in their order, in parts.

    Args:
        shelf: the section of tokens.
        tally: int64 ``[vocab_size]``, entries by last token; and those that are one, ascending.
        memory: bytes that may be used, about; one last token is always sorted at once.
    """
    counts, present = tally
    total = int(counts[present].sum())
    tokens = int(shelf.meta[places.TOKENS])
    threads = max(1, min(threads, total // WORTH))
    at_once = total * WHOLE_BYTES <= memory and tokens < 1 << 31
    if at_once and threads == 1:
        yield _sorted_at_once(shelf, tally, map, 1)
        return
    with ThreadPoolExecutor(threads) as pool:
        if at_once:
            yield _sorted_at_once(shelf, tally, pool.map, threads)
            return
        waiting: deque[Future[Entries]] = deque()
        for low, high in ranges(counts, max(1, memory // SORT_BYTES // threads)):
            if not counts[low:high].any():
                continue
            waiting.append(pool.submit(sorted_range, shelf, counts, low, high))
            if len(waiting) == threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


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


class _Part:
    """Some of the entries, with what sorting them needs: views, so that threads share nothing but the ranks.

    Args:
        everything, spare: uint64 ``[entries]``, see :class:`specplug.kernels.datastore_layout.Ordering`.
        starts, ends: of the buckets of this part.
        position_bits: of an entry.
    """

    def __init__(
        self, everything: Keys, spare: Keys, starts: Entries, ends: Entries, position_bits: int
    ) -> None:
        self._first, end = int(starts[0]), int(ends[-1])
        self._bits, size = position_bits, end - self._first
        self._order = places.Ordering(
            everything[self._first : end], spare[self._first : end], np.zeros(1 << 11, np.int64)
        )
        # What is to be sorted, and room for what is left of it.
        self._runs, self._room = (np.empty((size // 2 + 1, 2), np.int32) for _ in range(2))
        several = np.flatnonzero(ends - starts > 1)
        self._count = len(several)
        self._runs[: self._count, 0] = starts[several] - self._first
        self._runs[: self._count, 1] = ends[several] - self._first
        self._sorted, self._sorted_count = np.array([[0, size]], np.int32), 1

    def sort(self, ranks: Ranks, how: How) -> bool:
        """Sort by the keys, or by ``ranks``, see :func:`sort_runs`; returns whether anything is left."""
        left = sort_runs(self._order, self._runs, self._count, ranks, how, self._room)
        if how[2]:
            self._sorted, self._sorted_count = self._runs, self._count
        self._runs, self._room, self._count = self._room, self._runs, left
        return bool(left)

    def rank(self, ranks: Ranks) -> None:
        """Renew ``ranks`` of what was sorted last; of everything the first time."""
        how = (self._count, self._bits, self._first)
        rank_runs(self._order, self._sorted, self._sorted_count, self._runs, how, ranks)


def _sorted_at_once(
    shelf: places.Shelf, tally: tuple[Entries, Entries], each: Each, threads: int
) -> Entries:
    """All entries: by a few tokens, then by ranks, which double the tokens that are compared in every round."""
    tokens, depth = int(shelf.meta[places.TOKENS]), int(shelf.meta[places.DEPTH])
    counts, present = tally
    sizes = counts[present]
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    bits, position_bits = bits_for(len(present)), bits_for(tokens - 1)
    per_key = min((64 - position_bits) // bits, depth - 1)
    everything, spare = np.empty(total, np.uint64), np.empty(total, np.uint64)
    # The counts make room for the numbers: in a small corpus, most of the time would go to fresh pages for a table.
    counts[present] = np.arange(1, len(present) + 1)
    deal_entries(shelf, counts, ends - sizes, (per_key, bits, position_bits), everything)
    counts[present] = sizes
    # Two parts per thread, because they do not take the same time.
    most = total if threads == 1 else -(-total // (2 * threads))
    parts = [
        _Part(everything, spare, ends[low:high] - sizes[low:high], ends[low:high], position_bits)
        for low, high in ranges(sizes, most)
    ]
    ranks, rank_bits = np.zeros(tokens, np.int32), bits_for(total)
    below = np.uint64((1 << position_bits) - 1)
    # Bits that are all 0 where there is nothing more: those of the last token of a key, or of its last rank.
    last = np.uint64((1 << bits) - 1) << np.uint64(position_bits)
    how: How = (position_bits, last, 0, 0, rank_bits)
    compared = 1 + per_key
    while any(list(each(partial(_Part.sort, ranks=ranks, how=how), parts))):
        if compared == depth:
            break
        list(each(partial(_Part.rank, ranks=ranks), parts))
        back = further = min(compared, depth - compared)
        if position_bits + 2 * rank_bits <= 64:
            further = min(back + compared, depth - compared)
        two = further > back
        last = np.uint64((1 << rank_bits) - 1) << np.uint64(position_bits)
        how = (position_bits, last, back, further if two else 0, rank_bits)
        compared += further
    return np.bitwise_and(everything, below, out=everything).view(np.int64)
