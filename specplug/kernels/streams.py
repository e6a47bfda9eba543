"""Per-request token streams in pages, linked by hash chains of several orders (as LZ match finders do).

The bucket table of a stream grows with it by linear hashing: page ``n`` of the table is split off page
``n - 2**floor(log2(n))`` by copying it, which costs no rehashing; entries older than the split are found through
both halves, since every candidate is compared token by token anyway.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import inlined_kernel, lean_kernel
from specplug.kernels.layout import (
    BUCKET_BITS,
    BUCKETS,
    MAX_STEPS,
    N_AGREED,
    N_DEPTHS,
    N_DRAFTED,
    N_EXPECTED,
    N_INDEXED,
    N_LENGTH,
    N_MODEL,
    N_NAMESPACE,
    N_ORDERS,
    N_PENDING,
    N_POINTER,
    N_PROMPT,
    N_SHOWN,
    N_SOURCES,
    N_TRIED,
    PAGE,
    PAGE_BITS,
    RECENT_ROWS,
    SEPARATOR,
    Index,
    IntArray,
    Slots,
)
from specplug.kernels.quick import floor_log2


@lean_kernel
def mix(state: Any, token: Any) -> Any:
    """One step of a 32-bit hash over the tokens of a context, newest first."""
    mixed = (
        (np.uint64(state) ^ (np.uint64(token) & np.uint64(0xFFFFFFFF))) * np.uint64(2654435769)
    ) & np.uint64(0xFFFFFFFF)
    return mixed ^ (mixed >> np.uint64(15))


@inlined_kernel
def context_hashes(seed: Any, tokens: Any) -> Any:
    """Hashes of the last 1, 2 and 4 (see ORDERS) of four ``tokens``, newest first, and how many of them exist.

    A negative token ends the context; what would be hashed beyond it is meaningless.
    """
    a, b, c, d = tokens
    one = mix(seed, a)
    two = mix(one, b)
    four = mix(mix(two, c), d)
    known = 3
    if a < 0:
        known = 0
    elif b < 0:
        known = 1
    elif c < 0 or d < 0:
        known = 2
    return (np.int64(one), np.int64(two), np.int64(four)), known


@lean_kernel
def token_at(slots: Slots, slot: Index, position: Index) -> Any:
    """The token of a stream at ``position``."""
    return slots.tokens[
        (slots.pages[slot, position >> PAGE_BITS] << PAGE_BITS) | (position & (PAGE - 1))
    ]


@lean_kernel
def _half(pages: Index) -> Index:
    """The largest power of two up to ``pages``: so many bucket pages there were before the current round of splits."""
    return np.int64(1) << floor_log2(pages)


@lean_kernel
def _split_page(page: Index) -> Index:
    """The page from which bucket page ``page`` (at least 1) is split off."""
    return page - _half(page)


@lean_kernel
def _bucket_page(hashed: Index, pages: Index, half: Index) -> Index:
    page = hashed & (2 * half - 1)
    return page if page < pages else page & (half - 1)


@lean_kernel
def bucket_page(hashed: Index, pages: Index) -> Index:
    """The bucket page of a hash value in a table of ``pages`` pages (linear hashing)."""
    return _bucket_page(hashed, pages, _half(pages))


@lean_kernel
def bucket_of(hashed: Index) -> Index:
    """The bucket of a hash value within its page."""
    return hashed >> (32 - BUCKET_BITS)


@inlined_kernel
def _recent_row(hashed: Index) -> Index:
    """Where the last place of a token with this hash (as a context of one) is kept."""
    return hashed & (RECENT_ROWS - 1)


@lean_kernel
def _last_in_chain(slots: Slots, slot: Index, token: Index, hashed: Index) -> Index:
    """:func:`last_place` where the row belongs to another token."""
    page = slots.pages[
        slot, bucket_page(hashed, ((slots.numbers[slot, N_INDEXED] - 1) >> PAGE_BITS) + 1)
    ]
    position = np.int64(slots.heads[page, 0, bucket_of(hashed)])
    for _ in range(MAX_STEPS):
        if position <= 0:
            break
        if token_at(slots, slot, position - 1) == token:
            return position - 1
        here = (slots.pages[slot, position >> PAGE_BITS] << PAGE_BITS) | (position & (PAGE - 1))
        position = np.int64(slots.links[here, 0])
    return np.int64(-1)


@inlined_kernel
def last_place(slots: Slots, slot: Index, token: Index) -> Index:
    """Index of the last occurrence of ``token`` in a stream before its linked positions; -1 if it is not found.

    Mostly one look into ``recent``: at the token, or at a row that nothing has taken.
    """
    hashed = np.int64(mix(np.uint64(2166136261), token))
    latest = slots.recent[slot, _recent_row(hashed)]
    if latest[0] == token:
        return np.int64(latest[1])
    return np.int64(-1) if latest[0] < 0 else _last_in_chain(slots, slot, token, hashed)


@lean_kernel
def begin_stream(
    slots: Slots, slot: Index, prompt_length: Index, namespace: Index, model: Index, shows: bool
) -> None:
    """Make ``slot``, which is nobody's, an empty stream; ``shows``: others may read its answer while it is written."""
    numbers = slots.numbers
    numbers[slot, N_LENGTH] = 0
    numbers[slot, N_PROMPT] = prompt_length
    numbers[slot, N_INDEXED] = 1
    numbers[slot, N_NAMESPACE] = namespace
    numbers[slot, N_MODEL] = model
    numbers[slot, N_DEPTHS] = 0
    numbers[slot, N_DRAFTED] = -1
    numbers[slot, N_PENDING] = -1
    numbers[slot, N_SHOWN] = max(1, prompt_length) if shows else 0
    slots.running[0] += 1
    numbers[slot, N_TRIED] = 0
    numbers[slot, N_AGREED] = 0
    numbers[slot, N_EXPECTED] = 0
    for source in range(N_SOURCES):
        numbers[slot, N_POINTER + source] = 0
    recent = slots.recent[slot]
    for row in range(RECENT_ROWS):
        recent[row, 0] = SEPARATOR
        recent[row, 1] = 0


