"""Slow twin of :mod:`specplug.kernels.lookup`: every entry is compared with the request."""

from __future__ import annotations

from typing import Any

from specplug.reference.corpus import DEPTH, TOKEN_BITS, TOKENS, VOCAB, context_of, token_at
from specplug.reference.packed import read_packed

#: Places in ``meta``, see specplug.kernels.datastore_layout.
ENTRIES, ENTRY_BITS, ENTRY_WORD, BUCKET_BITS, BUCKET_WORD, BUCKET_LISTED = 1, 6, 7, 8, 9, 10


def entry_of(shelf: Any, index: int) -> int:
    """Position of an entry."""
    words, meta = shelf
    position = read_packed(words, int(meta[ENTRY_WORD]), int(meta[ENTRY_BITS]), index)
    return min(position, int(meta[TOKENS]) - 1)


def bucket_start(shelf: Any, token: int) -> int:
    """First entry whose last token is at least ``token``."""
    words, meta = shelf
    listed, width = int(meta[BUCKET_LISTED]), int(meta[BUCKET_BITS])
    if not listed:
        start = read_packed(words, int(meta[BUCKET_WORD]), width, token)
        return min(start, int(meta[ENTRIES]))
    bits = width - int(meta[TOKEN_BITS])
    records = [read_packed(words, int(meta[BUCKET_WORD]), width, i) for i in range(listed + 1)]
    start = next(r & ((1 << bits) - 1) for r in records if r >> bits >= token)
    return min(start, int(meta[ENTRIES]))


def usable(shelf: Any, contexts: Any, row: int, size: int) -> int:
    """How many of the last ``size`` tokens of a context count: up to ``DEPTH``, back to a separator."""
    ending = [int(token) for token in contexts[row][::-1][: min(size, int(shelf[1][DEPTH]))]]
    foreign = [i for i, token in enumerate(ending) if not 0 <= token < shelf[1][VOCAB]]
    return foreign[0] if foreign else len(ending)


def find_occurrences(
    shelf: Any, contexts: Any, row: int, size: int, limits: Any, found: Any, question: Any
) -> int:
    """Occurrences with the longest matches of the end of a context, longest first. ``limits``: how many, how long."""
    most, fold = limits
    size = usable(shelf, contexts, row, size)
    query = [int(token) for token in contexts[row][::-1][:size]]
    table = []
    for index in range(int(shelf[1][ENTRIES])):
        position = entry_of(shelf, index)
        context = context_of(shelf, position)
        length = 0
        while length < min(size, len(context)) and context[length] == query[length]:
            length += 1
        table.append((index, position, length, context < query))
    matching = [row for row in table if row[2] > 0]
    if not query or not matching:
        return 0
    longest = max(length for _, _, length, _ in matching)
    best = [row for row in matching if row[2] == longest]
    if len(best) > most:
        chosen = [best[i * len(best) // most] for i in range(most)]
    else:
        # The nearest on the left and on the right of the place, the longer match first.
        long = [row for row in matching if row[2] * fold > longest]
        left = [row for row in long if row[3]][::-1]
        right = [row for row in long if not row[3]]
        chosen = []
        while len(chosen) < most and (left or right):
            if left and (not right or left[0][2] >= right[0][2]):
                chosen.append(left.pop(0))
            else:
                chosen.append(right.pop(0))
    for i, (_, position, length, _) in enumerate(chosen):
        found[i][0], found[i][1] = position, length
    assert all(token_at(shelf, position) >= 0 for _, position, _, _ in chosen)
    return len(chosen)


def find_for(handle: Any, context: Any, most: int) -> int:
    """:func:`find_occurrences` of the end of one context; ``handle``: the arrays of a desk."""
    words, meta, desk, question, found = handle
    width = len(desk[0])
    ending = context[-width:]
    desk[0][width - len(ending) :] = ending
    limits = max(0, min(most, len(found))), int(meta[DEPTH]) + 1
    return find_occurrences((words, meta), desk, 0, len(ending), limits, found, question)
