"""The occurrences in a datastore that share the longest context with a request: one binary search.

Where the context would stand among the sorted entries, its best matches lie: the longest next to that place, shorter
ones around them. So backing off to shorter matches needs no further search, only a walk outwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import inlined_kernel, lean_kernel
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
    MAX_DEPTH,
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
from specplug.kernels.desk import unpack_desk
from specplug.kernels.lanes import leading
from specplug.kernels.packed import read_bits, read_packed

#: More than the longest match can be longer than the shortest.
ANY_LENGTH = MAX_DEPTH + 1


@inlined_kernel
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
    # Where it is, it is one of ``size`` from ``low`` on; halved without a branch that could be guessed wrong.
    low, size = np.int64(0), meta[BUCKET_LISTED] + 1
    while size > 1:
        half = size >> 1
        record = read_packed(shelf.words, meta[BUCKET_WORD], meta[BUCKET_BITS], low + half - 1)
        low += half * np.int64(record >> bits < token)
        size -= half
    return low


@inlined_kernel
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


@inlined_kernel
def usable(shelf: Shelf, contexts: IntArray, row: Index, size: Index) -> Any:
    """How many of the last ``size`` tokens of a context count: up to ``DEPTH``, back to a separator."""
    last = contexts.shape[1] - 1
    reach = min(size, shelf.meta[DEPTH])
    length = 0
    while length < reach and 0 <= contexts[row, last - length] < shelf.meta[VOCAB]:
        length += 1
    return length


@inlined_kernel
def _ask(shelf: Shelf, contexts: IntArray, row: Index, size: Index, question: WordArray) -> Any:
    """The last ``size`` tokens of a context into ``question``, as the text packs them; returns what comparing needs:
    how many there are, tokens per word, bits per token.

    Word 0 holds the last tokens, the very last one uppermost: words of the text that end at a position compare with it
    as numbers, so that several tokens are compared at once.
    """
    bits = shelf.meta[TOKEN_BITS]
    per_word = 64 // bits
    last = contexts.shape[1] - 1
    j, done = 0, 0
    while done < size:
        word = np.uint64(0)
        for k in range(done, done + per_word):
            token = np.uint64(contexts[row, last - k]) if k < size else np.uint64(0)
            word = (word << np.uint64(bits)) | token
        question[j] = word
        j += 1
        done += per_word
    return np.int64(size), per_word, bits, np.int64(1 << 16) // bits + 1


@inlined_kernel
def _compare(
    shelf: Shelf, position: Index, question: WordArray, asked: Any, size: Index, j: Index
) -> Any:
    """How many tokens before ``position`` agree with the question, up to ``size``; whether they come before it in the
    order of entries if they do not; and how many of its words agree. ``j`` words are known to.
    """
    _, per_word, bits, inverse = asked
    meta = shelf.meta
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    top = (per_word - 1) * bits
    unused = 64 - per_word * bits
    length = np.int64(j * per_word)
    while length < size:
        start = position - length - per_word
        if start < 0:
            return _compare_first(shelf, position, question, asked, size, j)
        text = read_bits(shelf.words, meta[TOKEN_WORD], start * bits, per_word * bits)
        differing = text ^ question[j]
        if length + per_word > size:
            unasked = np.uint64((length + per_word - size) * bits)
            differing = (differing >> unasked) << unasked
        if differing != 0:
            # Without branches: to guess wrong where texts part takes longer than all else here.
            agreed = ((leading(differing) - unused) * inverse) >> 16
            shift = np.uint64(top - agreed * bits)
            token = (text >> shift) & mask
            # A separator is a beginning, which comes first.
            before = (token >= np.uint64(meta[VOCAB])) | (token < (question[j] >> shift) & mask)
            return length + agreed, before, j
        length += per_word
        j += 1
    return np.int64(size), False, j


@lean_kernel
def _compare_first(
    shelf: Shelf, position: Index, question: WordArray, asked: Any, size: Index, j: Index
) -> Any:
    """:func:`_compare` near the beginning of the corpus, before which there is nothing to read."""
    _, per_word, bits, _ = asked
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    length = np.int64(j * per_word)
    k = j
    while length < size:
        shift = np.uint64((per_word - 1) * bits)
        for _ in range(min(per_word, size - length)):
            token = token_of(shelf, position - 1 - length)
            other = np.int64((question[k] >> shift) & mask)
            if token != other:
                return length, token < other, k
            length += 1
            shift -= np.uint64(bits)
        k += 1
    return np.int64(size), False, k


@inlined_kernel
def _place_of(shelf: Shelf, question: WordArray, asked: Any) -> Any:
    """First entry whose context does not come before that of the request; and the bounds of its last token."""
    size, per_word, bits, _ = asked
    token = np.int64(question[0] >> np.uint64((per_word - 1) * bits))
    first, end = _bucket_of(shelf, token)
    low, high = first, end
    # Words that agree at both bounds agree between them (Manber and Myers 1993).
    at_low, at_high = 0, 0
    while low < high:
        middle = (low + high) >> 1
        position = entry_of(shelf, middle)
        known = min(at_low, at_high)
        _, before, words = _compare(shelf, position, question, asked, size, known)
        if before:
            low = middle + 1
            at_low = words
        else:
            high = middle
            at_high = words
    return low, first, end


@inlined_kernel
def _run_bound(
    shelf: Shelf, question: WordArray, asked: Any, bounds: Any, least: Index, matches: bool
) -> Any:
    """How far from ``bounds[0]`` towards ``bounds[1]`` (not reached) entries match ``least`` tokens, the first of which
    ``matches`` or not; by galloping."""
    if not matches:
        return 0
    start, limit = bounds
    step = 1 if limit >= start else -1
    reach = (limit - start) * step
    low, high = 1, 2
    while high <= reach:
        entry = entry_of(shelf, start + step * (high - 1))
        if _compare(shelf, entry, question, asked, least, 0)[0] < least:
            break
        low, high = high, 2 * high
    high = min(high, reach + 1)
    # The first ``low`` entries match; number ``high`` does not, or is none.
    while high - low > 1:
        middle = (low + high) >> 1
        entry = entry_of(shelf, start + step * (middle - 1))
        if _compare(shelf, entry, question, asked, least, 0)[0] >= least:
            low = middle
        else:
            high = middle
    return low


@inlined_kernel
def _match_at(shelf: Shelf, question: WordArray, asked: Any, index: Index, inside: bool) -> Any:
    """Position of an entry, and how many tokens match before it; none where the entry is not ``inside``."""
    if not inside:
        return np.int64(-1), np.int64(0)
    position = entry_of(shelf, index)
    length, _, _ = _compare(shelf, position, question, asked, asked[0], 0)
    return position, length


@lean_kernel
def find_occurrences(
    shelf: Shelf,
    contexts: IntArray,
    row: Index,
    size: Index,
    limits: Any,
    found: LongArray,
    question: WordArray,
) -> Any:
    """Occurrences with the longest matches of the end of a context, longest first.

    Args:
        contexts: int32 ``[B, W]``, right-aligned; the last ``size`` tokens of row ``row`` are looked for.
        limits: how many, at most (``most``); and that the longest match is less than so many times as long as any
            (:data:`ANY_LENGTH`: no matter how long).
        found: int64 ``[>= most, 2]``, filled with positions and match lengths.
        question: uint64 ``[MAX_DEPTH]``, work space.

    Returns:
        How many. Where more than ``most`` share the longest match they are a sample, evenly spaced in the order of
        the entries; ties between the two sides of the place go to the left. O(log(entries) + most * DEPTH).
    """
    most, fold = limits
    size = usable(shelf, contexts, row, size)
    if size == 0:
        return 0
    asked = _ask(shelf, contexts, row, size, question)
    place, first, end = _place_of(shelf, question, asked)
    left, right = place - 1, place
    to_left, at_left = _match_at(shelf, question, asked, left, left >= first)
    to_right, at_right = _match_at(shelf, question, asked, right, right < end)
    longest = max(at_left, at_right)
    if longest == 0:
        return 0
    bounds = (left, first - 1)
    lefts = _run_bound(shelf, question, asked, bounds, longest, at_left == longest)
    bounds = (right, end)
    rights = _run_bound(shelf, question, asked, bounds, longest, at_right == longest)
    count = _take_longest(shelf, (left, lefts, rights), longest, most, found)
    if count == most:
        return count
    if lefts:
        left -= lefts
        to_left, at_left = _match_at(shelf, question, asked, left, left >= first)
    if rights:
        right += rights
        to_right, at_right = _match_at(shelf, question, asked, right, right < end)
    while count < most and max(at_left, at_right) * fold > longest:
        if at_left >= at_right:
            found[count, POSITION], found[count, LENGTH] = to_left, at_left
            left -= 1
            to_left, at_left = _match_at(shelf, question, asked, left, left >= first)
        else:
            found[count, POSITION], found[count, LENGTH] = to_right, at_right
            right += 1
            to_right, at_right = _match_at(shelf, question, asked, right, right < end)
        count += 1
    return count


@lean_kernel
def find_for(handle: Any, context: IntArray, most: Index) -> Any:
    """:func:`find_occurrences` of the end of one ``context``, for callers that are not compiled.

    Args:
        handle: of a :class:`specplug.kernels.desk.Desk`, whose ``found`` is filled.
        context: int32 ``[n]``, of any length.
        most: see :func:`find_occurrences`; cut to the rows of ``found``.
    """
    words, meta, desk, question, found = unpack_desk(handle)
    width = desk.shape[1]
    size = min(context.shape[0], width)
    for i in range(1, size + 1):
        desk[0, width - i] = context[context.shape[0] - i]
    most = max(0, min(most, found.shape[0]))
    return find_occurrences(Shelf(words, meta), desk, 0, size, (most, ANY_LENGTH), found, question)


@inlined_kernel
def _take_longest(shelf: Shelf, run: Any, longest: Index, most: Index, found: LongArray) -> Any:
    """The entries with the longest match: the nearest first, or an even sample where there are more than ``most``.

    ``run``: the entry left of the place, and how many match from there to the left and from the next one to the right.
    """
    left, lefts, rights = run
    total = lefts + rights
    if most == 0:
        return most
    if total > most:
        # Places ``i * total // most`` from the first one on, without a division for each.
        step, rest = total // most, total % most
        entry, over = left - lefts + 1, 0
        for i in range(most):
            found[i, POSITION] = entry_of(shelf, entry)
            found[i, LENGTH] = longest
            entry += step
            over += rest
            if over >= most:
                entry += 1
                over -= most
        return most
    for i in range(lefts):
        found[i, POSITION], found[i, LENGTH] = entry_of(shelf, left - i), longest
    for i in range(rights):
        found[lefts + i, POSITION] = entry_of(shelf, left + 1 + i)
        found[lefts + i, LENGTH] = longest
    return total
