"""Sorts the entries of a datastore: all at once where they fit in memory, else by ranges of last tokens.

The order is the same either way, and for any number of threads. Ranges do not overlap, so that threads need no locks.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.kernels import datastore_layout as places
from specplug.kernels.contexts import (
    collect_entries,
    rank_entries,
    refine_entries,
    sort_entries,
)

Entries = NDArray[np.int64]

#: Bytes per entry that sorting needs, and where all are sorted at once (a rank for every token).
SORT_BYTES = 33 + 8
WHOLE_BYTES = SORT_BYTES + 4
#: Tokens by which all entries are sorted before ranks take their place. ``DEPTH`` is this times a power of two.
FIRST_DEPTH = 4
#: Entries that are worth a thread.
WORTH = 1 << 15


class Part(NamedTuple):
    """Some of the entries: how many come before them, and views of the work space."""

    first: int
    work: places.Sorting


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def sorted_entries(
    shelf: places.Shelf, counts: Entries, memory: int, threads: int = 1
) -> Iterator[Entries]:
    """The entries of a corpus in their order, in parts.

    Args:
        shelf: the section of tokens.
        counts: int64 ``[vocab_size]``, entries by last token.
        memory: bytes that may be used, about; one last token is always sorted at once.
    """
    total = int(counts.sum())
    tokens = int(shelf.meta[places.TOKENS])
    threads = max(1, min(threads, total // WORTH))
    with ThreadPoolExecutor(threads) as pool:
        if total * WHOLE_BYTES <= memory and tokens < 1 << 31:
            yield _sorted_at_once(shelf, counts, pool, threads)
            return
        most = max(1, memory // SORT_BYTES // threads)
        waiting: deque[Future[Entries]] = deque()
        for low, high in ranges(counts, most):
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


def _sorted_at_once(
    shelf: places.Shelf, counts: Entries, pool: ThreadPoolExecutor, threads: int
) -> Entries:
    """All entries: by a few tokens, then by ranks, which double the tokens that are compared in every round."""
    everything = _collected(shelf, counts, 0, len(counts))
    ends = np.cumsum(counts)
    size = len(everything.positions)
    # Two parts per thread, because they do not take the same time.
    most = max(1, size if threads == 1 else -(-size // (2 * threads)))
    parts = [
        _part(everything, int(ends[high - 1] - counts[low:high].sum()), int(ends[high - 1]))
        for low, high in ranges(counts, most)
        if counts[low:high].any()
    ]
    meta = shelf.meta.copy()
    meta[places.DEPTH] = FIRST_DEPTH
    _each(pool, partial(_shallow, places.Shelf(shelf.words, meta)), parts)
    ranks = np.zeros(int(shelf.meta[places.TOKENS]), np.int32)
    depth, unsorted = FIRST_DEPTH, True
    while unsorted and depth < shelf.meta[places.DEPTH]:
        _each(pool, partial(_rank, ranks), parts)
        unsorted = any(_each(pool, partial(_refine, ranks, depth), parts))
        depth *= 2
    return everything.positions


def _shallow(shelf: places.Shelf, part: Part) -> bool:
    sort_entries(shelf, part.work)
    return True


def _rank(ranks: NDArray[np.int32], part: Part) -> bool:
    rank_entries(part.work, part.first, ranks)
    return True


def _refine(ranks: NDArray[np.int32], back: int, part: Part) -> bool:
    return refine_entries(part.work, ranks, back)


def _part(work: places.Sorting, start: int, end: int) -> Part:
    """Views of some of the entries, with counts of their own."""
    return Part(
        start,
        places.Sorting(
            *(work.positions[start:end], work.other_positions[start:end]),
            *(work.keys[start:end], work.other_keys[start:end]),
            *(work.same[start:end], np.zeros_like(work.counts)),
        ),
    )


def _each(pool: ThreadPoolExecutor, task: Callable[[Part], bool], parts: list[Part]) -> list[bool]:
    return list(pool.map(task, parts))