@lean_kernel
def append_tokens(slots: Slots, slot: Index, tokens: IntArray) -> None:
    """Append ``tokens`` to the stream of ``slot``, taking pages from the free stack; one separator is like another."""
    length = slots.numbers[slot, N_LENGTH]
    done = 0
    while done < len(tokens):
        start = length & (PAGE - 1)
        if start == 0:
            slots.free_count[0] -= 1
            slots.pages[slot, length >> PAGE_BITS] = slots.free[slots.free_count[0]]
        place = (np.int64(slots.pages[slot, length >> PAGE_BITS]) << PAGE_BITS) | start
        count = min(PAGE - start, len(tokens) - done)
        for j in range(count):
            slots.tokens[place + j] = max(tokens[done + j], SEPARATOR)
        done += count
        length += count
    slots.numbers[slot, N_LENGTH] = length


@lean_kernel
def _open_bucket_page(slots: Slots, slot: Index, page: Index) -> None:
    """Prepare the buckets that come with page ``page`` of a stream."""
    new = slots.pages[slot, page]
    if page == 0:
        slots.heads[new, :, :] = 0
        return
    old = slots.pages[slot, _split_page(page)]
    for order in range(N_ORDERS):
        for bucket in range(BUCKETS):
            slots.heads[new, order, bucket] = slots.heads[old, order, bucket]


@inlined_kernel
def token_from(slots: Slots, slot: Index, first: Index, position: Index) -> Any:
    """The token at ``position``, -1 before ``first``, where what may be read begins."""
    return token_at(slots, slot, position) if position >= first else np.int32(SEPARATOR)


@inlined_kernel
def _link(slots: Slots, slot: Index, place: Any, order: Index, hashed: Any, half: Index) -> None:
    """Put a position, ``place`` in its page and in memory, at the head of its chain of an order."""
    position, here = place
    page = _bucket_page(hashed, (position >> PAGE_BITS) + 1, half)
    owner, bucket = np.int64(slots.pages[slot, page]), bucket_of(hashed)
    slots.links[here, order] = slots.heads[owner, order, bucket]
    slots.heads[owner, order, bucket] = position


@lean_kernel
def index_stream(slots: Slots, slot: Index, end: Index) -> None:
    """Link the positions up to ``end`` (excluded) that are not linked yet."""
    position = slots.numbers[slot, N_INDEXED]
    half = _half((position >> PAGE_BITS) + 1)
    a, b = token_from(slots, slot, 0, position - 1), token_from(slots, slot, 0, position - 2)
    c, d = token_from(slots, slot, 0, position - 3), token_from(slots, slot, 0, position - 4)
    while position < end:
        page = position >> PAGE_BITS
        if position & (PAGE - 1) == 0 or position == 1:
            _open_bucket_page(slots, slot, page)
            half = _half(page + 1)
        first = np.int64(slots.pages[slot, page]) << PAGE_BITS
        for here in range(
            first | (position & (PAGE - 1)), first + min(PAGE, end - (page << PAGE_BITS))
        ):
            hashes, known = context_hashes(np.uint64(2166136261), (a, b, c, d))
            place = (position, here)
            for order in range(known, N_ORDERS):
                slots.links[here, order] = 0
            if known > 0:
                _link(slots, slot, place, 0, hashes[0], half)
                latest = slots.recent[slot, _recent_row(hashes[0])]
                latest[0], latest[1] = a, position - 1
            if known > 1:
                _link(slots, slot, place, 1, hashes[1], half)
            if known > 2:
                _link(slots, slot, place, 2, hashes[2], half)
            a, b, c, d = slots.tokens[here], a, b, c
            position += 1
    slots.numbers[slot, N_INDEXED] = max(position, slots.numbers[slot, N_INDEXED])


@lean_kernel
def index_some(slots: Slots, slot: Index, budget: Index) -> Index:
    """Link up to ``budget`` more positions of a stream; returns how many."""
    start = slots.numbers[slot, N_INDEXED]
    end = min(slots.numbers[slot, N_LENGTH], start + budget)
    if end <= start:
        return 0
    index_stream(slots, slot, end)
    return end - start


@lean_kernel
def free_stream(slots: Slots, slot: Index) -> None:
    """Give the pages of ``slot`` back."""
    length = slots.numbers[slot, N_LENGTH]
    for page in range((length + PAGE - 1) >> PAGE_BITS):
        slots.free[slots.free_count[0]] = slots.pages[slot, page]
        slots.free_count[0] += 1
    if slots.numbers[slot, N_SHOWN] >= 0:
        slots.running[0] -= 1
    slots.numbers[slot, N_SHOWN] = -1
    slots.numbers[slot, N_LENGTH] = 0
    slots.numbers[slot, N_INDEXED] = 1


@lean_kernel
def slots_exist(slots: Slots, wanted: IntArray) -> bool:
    """Whether all are in range: a wrong one would write into another request's text."""
    good = True
    for slot in wanted:
        good &= 0 <= slot < slots.numbers.shape[0]
    return good
