"""The occurrences in a datastore that share the longest context with a request: one binary search.

Where the context would stand among the sorted entries, its best matches lie: the longest next to that place, shorter
ones around them. So backing off to shorter matches needs no further search, only a walk outwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import lean_kernel
from specplug.kernels.contexts import token_of
from specplug.kernels.datastore_layout import (
    BUCKET_BITS,
    BUCKET_LISTED,
    BUCKET_WORD,
    DEPTH,
    ENTRIES,
    ENTRY_BITS,
    ENTRY_WORD,
    LENGTH,
    POSITION,
    TOKEN_BITS,
    TOKEN_WORD,
    TOKENS,
    VOCAB,
    Index,
    IntArray,
    LongArray,
    Shelf,
    WordArray,
)
from specplug.kernels.packed import read_bits, read_packed


@lean_kernel
def entry_of(shelf: Shelf, index: Index) -> Any:
    """Position of an entry; never beyond the corpus, even if the section is damaged."""
    meta = shelf.meta
    return min(
        read_packed(shelf.words, meta[ENTRY_WORD], meta[ENTRY_BITS], index), meta[TOKENS] - 1
    )


@lean_kernel
def _listed(shelf: Shelf, token: Index) -> Any:
    """First record of a small store whose token is at least ``token``."""
    meta = shelf.meta
    bits = meta[BUCKET_BITS] - meta[TOKEN_BITS]
    low, high = np.int64(0), meta[BUCKET_LISTED]
    while low < high:
        middle = (low + high) >> 1
        record = read_packed(shelf.words, meta[BUCKET_WORD], meta[BUCKET_BITS], middle)
        if record >> bits < token:
            low = middle + 1
        else:
            high = middle
    return low


@lean_kernel
def _start_in(shelf: Shelf, index: Index) -> Any:
    """First entry of bucket number ``index``; never beyond the last, even if the section is damaged."""
    meta = shelf.meta
    start = read_packed(shelf.words, meta[BUCKET_WORD], meta[BUCKET_BITS], index)
    if meta[BUCKET_LISTED]:
        start &= (np.int64(1) << (meta[BUCKET_BITS] - meta[TOKEN_BITS])) - np.int64(1)
    return min(start, meta[ENTRIES])


@lean_kernel
def bucket_start(shelf: Shelf, token: Index) -> Any:
    """First entry whose last token is at least ``token`` (0..VOCAB); never beyond the last, even if damaged. O(1), or
    O(log(BUCKET_LISTED)) in small stores."""
    return _start_in(shelf, _listed(shelf, token) if shelf.meta[BUCKET_LISTED] else token)


@lean_kernel
def _bucket_of(shelf: Shelf, token: Index) -> Any:
    """First entry whose last token is ``token``, and the one behind the last; equal if there is none."""
    meta = shelf.meta
    if not meta[BUCKET_LISTED]:
        return _start_in(shelf, token), _start_in(shelf, token + 1)
    index = _listed(shelf, token)
    first = _start_in(shelf, index)
    if index >= meta[BUCKET_LISTED]:
        return first, first
    record = read_packed(shelf.words, meta[BUCKET_WORD], meta[BUCKET_BITS], index)
    if record >> (meta[BUCKET_BITS] - meta[TOKEN_BITS]) != token:
        return first, first
    return first, _start_in(shelf, index + 1)


@lean_kernel
def _match_from(
    shelf: Shelf, position: Index, contexts: IntArray, row: Index, size: Index, known: Index
) -> Any:
    """Tokens that agree before ``position`` and at the end of a context, ``known`` of which are known to."""
    meta = shelf.meta
    bits = meta[TOKEN_BITS]
    per_read = 64 // bits
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    last = contexts.shape[1] - 1
    length = known
    # As many tokens as fit in a word at once; what lies before the corpus is never reached by a match.
    while length < size and position - length >= per_read:
        start = position - length - per_read
        text = read_bits(shelf.words, meta[TOKEN_WORD], start * bits, per_read * bits)
        end = min(size, length + per_read)
        shift = (per_read - 1) * bits
        while length < end:
            if np.int64((text >> np.uint64(shift)) & mask) != contexts[row, last - length]:
                return length
            length += 1
            shift -= bits
    while length < size and token_of(shelf, position - 1 - length) == contexts[row, last - length]:
        length += 1
    return length


@lean_kernel
def usable(shelf: Shelf, contexts: IntArray, row: Index, size: Index) -> Any:
    """How many of the last ``size`` tokens of a context count: up to ``DEPTH``, back to a separator."""
    last = contexts.shape[1] - 1
    reach = min(size, shelf.meta[DEPTH])
    length = 0
    while length < reach and 0 <= contexts[row, last - length] < shelf.meta[VOCAB]:
        length += 1
    return length


@lean_kernel
def _place_of(shelf: Shelf, contexts: IntArray, row: Index, size: Index) -> Any:
    """First entry whose context does not come before that of the request; and the bounds of its last token."""
    last = contexts.shape[1] - 1
    token = contexts[row, last]
    first, end = _bucket_of(shelf, token)
    low, high = first, end
    # What agrees at both bounds agrees between them (Manber and Myers 1993).
    at_low, at_high = 1, 1
    while low < high:
        middle = (low + high) >> 1
        position = entry_of(shelf, middle)
        length = _match_from(shelf, position, contexts, row, size, min(at_low, at_high))
        before = False
        if length < size:
            before = token_of(shelf, position - 1 - length) < contexts[row, last - length]
        if before:
            low = middle + 1
            at_low = length
        else:
            high = middle
            at_high = length
    return low, first, end


@lean_kernel
def _run_bound(shelf: Shelf, contexts: IntArray, row: Index, bounds: Any, least: Index) -> Any:
    """How far from ``bounds[0]`` towards ``bounds[1]`` (not reached) entries match ``least`` tokens; by galloping."""
    start, limit = bounds
    step = 1 if limit >= start else -1
    reach = (limit - start) * step
    low, high = 0, 1
    while high <= reach:
        entry = entry_of(shelf, start + step * (high - 1))
        if _match_from(shelf, entry, contexts, row, least, 1) < least:
            break
        low, high = high, 2 * high
    high = min(high, reach + 1)
    # The first ``low`` entries match; number ``high`` does not, or is none.
    while high - low > 1:
        middle = (low + high) >> 1
        entry = entry_of(shelf, start + step * (middle - 1))
        if _match_from(shelf, entry, contexts, row, least, 1) >= least:
            low = middle
        else:
            high = middle
    return low


@lean_kernel
def _match_at(
    shelf: Shelf, contexts: IntArray, row: Index, size: Index, index: Index, inside: bool
) -> Any:
    """Position of an entry, and how many tokens match before it; none where the entry is not ``inside``."""
    if not inside:
        return np.int64(-1), np.int64(0)
    position = entry_of(shelf, index)
    return position, np.int64(_match_from(shelf, position, contexts, row, size, np.int64(1)))


@lean_kernel
def find_occurrences(
    shelf: Shelf, contexts: IntArray, row: Index, size: Index, most: Index, found: LongArray
) -> Any:
    """Up to ``most`` occurrences with the longest matches of the end of a context, longest first.

    Args:
        contexts: int32 ``[B, W]``, right-aligned; the last ``size`` tokens of row ``row`` are looked for.
        found: int64 ``[>= most, 2]``, filled with positions and match lengths.

    Returns:
        How many. Where more than ``most`` share the longest match they are a sample, evenly spaced in the order of
        the entries; ties between the two sides of the place go to the left. O(log(entries) + most * DEPTH).
    """
    size = usable(shelf, contexts, row, size)
    if size == 0:
        return 0
    place, first, end = _place_of(shelf, contexts, row, size)
    left, right = place - 1, place
    to_left, at_left = _match_at(shelf, contexts, row, size, left, left >= first)
    to_right, at_right = _match_at(shelf, contexts, row, size, right, right < end)
    longest = max(at_left, at_right)
    if longest == 0:
        return 0
    lefts = _run_bound(shelf, contexts, row, (left, first - 1), longest)
    rights = _run_bound(shelf, contexts, row, (right, end), longest)
    count = _take_longest(shelf, (left, lefts, rights), longest, most, found)
    if count == most:
        return count
    if lefts:
        left -= lefts
        to_left, at_left = _match_at(shelf, contexts, row, size, left, left >= first)
    if rights:
        right += rights
        to_right, at_right = _match_at(shelf, contexts, row, size, right, right < end)
    while count < most and (at_left > 0 or at_right > 0):
        if at_left >= at_right:
            found[count, POSITION], found[count, LENGTH] = to_left, at_left
            left -= 1
            to_left, at_left = _match_at(shelf, contexts, row, size, left, left >= first)
        else:
            found[count, POSITION], found[count, LENGTH] = to_right, at_right
            right += 1
            to_right, at_right = _match_at(shelf, contexts, row, size, right, right < end)
        count += 1
    return count


@lean_kernel
def find_for(
    words: WordArray,
    meta: LongArray,
    desk: IntArray,
    context: IntArray,
    most: Index,
    found: LongArray,
) -> Any:
    """:func:`find_occurrences` of the end of one ``context``, for callers that are not compiled.

    Arrays are handed over one by one: a named tuple with a read-only array in it costs a microsecond more, as much as
    the search.

    Args:
        words, meta: of a :class:`Shelf`.
        desk: int32 ``[1, MAX_DEPTH]``, work space.
        context: int32 ``[n]``, of any length.
        most, found: see :func:`find_occurrences`; ``most`` is cut to the rows of ``found``.
    """
    width = desk.shape[1]
    size = min(context.shape[0], width)
    for i in range(1, size + 1):
        desk[0, width - i] = context[context.shape[0] - i]
    most = max(0, min(most, found.shape[0]))
    return find_occurrences(Shelf(words, meta), desk, 0, size, most, found)


@lean_kernel
def _take_longest(shelf: Shelf, run: Any, longest: Index, most: Index, found: LongArray) -> Any:
    """The entries with the longest match: the nearest first, or an even sample where there are more than ``most``.

    ``run``: the entry left of the place, and how many match from there to the left and from the next one to the right.
    """
    left, lefts, rights = run
    total = lefts + rights
    if total > most:
        start = left - lefts + 1
        for i in range(most):
            found[i, POSITION] = entry_of(shelf, start + i * total // most)
            found[i, LENGTH] = longest
        return most
    for i in range(lefts):
        found[i, POSITION], found[i, LENGTH] = entry_of(shelf, left - i), longest
    for i in range(rights):
        found[lefts + i, POSITION] = entry_of(shelf, left + 1 + i)
        found[lefts + i, LENGTH] = longest
    return total
