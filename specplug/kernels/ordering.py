"""Sorting all entries of a corpus at once, where they fit in memory; the order is that of :mod:`.contexts`.

An entry is one number: a key in the upper bits, its position in the lower ones. Entries are dealt into buckets by the
token before them, in one pass over the text that also makes the key, of the tokens before that. Then every run of
entries that agree is sorted by number, so that ties stand in the order of positions. What is left is sorted by rounds:
the key becomes the rank of the position ``back`` tokens before, which stands for all that is compared already, so that
each round doubles it (Manber and Myers 1993), or that and the rank further back, where both fit in a number, so that it
is threefold; only runs that still agree are looked at (Larsson and Sadakane 2007).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import inlined_kernel, lean_kernel
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

#: Runs up to SMALL are sorted by insertion, others by digits of 6 bits, from MIDDLE on of 8, from LARGE on of 11.
SMALL, MIDDLE, LARGE = 24, 256, 4096


@lean_kernel
def deal_entries(
    shelf: Shelf, numbers: LongArray, places: LongArray, how: Any, keys: WordArray
) -> None:
    """Every entry into the bucket of its last token, in the order of positions. O(tokens).

    Args:
        numbers: int64 ``[vocab_size]``, from 1 on, in the order of the tokens, for those that are a last token.
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
        last = numbers[token]


@lean_kernel
def _insert(keys: WordArray, start: Index, end: Index) -> None:
    for i in range(start + 1, end):
        key = keys[i]
        j = i
        while j > start and keys[j - 1] > key:
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key


@inlined_kernel
def _highest(bits: Any) -> Any:
    """Number of bits up to the highest 1."""
    count = np.uint64(0)
    step = np.uint64(32)
    while step > 0:
        if bits >> step != 0:
            bits >>= step
            count += step
        step >>= np.uint64(1)
    return count + bits


@lean_kernel
def _deal(order: Ordering, start: Index, end: Index, shift: Any, digit: Any) -> None:
    """Stable sort of a run by one digit of so many bits, from bit ``shift`` on."""
    keys, spare, counts = order.keys, order.spare, order.counts
    mask = (np.uint64(1) << digit) - np.uint64(1)
    size = np.int64(1) << np.int64(digit)
    counts[:size] = 0
    for i in range(start, end):
        counts[np.int64((keys[i] >> shift) & mask)] += 1
    place: Any = start
    for value in range(size):
        count = counts[value]
        counts[value] = place
        place += count
    for i in range(start, end):
        key = keys[i]
        digits: Any = np.int64((key >> shift) & mask)
        place = counts[digits]
        counts[digits] = place + 1
        spare[place] = key
    for i in range(start, end):
        keys[i] = spare[i]


@lean_kernel
def _sort_run(order: Ordering, start: Index, end: Index, differing: Any, below: Any) -> None:
    """Sort a run by the bits of its keys in ``differing``: by the highest digit, then what agrees in that."""
    if end - start <= SMALL:
        _insert(order.keys, start, end)
        return
    digit = np.uint64(6 if end - start < MIDDLE else 8 if end - start < LARGE else 11)
    top = _highest(differing)
    shift = top - digit if top > digit + below else below
    _deal(order, start, end, shift, digit)
    if differing & ((np.uint64(1) << shift) - np.uint64(1)) == 0:
        return
    keys = order.keys
    begin: Any = start
    while begin < end:
        first = keys[begin]
        stop: Any = begin + 1
        rest = np.uint64(0)
        while stop < end and (keys[stop] ^ first) >> shift == 0:
            rest |= keys[stop] ^ first
            stop += 1
        rest = (rest >> below) << below
        if rest != 0:
            _sort_run(order, begin, stop, rest, below)
        begin = stop


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
            before a position its key's rank is (0: the keys are there), and the second rank of a key (0: it has one);
            bits of a rank.
        left: int32 ``[entries / 2, 2]``, filled with the runs that agree in their keys and have more to compare.

    Returns:
        How many those are.
    """
    position_bits, more, back, further, rank_bits = how
    below = np.uint64(position_bits)
    mask = (np.uint64(1) << below) - np.uint64(1)
    found = 0
    for run in range(count):
        start, end = np.int64(runs[run, 0]), np.int64(runs[run, 1])
        if back:
            for i in range(start, end):
                position = np.int64(order.keys[i] & mask)
                key = np.uint64(ranks[position - back])
                if further:
                    # What stands before a beginning is another document.
                    inside = key > 0 and position >= further
                    second = np.uint64(ranks[position - further]) if inside else np.uint64(0)
                    key = (key << np.uint64(rank_bits)) | second
                order.keys[i] = (key << below) | np.uint64(position)
        first = order.keys[start]
        differing = np.uint64(0)
        for i in range(start + 1, end):
            differing |= order.keys[i] ^ first
        differing = (differing >> below) << below
        if differing != 0:
            _sort_run(order, start, end, differing, below)
        begin: Any = start
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
