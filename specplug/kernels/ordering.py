"""Sorting all entries of a corpus at once, where they fit in memory; the order is that of :mod:`.contexts`.

An entry is one number: a key in the upper bits, its position in the lower ones. Entries are dealt into buckets by the
two tokens before them, in a pass over the text, which also makes the keys, and one over the entries. Then every run of
entries that agree is sorted by number, so that ties stand in the order of positions. What is left is sorted by rounds:
the key becomes the rank of the position ``back`` tokens before, which stands for all that is compared already, so that
each round doubles it (Manber and Myers 1993), or that and the rank further back, where both fit in a number, so that it
is threefold; only runs that still agree are looked at (Larsson and Sadakane 2007). Almost all runs are short: what is
done with those avoids branches that a processor cannot guess.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import inlined_kernel, lean_kernel
from specplug.kernels.contexts import token_of
from specplug.kernels.datastore_layout import (
    DEPTH,
    TOKENS,
    Index,
    IntArray,
    LongArray,
    Ordering,
    Shelf,
    Tally,
    WordArray,
)

#: Numbers that sorting counts in.
COUNTS = 1 << 11
#: Runs up to SMALL are sorted by comparing all with all (up to FEW each pair once, else LANES at once), others by
#: digits of 6 bits, from MIDDLE on of 8, from LARGE on of 11.
FEW, SMALL, MIDDLE, LARGE, LANES = 8, 64, 256, 4096, 8
_SIGN, _GREATEST = np.uint64(1 << 63), np.int64((1 << 63) - 1)


@lean_kernel
def deal_entries(
    shelf: Shelf, tally: Tally, runs: IntArray, how: Any, keys: WordArray, spare: WordArray
) -> None:
    """Every entry into the bucket of its last token, in the order of the token before that, then of positions.

    Two passes by counting: the entry behind one goes to the bucket of the token between them, so that whoever takes
    entries in the order of their last tokens puts them there in the order of their second last ones. O(tokens).

    Args:
        shelf: a separator stands at the end.
        runs: int32 ``[>= buckets, 2]``, filled: begin and end of each.
        how: tokens per key, bits of each, bits of a position.
        keys: uint64 ``[entries]``, filled: the numbers of the tokens before the last one, the nearest first and 0 from
            a beginning on, then the position. Tokens are numbered from 1 on, those that are a last token.
        spare: uint64 ``[entries]``.
    """
    per_key, bits, position_bits = how
    numbers = tally.counts
    # The counts make room for the numbers: in a small corpus, most of the time would go to fresh pages for a table.
    for i in range(tally.present.shape[0]):
        numbers[tally.present[i]] = i + 1
        runs[i, 0] = runs[i, 1] = tally.starts[i]
    _deal_by_last(shelf, numbers, runs, how, keys, spare)
    top, step, below = np.uint64((per_key - 1) * bits), np.uint64(bits), np.uint64(position_bits)
    field = (np.uint64(1) << step) - np.uint64(1)
    mask = (np.uint64(1) << below) - np.uint64(1)
    for i in range(tally.present.shape[0]):
        second = np.uint64(i + 1) << top
        for k in range(tally.starts[i], tally.starts[i + 1]):
            key = spare[k] >> below
            if key & field == 0:
                continue
            bucket = np.int64(key & field) - 1
            place = np.int64(runs[bucket, 0])
            keys[place] = (((key >> step) | second) << below) | ((spare[k] & mask) + np.uint64(1))
            runs[bucket, 0] = place + 1
    for i in range(tally.present.shape[0]):
        runs[i, 0], runs[i, 1] = tally.starts[i], tally.starts[i + 1]
        numbers[tally.present[i]] = tally.starts[i + 1] - tally.starts[i]


@lean_kernel
def _deal_by_last(
    shelf: Shelf, numbers: LongArray, runs: IntArray, how: Any, keys: WordArray, spare: WordArray
) -> None:
    """Entries by last token to ``spare``, with the number of the token behind in place of the last field of a key.

    That is 0 where no entry follows. Those before which a document begins go to ``keys`` too, where they come first.
    """
    per_key, bits, position_bits = how
    top, step, below = np.uint64((per_key - 1) * bits), np.uint64(bits), np.uint64(position_bits)
    last, before, recent = np.int64(0), np.int64(0), np.uint64(0)
    for position in range(shelf.meta[TOKENS]):
        token = token_of(shelf, position)
        if before > 0:  # the position before is an entry
            behind = np.uint64(last) if token >= 0 else np.uint64(0)
            entry = np.uint64(position - 1)
            place = np.int64(runs[before - 1, 1])
            spare[place] = ((((recent >> step) << step) | behind) << below) | entry
            runs[before - 1, 1] = place + 1
            if recent == 0:
                place = np.int64(runs[before - 1, 0])
                keys[place] = entry
                runs[before - 1, 0] = place + 1
            recent = (recent >> step) | (np.uint64(before) << top)
        if token < 0:
            last, before, recent = np.int64(0), np.int64(0), np.uint64(0)
        else:
            before, last = last, numbers[token]


@inlined_kernel
def _place_few(order: Ordering, start: Index, end: Index) -> None:
    """Sort a run of up to FEW: each key goes as far from the start as there are smaller ones.

    Without a branch that depends on the keys: to guess those wrong takes longer than all comparisons.
    """
    keys, room = order.keys, order.counts
    size = end - start
    for i in range(size):
        key = keys[start + i]
        room[i] = np.int64(key)
        smaller = np.int64(0)
        for j in range(i):
            less = np.int64(np.uint64(room[j]) < key)
            smaller += less
            room[FEW + j] += 1 - less
        room[FEW + i] = smaller
    for i in range(size):
        keys[start + room[FEW + i]] = np.uint64(room[i])


@inlined_kernel
def _place(order: Ordering, start: Index, end: Index) -> None:
    """Like :func:`_place_few`, for more: several comparisons at once, which are of signed numbers."""
    keys, room = order.keys, order.counts
    size = end - start
    padded = (size + LANES - 1) // LANES * LANES
    for i in range(size):
        room[i] = np.int64(keys[start + i] ^ _SIGN)
    for i in range(size, padded):
        room[i] = _GREATEST
    for i in range(size):
        key = room[i]
        smaller = np.int64(0)
        for j in range(padded):
            smaller += np.int64(room[j] < key)
        keys[start + smaller] = np.uint64(key) ^ _SIGN


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


@inlined_kernel
def _sort_small(order: Ordering, start: Index, end: Index) -> None:
    if end - start <= FEW:
        _place_few(order, start, end)
    else:
        _place(order, start, end)


@lean_kernel
def _sort_run(order: Ordering, start: Index, end: Index, differing: Any, below: Any) -> None:
    """Sort a run by the bits of its keys in ``differing``: by the highest digit, then what agrees in that."""
    if end - start <= SMALL:
        _sort_small(order, start, end)
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
def rank_keys(order: Ordering, runs: IntArray, count: Index, ranks: IntArray, how: Any) -> None:
    """New keys for the entries of every run: the ranks of what stands before.

    Args:
        runs: see :func:`sort_runs`.
        ranks: as that leaves them.
        how: bits of a position; how many tokens before a position its key's rank is, and the second rank of a key (0:
            it has one); bits of a rank.
    """
    position_bits, back, further, rank_bits = how
    keys = order.keys
    below, above = np.uint64(position_bits), np.uint64(rank_bits)
    mask = (np.uint64(1) << below) - np.uint64(1)
    for run in range(count):
        for i in range(np.int64(runs[run, 0]), np.int64(runs[run, 1])):
            position = np.int64(keys[i] & mask)
            key = np.uint64(ranks[position - back])
            if further:
                second = np.uint64(ranks[max(position - further, 0)])
                # What stands before a beginning is another document.
                inside = np.uint64(key > 0) & np.uint64(position >= further)
                key = (key << above) | (second * inside)
            keys[i] = (key << below) | np.uint64(position)


@lean_kernel
def sort_runs(
    order: Ordering, runs: IntArray, count: Index, how: Any, ranks: IntArray, left: IntArray
) -> Any:
    """Sort every run by its keys, and renew the ranks of its entries.

    The rank of an entry is 1 plus the place where those begin that agree with it and have more to compare; of one that
    is alone or has no more, its own.

    Args:
        runs: int32 ``[>= count, 2]``, ascending: begin and end of runs, each in the order of positions.
        how: bits of a position; the bits of a key that are all 0 where it holds all that there is, or 0 in the last
            round, of which no ranks are needed; entries before the first of ``order``; the bit from which on the keys
            of a run are in order already, or 0.
        ranks: int32 ``[tokens]``, by position; 0 where a document begins.
        left: int32 ``[entries / 2 + 1, 2]``, filled with the runs that agree in their keys and have more to compare.

    Returns:
        How many those are.
    """
    position_bits, more, before, sorted_above = how
    keys = order.keys
    below, above = np.uint64(position_bits), np.uint64(sorted_above)
    mask = (np.uint64(1) << below) - np.uint64(1)
    found = np.int64(0)
    for run in range(count):
        end, bound = np.int64(runs[run, 0]), np.int64(runs[run, 1])
        while end < bound:
            start, end = end, bound
            first = keys[start]
            if sorted_above:
                end = start + 1
                while end < bound and (keys[end] ^ first) >> above == 0:
                    end += 1
            differing, falling = np.uint64(0), np.int64(0)
            for i in range(start + 1, end):
                differing |= keys[i] ^ first
                falling |= np.int64(keys[i - 1] > keys[i])
            differing = (differing >> below) << below
            if more == 0:
                if falling:
                    _sort_run(order, start, end, differing, below)
                continue
            if differing == 0 and first & more != 0 and end - start > 1:
                # Text that repeats for long: in the order of positions already, and ranked but for the first time.
                left[found, 0], left[found, 1] = start, end
                found += 1
                if ranks[np.int64(first & mask)] != before + start + 1:
                    for i in range(start, end):
                        ranks[np.int64(keys[i] & mask)] = before + start + 1
                continue
            if falling:
                _sort_run(order, start, end, differing, below)
            begin: Any = start
            last = keys[start]
            ranks[np.int64(last & mask)] = before + start + 1
            for i in range(start + 1, end):
                # Again without branches: what is written for one that is alone is written over.
                key = keys[i]
                again = np.int64((key ^ last) >> below == 0) & np.int64(key & more != 0)
                found += again & np.int64(i == begin + 1)
                begin = begin if again else i
                left[found - again, 0], left[found - again, 1] = begin, i + 1
                ranks[np.int64(key & mask)] = before + begin + 1
                last = key
    return found


@lean_kernel
def round_after(compared: Index, depth: Index, position_bits: Index, rank_bits: Index) -> Any:
    """How many tokens before a position the ranks of the next round stand: two numbers, as :func:`rank_keys` wants."""
    back = min(compared, depth - compared)
    further = min(back + compared, depth - compared)
    two = further > back and position_bits + 2 * rank_bits <= 64
    return back, further if two else 0


@lean_kernel
def bits_above(bits: Index, position_bits: Index) -> Any:
    """Those of the last number of a key, which are all 0 where there is nothing more to compare."""
    return ((np.uint64(1) << np.uint64(bits)) - np.uint64(1)) << np.uint64(position_bits)


@lean_kernel
def order_entries(
    shelf: Shelf,
    tally: Tally,
    order: Ordering,
    runs: IntArray,
    left: IntArray,
    ranks: IntArray,
    how: Any,
) -> None:
    """All rounds: the positions of all entries in their order, in the lowest bits of ``order.keys``.

    Args:
        runs: int32 ``[entries, 2]``, and all else as in :func:`sort_runs`.
        how: tokens per key; bits of a number of a token, of a position, of a rank.
    """
    per_key, bits, position_bits, rank_bits = how
    deal_entries(shelf, tally, runs, (per_key, bits, position_bits), order.keys, order.spare)
    ranks[: shelf.meta[TOKENS]] = 0
    count: Any = tally.present.shape[0]
    compared, depth, width = 1 + per_key, shelf.meta[DEPTH], bits
    above = position_bits + (per_key - 1) * bits
    while True:
        more = bits_above(width, position_bits) if compared < depth else np.uint64(0)
        count = sort_runs(order, runs, count, (position_bits, more, 0, above), ranks, left)
        if count == 0:
            return
        back, further = round_after(compared, depth, position_bits, rank_bits)
        rank_keys(order, left, count, ranks, (position_bits, back, further, rank_bits))
        compared, width, above = compared + max(back, further), rank_bits, 0
        runs, left = left, runs
