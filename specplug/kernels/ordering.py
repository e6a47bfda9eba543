"""Sorting all entries of a corpus at once, where they fit in memory; the order is that of :mod:`.contexts`.

An entry is one number: a key in the upper bits, its position in the lower ones. Entries are dealt into buckets by the
token before them, in one pass over the text that also makes the key, of the tokens before that. Then every run of
entries that agree is sorted by number, so that ties stand in the order of positions. What is left is sorted by rounds:
the key becomes the rank of the position ``back`` tokens before, which stands for all that is compared already, so that
each round doubles it (Manber and Myers 1993); only runs that still agree are looked at (Larsson and Sadakane 2007).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import lean_kernel
from specplug.kernels.contexts import token_of
from specplug.kernels.datastore_layout import (
    TOKENS,
    Index,
    IntArray,
    LongArray,
    Ordering,
    Shelf,
    WordArray,
)

#: Shorter runs are sorted by insertion; longer ones than LARGE by digits of 11 bits.
SMALL, LARGE = 24, 2048
_DIGIT = 11


@lean_kernel
def deal_entries(
    shelf: Shelf, numbers: IntArray, places: LongArray, how: Any, keys: WordArray
) -> None:
    """Every entry into the bucket of its last token, in the order of positions. O(tokens).

    Args:
        numbers: int32 ``[vocab_size]``, from 1 on, in the order of the tokens, for those that are a last token.
        places: int64, first place of the bucket of each number (that of 1 first); advanced.
        how: tokens per key, bits of each, bits of a position.
        keys: uint64 ``[entries]``, filled: the numbers of the tokens before the last one, the nearest first and 0 from
            a beginning on, then the position.
    """
    per_key, bits, position_bits = how
    top, step = np.uint64((per_key - 1) * bits), np.uint64(bits)
    below = np.uint64(position_bits)
    last, recent = np.int64(0), np.uint64(0)
    for position in range(shelf.meta[TOKENS]):
        token = token_of(shelf, position)
        if token < 0:
            last, recent = np.int64(0), np.uint64(0)
            continue
        if last > 0:
            place = places[last - 1]
            keys[place] = (recent << below) | np.uint64(position)
            places[last - 1] = place + 1
        recent = (recent >> step) | (np.uint64(last) << top)
        last = np.int64(numbers[token])


@lean_kernel
def _insert(keys: WordArray, start: Index, end: Index) -> None:
    for i in range(start + 1, end):
        key = keys[i]
        j = i
        while j > start and keys[j - 1] > key:
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key


@lean_kernel
def _merge_two(
    source: WordArray, target: WordArray, low: Index, middle: Index, high: Index
) -> None:
    """Merge two sorted halves into ``target``; no branch depends on what is compared: it would be mispredicted."""
    left, right, k = low, middle, low
    while left < middle and right < high:
        one, other = source[left], source[right]
        take = np.int64(one < other)
        target[k] = one if take else other
        left += take
        right += 1 - take
        k += 1
    while left < middle:
        target[k] = source[left]
        left += 1
        k += 1
    while right < high:
        target[k] = source[right]
        right += 1
        k += 1


@lean_kernel
def _merge(order: Ordering, start: Index, end: Index) -> None:
    """Merge sort of a run."""
    for low in range(start, end, SMALL):
        _insert(order.keys, low, min(low + SMALL, end))
    source, target = order.keys, order.spare
    width, away = SMALL, False
    while width < end - start:
        for low in range(start, end, 2 * width):
            _merge_two(source, target, low, min(low + width, end), min(low + 2 * width, end))
        source, target = target, source
        width, away = 2 * width, not away
    if away:
        for i in range(start, end):
            order.keys[i] = order.spare[i]


@lean_kernel
def _radix(order: Ordering, start: Index, end: Index, differing: Any, lowest: Index) -> None:
    """Stable sort of a run by digits from bit ``lowest`` on; those without a bit in ``differing`` are skipped."""
    mask = np.uint64((1 << _DIGIT) - 1)
    source, target = order.keys, order.spare
    counts = order.counts
    away = False
    for shift in range(lowest, 64, _DIGIT):
        if (differing >> np.uint64(shift)) & mask == 0:
            continue
        counts[:] = 0
        for i in range(start, end):
            counts[np.int64((source[i] >> np.uint64(shift)) & mask)] += 1
        place: Any = start
        for value in range(1 << _DIGIT):
            count = counts[value]
            counts[value] = place
            place += count
        for i in range(start, end):
            digit: Any = np.int64((source[i] >> np.uint64(shift)) & mask)
            place = counts[digit]
            counts[digit] = place + 1
            target[place] = source[i]
        source, target = target, source
        away = not away
    if away:
        for i in range(start, end):
            order.keys[i] = order.spare[i]


@lean_kernel
def _sort_run(order: Ordering, start: Index, end: Index, differing: Any, lowest: Index) -> None:
    if end - start <= SMALL:
        _insert(order.keys, start, end)
    elif end - start < LARGE:
        _merge(order, start, end)
    else:
        _radix(order, start, end, differing, lowest)


@lean_kernel
def sort_runs(
    order: Ordering, runs: IntArray, count: Index, ranks: IntArray, how: Any, left: IntArray
) -> Any:
    """Sort every run by its keys, which are those that are there, or the ranks of what stands before.

    Args:
        runs: int32 ``[>= count, 2]``, ascending: begin and end of runs of two entries or more, each in the order of
            positions.
        ranks: see :func:`rank_runs`; 0 where a document begins.
        how: bits of a position; the bits of a key that are all 0 where it holds all that there is; how many tokens
            before a position its key's rank is (0: the keys are there).
        left: int32 ``[entries / 2, 2]``, filled with the runs that agree in their keys and have more to compare.

    Returns:
        How many those are.
    """
    position_bits, more, back = how
    below = np.uint64(position_bits)
    mask = (np.uint64(1) << below) - np.uint64(1)
    found = 0
    for run in range(count):
        start, end = np.int64(runs[run, 0]), np.int64(runs[run, 1])
        if back:
            for i in range(start, end):
                position = order.keys[i] & mask
                rank = np.uint64(ranks[np.int64(position) - back])
                order.keys[i] = (rank << below) | position
        first = order.keys[start]
        differing = np.uint64(0)
        for i in range(start + 1, end):
            differing |= order.keys[i] ^ first
        if differing >> below != 0:
            _sort_run(order, start, end, differing, position_bits)
        begin = start
        for i in range(start + 1, end + 1):
            if i < end and (order.keys[i] ^ order.keys[begin]) >> below == 0:
                continue
            if i - begin > 1 and order.keys[begin] & more != 0:
                left[found, 0], left[found, 1] = begin, i
                found += 1
            begin = i
    return found


@lean_kernel
def rank_runs(
    order: Ordering, runs: IntArray, count: Index, left: IntArray, how: Any, ranks: IntArray
) -> None:
    """Renew the ranks of the entries of ``runs``: 1 plus the place where the run among ``left`` begins, or its own.

    Args:
        how: how many runs are left, bits of a position, entries before the first of ``order``.
        ranks: int32 ``[tokens]``, by position.
    """
    remaining, position_bits, first = how
    mask = (np.uint64(1) << np.uint64(position_bits)) - np.uint64(1)
    next_left = 0
    for run in range(count):
        i, end = np.int64(runs[run, 0]), np.int64(runs[run, 1])
        while i < end:
            rank = first + i + 1
            stop = i + 1
            if next_left < remaining and left[next_left, 0] == i:
                stop = np.int64(left[next_left, 1])
                next_left += 1
            while i < stop:
                ranks[np.int64(order.keys[i] & mask)] = rank
                i += 1
