"""Candidates: earlier places whose context resembles the end of a request.

Chains of every order are walked newest first, the highest order first; each candidate is extended to its true
match length and, past one edited token (substituted, inserted or deleted), to an *edit extension*.
"""

from __future__ import annotations

import numpy as np

from specplug.kernels._jit import inlined_kernel, lean_kernel
from specplug.kernels.chains import class_of, hash_context, take
from specplug.kernels.lanes import LANES, agreement, prefetch
from specplug.kernels.layout import (
    BLOCK,
    CONTEXT,
    ENOUGH,
    MAX_FOUND,
    MAX_MATCH,
    MAX_STEPS,
    N_INDEXED,
    N_LENGTH,
    N_ORDERS,
    N_PROMPT,
    ORDERS,
    OUTPUT,
    PAGE,
    PAGE_BITS,
    PROMPT,
    S_END,
    STORE,
    Index,
    IntArray,
    Slots,
    State,
)
from specplug.kernels.store import physical
from specplug.kernels.streams import bucket_of, bucket_page, token_at

#: Where the last token stands in the context, and what stands there for separators and for what does not exist.
_LAST = CONTEXT - 1
_NOTHING = -2
_BLOCK_BITS = BLOCK.bit_length() - 1


@lean_kernel
def load_context(slots: Slots, slot: Index, context: IntArray) -> Index:
    """Copy the last tokens of a stream to the end of ``context``; returns how many. -2 is what matches nothing."""
    length = slots.numbers[slot, N_LENGTH]
    size = min(length, CONTEXT)
    for j in range(CONTEXT - size):
        context[j] = _NOTHING
    # No more than two pages hold them.
    at = length - size
    while at < length:
        start = at & (PAGE - 1)
        count = min(PAGE - start, length - at)
        place = (slots.pages[slot, at >> PAGE_BITS] << PAGE_BITS) | start
        for j in range(count):
            token = slots.tokens[place + j]
            context[CONTEXT - length + at + j] = token if token >= 0 else _NOTHING
        at += count
    return size


@lean_kernel
def _few_in_stream(state: State, slot: Index, first: Index, here: Index, there: Index) -> Index:
    """:func:`agreement` where a page, or what may be read, begins within the tokens before ``here``."""
    count = 0
    while (
        count < LANES
        and count <= here - first
        and token_at(state.slots, slot, here - count) == state.scratch.context[there - count]
    ):
        count += 1
    return count


@inlined_kernel
def _agree_in_stream(state: State, slot: Index, first: Index, here: Index, there: Index) -> Index:
    """Tokens that agree at ``here`` in a stream, at ``there`` in the context, and before; at most LANES.

    Of the stream what stands before ``first`` is not read; ``here`` may lie there, and then none do.
    """
    start = here & (PAGE - 1)
    if here - first < LANES - 1 or start < LANES - 1:
        return _few_in_stream(state, slot, first, here, there)
    page = np.int64(state.slots.pages[slot, here >> PAGE_BITS])
    return agreement(state.slots.tokens, (page << PAGE_BITS) | start, state.scratch.context, there)


@lean_kernel
def _few_in_store(state: State, here: Index, there: Index, low: Index) -> Index:
    """:func:`agreement` where the ring, or what it still holds, begins within the tokens before ``here``."""
    store = state.store
    count = 0
    while (
        count < LANES
        and here - count >= low
        and store.tokens[physical(store, here - count)] == state.scratch.context[there - count]
    ):
        count += 1
    return count


@inlined_kernel
def _agree_in_store(state: State, here: Index, there: Index, place: Index, low: Index) -> Index:
    """The same for the store; ``here`` lies at ``place`` of the ring, and positions below ``low`` do not exist."""
    if place < LANES - 1 or here - (LANES - 1) < low:
        return _few_in_store(state, here, there, low)
    return agreement(state.store.tokens, place, state.scratch.context, there)


@lean_kernel
def edit_in_stream(state: State, slot: Index, first: Index, here: Index, there: Index) -> Index:
    """Longest agreement (at most LANES) before ``here`` and ``there``, past one edited token at them.

    ``first`` is where the text begins: a stream, or the answer in it.
    """
    best: Index = _agree_in_stream(state, slot, first, here - 1, there - 1)  # substituted
    best = max(
        best, _agree_in_stream(state, slot, first, here, there - 1)
    )  # inserted in the context
    return max(best, _agree_in_stream(state, slot, first, here - 1, there))  # deleted from it


@lean_kernel
def edit_in_store(state: State, here: Index, there: Index, place: Index, low: Index) -> Index:
    """The same for the store; ``here`` lies at ``place`` of the ring, and positions below ``low`` do not exist."""
    best: Index = _agree_in_store(state, here - 1, there - 1, place - 1, low)
    best = max(best, _agree_in_store(state, here, there - 1, place, low))
    return max(best, _agree_in_store(state, here - 1, there, place - 1, low))


@lean_kernel
def match_in_stream(state: State, slot: Index, first: Index, position: Index, most: Index) -> Index:
    """Tokens that agree before ``position`` and at the end of the context, at most ``most``; see above."""
    length = _agree_in_stream(state, slot, first, position - 1, _LAST)
    while 0 < length < most and length % LANES == 0:
        more = _agree_in_stream(state, slot, first, position - 1 - length, _LAST - length)
        length += more
        if more < LANES:
            break
    return min(length, most)


