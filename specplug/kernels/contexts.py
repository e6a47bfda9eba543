"""Sorting the positions of a corpus by what stands before them.

The order of two positions is that of the tokens before them, last token first, up to ``DEPTH`` tokens; a document's
beginning comes before every token, and positions that agree stand in their own order. This is the suffix array of the
reversed corpus (Manber and Myers 1993), cut at a depth: without the cut, text that repeats for long would cost long.

The method: runs of equal contexts are sorted by keys of as many tokens as fit in 64 bits, then what is still equal by
the next ones. Work per entry is at most ``DEPTH`` tokens and a sort of its keys, however the text repeats. Where all
entries fit in memory, :mod:`.ordering` comes to the same order faster.
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
    Tally,
    WordArray,
)
from specplug.kernels.lanes import lowest
from specplug.kernels.packed import read_bits, read_packed

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
def tally_entries(
    shelf: Shelf, counts: LongArray, marks: WordArray, present: LongArray, starts: LongArray
) -> Any:
    """Fill what a :class:`Tally` holds. O(tokens + vocabulary / 64).

    Args:
        counts: int64 ``[vocab_size]``, zeros.
        marks: uint64 ``[vocab_size / 64]``, rounded up, zeros before and after: one bit per token, so that those that
            there are are found, in their order, without looking at all others.
        present: int64 ``[>= buckets]``.
        starts: int64 ``[>= buckets + 1]``.

    Returns:
        How many last tokens there are.
    """
    before = np.int64(-1)
    for position in range(shelf.meta[TOKENS]):
        token = token_of(shelf, position)
        if before >= 0 and token >= 0:
            if counts[before] == 0:
                marks[before >> 6] |= np.uint64(1) << np.uint64(before & 63)
            counts[before] += 1
        before = token
    found, total = np.int64(0), np.int64(0)
    for word in range(marks.shape[0]):
        left = marks[word]
        if left != 0:  # what is only read, the system need not give memory for
            marks[word] = 0
        while left != 0:
            last = (word << 6) + lowest(left)
            left &= left - np.uint64(1)
            present[found], starts[found] = last, total
            found += 1
            total += counts[last]
    starts[found] = total
    return found


@lean_kernel
def number_buckets(tally: Tally, vocab: Index, shift: Index, out: LongArray) -> None:
    """The numbers of the section of buckets; ``tally.counts`` become zeros again.

    Args:
        vocab: the separator.
        shift: the bit from which on the section lists last tokens; 0: it has a number for each of the vocabulary.
        out: int64, as many as the section has.
    """
    token = np.int64(0)
    for i in range(tally.present.shape[0]):
        last, start = tally.present[i], tally.starts[i]
        tally.counts[last] = 0
        if shift:
            out[i] = (last << shift) | start
        else:
            out[token : last + 1] = start
            token = last + 1
    total = tally.starts[tally.present.shape[0]]
    if shift:
        out[tally.present.shape[0]] = (vocab << shift) | total
    else:
        out[token:] = total


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
def _fields(meta: LongArray, per_key: Index) -> Any:
    """For :func:`_key`, in every field of a key: the number 1, the highest bit, the separator."""
    bits = np.uint64(meta[TOKEN_BITS])
    ones = np.uint64(0)
    for _ in range(per_key):
        ones = (ones << bits) | np.uint64(1)
    return ones, ones << (bits - np.uint64(1)), ones * np.uint64(meta[VOCAB])


@lean_kernel
def _key(shelf: Shelf, position: Index, compared: Index, per_key: Index, fields: Any) -> Any:
    """The ``per_key`` tokens that end ``compared`` tokens before ``position``, plus 1 each; 0 from a beginning on.

    Packed as they are in the file, tokens stand in the order of a key already: one read does, unless a separator
    (found as zero bytes are, all fields at once) or an end of what is compared is among them.
    """
    meta = shelf.meta
    bits = meta[TOKEN_BITS]
    start = position - compared - per_key
    if start >= 0 and compared + per_key <= meta[DEPTH]:
        ones, highs, separators = fields
        raw = read_bits(shelf.words, meta[TOKEN_WORD], start * bits, per_key * bits)
        apart = raw ^ separators
        if (apart - ones) & ~apart & highs == 0:
            return raw + ones
    return _key_by_token(shelf, position, compared, per_key)


@lean_kernel
def _key_by_token(shelf: Shelf, position: Index, compared: Index, per_key: Index) -> Any:
    bits = np.uint64(shelf.meta[TOKEN_BITS])
    key = np.uint64(0)
    ended: Any = False
    for back in range(compared + 1, compared + per_key + 1):
        token = np.int64(-1)
        if not ended and back <= shelf.meta[DEPTH]:
            token = token_of(shelf, position - back)
        ended = token < 0
        key = (key << bits) | np.uint64(token + 1)
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
    keys, positions = work.keys, work.positions
    other_keys, other_positions = work.other_keys, work.other_positions
    width, away = SMALL, False
    while width < end - start:
        for low in range(start, end, 2 * width):
            middle, high = min(low + width, end), min(low + 2 * width, end)
            left, right = low, middle
            for k in range(low, high):
                if left < middle and (right >= high or keys[left] <= keys[right]):
                    other_keys[k], other_positions[k] = keys[left], positions[left]
                    left += 1
                else:
                    other_keys[k], other_positions[k] = keys[right], positions[right]
                    right += 1
        keys, other_keys = other_keys, keys
        positions, other_positions = other_positions, positions
        width, away = 2 * width, not away
    if away:
        _copy_back(work, start, end)


@lean_kernel
def _copy_back(work: Sorting, start: Index, end: Index) -> None:
    for i in range(start, end):
        work.keys[i] = work.other_keys[i]
        work.positions[i] = work.other_positions[i]


@lean_kernel
def _radix(work: Sorting, start: Index, end: Index, differing: Any) -> None:
    """Stable sort of a run by digits of its keys, lowest first; those without a bit in ``differing`` are skipped."""
    mask = np.uint64((1 << _DIGIT) - 1)
    keys, positions = work.keys, work.positions
    other_keys, other_positions = work.other_keys, work.other_positions
    away = False
    for shift in range(0, 64, _DIGIT):
        if (differing >> np.uint64(shift)) & mask == 0:
            continue
        work.counts[:] = 0
        for i in range(start, end):
            work.counts[np.int64((keys[i] >> np.uint64(shift)) & mask)] += 1
        place: Any = start
        for value in range(1 << _DIGIT):
            count = work.counts[value]
            work.counts[value] = place
            place += count
        for i in range(start, end):
            digit: Any = np.int64((keys[i] >> np.uint64(shift)) & mask)
            place = work.counts[digit]
            work.counts[digit] = place + 1
            other_keys[place] = keys[i]
            other_positions[place] = positions[i]
        keys, other_keys = other_keys, keys
        positions, other_positions = other_positions, positions
        away = not away
    if away:
        _copy_back(work, start, end)


@lean_kernel
def sort_entries(shelf: Shelf, work: Sorting) -> None:
    """Sort ``work.positions``, which is sorted by last token and position already, by ``DEPTH`` tokens of context.

    ``work.same[i]`` says whether entry ``i`` has the last token of the one before it; afterwards, whether it has all
    tokens of the one before and more of them are to be compared.
    """
    bits = shelf.meta[TOKEN_BITS]
    depth = shelf.meta[DEPTH]
    per_key = min(64 // bits, depth - 1)
    fields = _fields(shelf.meta, per_key)
    field = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    compared, unsorted = 1, True
    while unsorted and compared < depth:
        unsorted = False
        # A key whose last token is a beginning holds all that there is.
        last = field << np.uint64(bits * max(0, compared + per_key - depth))
        start = 0
        while start < work.positions.shape[0]:
            end = _run_end(work, start)
            if end - start > 1:
                for i in range(start, end):
                    work.keys[i] = _key(shelf, work.positions[i], compared, per_key, fields)
                unsorted |= _split(work, start, end, last)
            start = end
        compared += per_key


@lean_kernel
def _run_end(work: Sorting, start: Index) -> Any:
    end = start + 1
    while end < work.positions.shape[0] and work.same[end] != 0:
        end += 1
    return end


@lean_kernel
def _split(work: Sorting, start: Index, end: Index, last: Any) -> bool:
    """Sort a run by its keys and mark what still agrees; returns whether anything does that has more to compare.

    A key without any bit of ``last`` holds all that there is.
    """
    differing = np.uint64(0)
    for i in range(start + 1, end):
        differing |= work.keys[i] ^ work.keys[start]
    if differing != 0:
        if end - start <= SMALL:
            _insert(work.keys, work.positions, start, end)
        elif end - start < LARGE:
            _merge(work, start, end)
        else:
            _radix(work, start, end, differing)
    elif work.keys[start] & last != 0:
        return True  # as before: one run
    found = False
    for i in range(start + 1, end):
        again = work.keys[i] == work.keys[i - 1] and work.keys[i] & last != 0
        work.same[i] = 1 if again else 0
        found |= again
    return found
