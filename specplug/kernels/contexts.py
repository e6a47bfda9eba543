"""Sorting the positions of a corpus by what stands before them.

The order of two positions is that of the tokens before them, last token first, up to ``DEPTH`` tokens; a document's
beginning comes before every token, and positions that agree stand in their own order. This is the suffix array of the
reversed corpus (Manber and Myers 1993), cut at a depth: without the cut, text that repeats for long would cost long.

The method: runs of equal contexts are sorted by keys of as many tokens as fit in 64 bits, then what is still equal by
the next ones. Work per entry is at most ``DEPTH`` tokens and a sort of its keys, however the text repeats.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import lean_kernel
from specplug.kernels.datastore_layout import (
    DEPTH,
    TOKEN_BITS,
    TOKEN_WORD,
    TOKENS,
    VOCAB,
    Index,
    LongArray,
    Shelf,
    Sorting,
    WordArray,
)
from specplug.kernels.packed import read_packed

#: Shorter runs are sorted by insertion; longer ones than LARGE by digits of 11 bits.
SMALL, LARGE = 24, 4096
_DIGIT = 11


@lean_kernel
def token_of(shelf: Shelf, position: Index) -> Any:
    """Token at ``position``; -1 for a separator and before the beginning."""
    if position < 0:
        return np.int64(-1)
    meta = shelf.meta
    token = read_packed(shelf.words, meta[TOKEN_WORD], meta[TOKEN_BITS], position)
    return token if token < meta[VOCAB] else np.int64(-1)


@lean_kernel
def count_entries(shelf: Shelf, counts: LongArray) -> None:
    """Add to ``counts[t]`` the number of entries whose last token is ``t``. O(tokens)."""
    before = np.int64(-1)
    for position in range(shelf.meta[TOKENS]):
        token = token_of(shelf, position)
        if before >= 0 and token >= 0:
            counts[before] += 1
        before = token


@lean_kernel
def collect_entries(
    shelf: Shelf, low: Index, high: Index, places: LongArray, out: LongArray
) -> None:
    """Positions whose last token is ``low .. high - 1``, ascending, for each ``t`` from ``out[places[t - low]]`` on.

    Advances ``places``. O(tokens).
    """
    before = np.int64(-1)
    for position in range(shelf.meta[TOKENS]):
        token = token_of(shelf, position)
        if before >= low and before < high and token >= 0:
            out[places[before - low]] = position
            places[before - low] += 1
        before = token


@lean_kernel
def _key(shelf: Shelf, position: Index, compared: Index, per_key: Index, bits: Index) -> Any:
    """The ``per_key`` tokens that end ``compared`` tokens before ``position``, plus 1 each; 0 from a beginning on."""
    key = np.uint64(0)
    ended: Any = False
    for back in range(compared + 1, compared + per_key + 1):
        token = np.int64(-1)
        if not ended and back <= shelf.meta[DEPTH]:
            token = token_of(shelf, position - back)
        ended = token < 0
        key = (key << np.uint64(bits)) | np.uint64(token + 1)
    return key


@lean_kernel
def _insert(keys: WordArray, positions: LongArray, start: Index, end: Index) -> None:
    for i in range(start + 1, end):
        key, position = keys[i], positions[i]
        j = i
        while j > start and keys[j - 1] > key:
            keys[j], positions[j] = keys[j - 1], positions[j - 1]
            j -= 1
        keys[j], positions[j] = key, position


@lean_kernel
def _merge(work: Sorting, start: Index, end: Index) -> None:
    """Stable merge sort of a run by its keys."""
    for low in range(start, end, SMALL):
        _insert(work.keys, work.positions, low, min(low + SMALL, end))
    width = SMALL
    while width < end - start:
        for low in range(start, end, 2 * width):
            middle, high = min(low + width, end), min(low + 2 * width, end)
            left, right = low, middle
            for k in range(low, high):
                if left < middle and (right >= high or work.keys[left] <= work.keys[right]):
                    source = left
                    left += 1
                else:
                    source = right
                    right += 1
                work.other_keys[k] = work.keys[source]
                work.other_positions[k] = work.positions[source]
        _copy_back(work, start, end)
        width *= 2


@lean_kernel
def _copy_back(work: Sorting, start: Index, end: Index) -> None:
    for i in range(start, end):
        work.keys[i] = work.other_keys[i]
        work.positions[i] = work.other_positions[i]


@lean_kernel
def _radix(work: Sorting, start: Index, end: Index) -> None:
    """Stable sort of a run by digits of its keys, lowest first; digits in which no two keys differ are skipped."""
    differing = np.uint64(0)
    for i in range(start, end):
        differing |= work.keys[i] ^ work.keys[start]
    mask = np.uint64((1 << _DIGIT) - 1)
    for shift in range(0, 64, _DIGIT):
        if (differing >> np.uint64(shift)) & mask == 0:
            continue
        work.counts[:] = 0
        for i in range(start, end):
            work.counts[np.int64((work.keys[i] >> np.uint64(shift)) & mask)] += 1
        place: Any = start
        for value in range(1 << _DIGIT):
            count = work.counts[value]
            work.counts[value] = place
            place += count
        for i in range(start, end):
            digit: Any = np.int64((work.keys[i] >> np.uint64(shift)) & mask)
            place = work.counts[digit]
            work.counts[digit] = place + 1
            work.other_keys[place] = work.keys[i]
            work.other_positions[place] = work.positions[i]
        _copy_back(work, start, end)


@lean_kernel
def sort_entries(shelf: Shelf, work: Sorting) -> None:
    """Sort ``work.positions``, which is sorted by last token and position already.

    ``work.same[i]`` says whether entry ``i`` has the last token of the one before it; it is left in an undefined state.
    """
    bits = shelf.meta[TOKEN_BITS]
    per_key = 64 // bits
    compared, unsorted = 1, True
    while unsorted and compared < shelf.meta[DEPTH]:
        unsorted = False
        start = 0
        size = work.positions.shape[0]
        while start < size:
            end = start + 1
            while end < size and work.same[end] != 0:
                end += 1
            if end - start > 1:
                for i in range(start, end):
                    work.keys[i] = _key(shelf, work.positions[i], compared, per_key, bits)
                _sort(work, start, end)
                unsorted |= _mark(work, start, end, bits)
            start = end
        compared += per_key


@lean_kernel
def _sort(work: Sorting, start: Index, end: Index) -> None:
    if end - start <= SMALL:
        _insert(work.keys, work.positions, start, end)
    elif end - start < LARGE:
        _merge(work, start, end)
    else:
        _radix(work, start, end)


@lean_kernel
def _mark(work: Sorting, start: Index, end: Index, bits: Index) -> bool:
    """Mark what still agrees in a run; returns whether anything does that has more tokens to compare."""
    last = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    found = False
    for i in range(start + 1, end):
        # A key whose last token is a beginning holds all that there is.
        again = work.keys[i] == work.keys[i - 1] and work.keys[i] & last != 0
        work.same[i] = 1 if again else 0
        found |= again
    return found