@lean_kernel
def _walk_stream(state: State, slot: Index, order: Index, position: Index, count: Index) -> Index:
    """Append the candidates of the chain of an order that begins at ``position``; returns the new count."""
    slots = state.slots
    shortest = ORDERS[order]
    longer = ORDERS[order + 1] if order < N_ORDERS - 1 else MAX_MATCH + 1
    prompt = slots.numbers[slot, N_PROMPT]
    rank = 0
    for _ in range(MAX_STEPS):
        if position <= 0 or rank >= MAX_FOUND:
            break
        here = (np.int64(slots.pages[slot, position >> PAGE_BITS]) << PAGE_BITS) | (
            position & (PAGE - 1)
        )
        following = np.int64(slots.links[here, order])
        there = (np.int64(slots.pages[slot, following >> PAGE_BITS]) << PAGE_BITS) | (
            following & (PAGE - 1)
        )
        prefetch(slots.tokens, there)
        prefetch(slots.links, there * N_ORDERS + order)
        # Whoever matches further has been found in the chain of a longer context.
        length = match_in_stream(state, slot, 0, position, min(longer, MAX_MATCH))
        if shortest <= length:
            if length < longer:
                edit: Index = 0
                if 2 * length < MAX_MATCH:  # beyond that an edit further back says nothing more
                    edit = edit_in_stream(state, slot, 0, position - length - 1, _LAST - length)
                source = PROMPT if position < prompt else OUTPUT
                take(state, count, (position, source), length, class_of(edit, rank))
                count += 1
            rank += 1
        position = following
    return count


@lean_kernel
def find_in_stream(state: State, slot: Index, count: Index) -> Index:
    """Append the candidates of the request's own stream to the scratch; returns the new count."""
    slots, scratch = state.slots, state.scratch
    hash_context(scratch.context, np.uint64(2166136261), scratch.hashes)
    indexed = slots.numbers[slot, N_INDEXED]
    pages = ((indexed - 1) >> PAGE_BITS) + 1
    first = count
    for order in range(N_ORDERS - 1, -1, -1):
        hashed = scratch.hashes[order]
        if hashed < 0 or indexed <= 1 or count - first >= ENOUGH:
            continue
        page = slots.pages[slot, bucket_page(hashed, pages)]
        position = np.int64(slots.heads[page, order, bucket_of(hashed)])
        count = _walk_stream(state, slot, order, position, count)
    return count


@lean_kernel
def _match_in_store(state: State, position: Index, most: Index, place: Index, low: Index) -> Index:
    """Tokens that agree before ``position`` of the store, at ``place``, and at the end of the context."""
    length = _agree_in_store(state, position - 1, _LAST, place - 1, low)
    while 0 < length < most and length % LANES == 0:
        more = _agree_in_store(
            state, position - 1 - length, _LAST - length, place - 1 - length, low
        )
        length += more
        if more < LANES:
            break
    return min(length, most)


@lean_kernel
def _walk_store(
    state: State, namespace: Index, order: Index, hashed: Index, end_place: Index, count: Index
) -> Index:
    """Append a namespace's candidates of the chain of an order; returns the new count.

    ``end_place`` is where the store's end lies in the ring: to divide for each place would cost more than the rest.
    """
    store = state.store
    shortest = ORDERS[order]
    longer = ORDERS[order + 1] if order < N_ORDERS - 1 else MAX_MATCH + 1
    end, capacity = store.numbers[S_END], store.tokens.shape[0]
    low = max(BLOCK, end - capacity + 1)
    used = min(capacity, end - BLOCK)
    bucket = hashed & np.int64(store.heads.shape[1] - 1)
    age = np.int64(np.uint32(np.uint32(end) - store.heads[order, bucket]))
    rank = 0
    for _ in range(MAX_STEPS):
        if age <= 0 or age >= used or rank >= MAX_FOUND:
            break
        place = end_place - age
        if place < 0:
            place += capacity
        link = np.int64(store.links[place, order])
        there = max(0, place - link)
        prefetch(store.tokens, there)
        prefetch(store.links, there * N_ORDERS + order)
        position = end - age
        length = _match_in_store(state, position, min(longer, MAX_MATCH), place, low)
        if length >= shortest and store.namespaces[place >> _BLOCK_BITS] == namespace:
            if length < longer:
                edit: Index = 0
                if 2 * length < MAX_MATCH:
                    before = length + 1
                    edit = edit_in_store(
                        state, position - before, _LAST - length, place - before, low
                    )
                take(state, count, (position, STORE), length, class_of(edit, rank))
                count += 1
            rank += 1
        if link == 0:
            break
        age += link
    return count


@lean_kernel
def find_in_store(state: State, namespace: Index, first: Index, count: Index) -> Index:
    """Append the store's candidates of a namespace whose hashes stand in the scratch; returns the new count.

    Those of other requests begin at ``first``.
    """
    store, scratch = state.store, state.scratch
    if store.tokens.shape[0] == 0:
        return count
    end_place = physical(store, store.numbers[S_END])
    for order in range(N_ORDERS - 1, -1, -1):
        hashed = scratch.hashes[order]
        if hashed < 0 or count - first >= ENOUGH:
            continue
        count = _walk_store(state, namespace, order, hashed, end_place, count)
    return count
