"""Candidates: earlier places whose context resembles the end of a request.

Chains of every order are walked newest first, the highest order first; each candidate is extended to its true
match length and, past one edited token (substituted, inserted or deleted), to an *edit extension*. A *copy pointer*
per source remembers where copying had got to, and offers that place when nothing matches any more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import inlined_kernel, lean_kernel
from specplug.kernels.lanes import LANES, agreement, prefetch
from specplug.kernels.layout import (
    BLOCK,
    CLASS,
    CONTEXT,
    ENOUGH,
    LENGTH,
    LONGEST,
    MAX_CANDIDATES,
    MAX_EDIT,
    MAX_FOUND,
    MAX_MATCH,
    MAX_STEPS,
    N_INDEXED,
    N_LENGTH,
    N_NAMESPACE,
    N_ORDERS,
    N_POINTER,
    N_PROMPT,
    N_SOURCES,
    ORDERS,
    OUTPUT,
    PAGE,
    PAGE_BITS,
    POSITION,
    PROMPT,
    S_COMMON,
    S_END,
    SOURCE,
    STORE,
    Index,
    IntArray,
    LongArray,
    Slots,
    State,
)
from specplug.kernels.store import physical, seed_of
from specplug.kernels.streams import bucket_of, bucket_page, mix, token_at

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
def _hash_context(context: IntArray, seed: Any, hashes: LongArray) -> None:
    """Hash the last ``ORDERS[i]`` tokens of ``context`` into ``hashes[i]``; -1 where there are not so many."""
    for order in range(N_ORDERS):
        hashes[order] = -1
    hashed = seed
    order = 0
    for back in range(1, LONGEST + 1):
        token = context[CONTEXT - back]
        if token < 0:
            break
        hashed = mix(hashed, token)
        if back == ORDERS[order]:
            hashes[order] = np.int64(hashed)
            order += 1


@lean_kernel
def _few_in_stream(state: State, slot: Index, here: Index, there: Index) -> Index:
    """:func:`agreement` where a page, or the stream, begins within the tokens before ``here``."""
    count = 0
    while (
        count < LANES
        and count <= here
        and token_at(state.slots, slot, here - count) == state.scratch.context[there - count]
    ):
        count += 1
    return count


@inlined_kernel
def _agree_in_stream(state: State, slot: Index, here: Index, there: Index) -> Index:
    """Tokens that agree at ``here`` in a stream, at ``there`` in the context, and before; at most LANES."""
    start = here & (PAGE - 1)
    if here < LANES - 1 or start < LANES - 1:
        return _few_in_stream(state, slot, here, there)
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
def _edit_in_stream(state: State, slot: Index, here: Index, there: Index) -> Index:
    """Longest agreement (at most LANES) before ``here`` and ``there``, past one edited token at them."""
    best: Index = _agree_in_stream(state, slot, here - 1, there - 1)  # substituted
    best = max(best, _agree_in_stream(state, slot, here, there - 1))  # inserted in the context
    return max(best, _agree_in_stream(state, slot, here - 1, there))  # deleted from it


@lean_kernel
def _edit_in_store(state: State, here: Index, there: Index, place: Index, low: Index) -> Index:
    """The same for the store; ``here`` lies at ``place`` of the ring, and positions below ``low`` do not exist."""
    best: Index = _agree_in_store(state, here - 1, there - 1, place - 1, low)
    best = max(best, _agree_in_store(state, here, there - 1, place, low))
    return max(best, _agree_in_store(state, here - 1, there, place - 1, low))


@lean_kernel
def class_of(edit: Index, rank: Index) -> Index:
    """The class of a candidate by its edit extension and its rank in the chain."""
    edits = 0 if edit < 3 else (1 if edit < 7 else 2)
    ranks = 0 if rank == 0 else (1 if rank <= 3 else 2)
    return 3 * edits + ranks


@lean_kernel
def _take(state: State, row: Index, position: Index, length: Index, kind: Index) -> None:
    """Write position, length and class of a candidate."""
    candidate = state.scratch.candidates[row]
    candidate[POSITION] = position
    candidate[LENGTH] = length
    candidate[CLASS] = kind


@lean_kernel
def _match_in_stream(state: State, slot: Index, position: Index, most: Index) -> Index:
    """Tokens that agree before ``position`` and at the end of the context, at most ``most``."""
    length = _agree_in_stream(state, slot, position - 1, _LAST)
    while 0 < length < most and length % LANES == 0:
        more = _agree_in_stream(state, slot, position - 1 - length, _LAST - length)
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
        length = _match_in_stream(state, slot, position, min(longer, MAX_MATCH))
        if shortest <= length:
            if length < longer:
                edit: Index = 0
                if 2 * length < MAX_MATCH:  # beyond that an edit further back says nothing more
                    edit = _edit_in_stream(state, slot, position - length - 1, _LAST - length)
                _take(state, count, position, length, class_of(edit, rank))
                state.scratch.candidates[count, SOURCE] = PROMPT if position < prompt else OUTPUT
                count += 1
            rank += 1
        position = following
    return count


@lean_kernel
def _find_in_stream(state: State, slot: Index, count: Index) -> Index:
    """Append the candidates of the request's own stream to the scratch; returns the new count."""
    slots, scratch = state.slots, state.scratch
    _hash_context(scratch.context, np.uint64(2166136261), scratch.hashes)
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
                    edit = _edit_in_store(
                        state, position - before, _LAST - length, place - before, low
                    )
                _take(state, count, position, length, class_of(edit, rank))
                state.scratch.candidates[count, SOURCE] = STORE
                count += 1
            rank += 1
        if link == 0:
            break
        age += link
    return count


@lean_kernel
def _find_in_namespace(state: State, namespace: Index, first: Index, count: Index) -> Index:
    """Append the store's candidates of one namespace, the store's own beginning at ``first``; returns the new count."""
    store, scratch = state.store, state.scratch
    if store.tokens.shape[0] == 0:
        return count
    _hash_context(scratch.context, seed_of(namespace), scratch.hashes)
    end_place = physical(store, store.numbers[S_END])
    for order in range(N_ORDERS - 1, -1, -1):
        hashed = scratch.hashes[order]
        if hashed < 0 or count - first >= ENOUGH:
            continue
        count = _walk_store(state, namespace, order, hashed, end_place, count)
    return count


@lean_kernel
def _find_in_store(state: State, slot: Index, count: Index) -> Index:
    """Append the candidates of the store, in the request's namespace and then in the one that serves all.

    Returns the new count. Both together are no more than one could bring: the second is asked where the first had few.
    """
    own, common = state.slots.numbers[slot, N_NAMESPACE], state.store.numbers[S_COMMON]
    first = count
    count = _find_in_namespace(state, own, first, count)
    if common >= 0 and common != own:
        count = _find_in_namespace(state, common, first, count)
    return count


@lean_kernel
def _may_read(state: State, slot: Index, position: Index) -> bool:
    """Whether a stored position is of the request's namespace or of the one that serves all."""
    store = state.store
    whose = store.namespaces[physical(store, position) // BLOCK]
    own, common = state.slots.numbers[slot, N_NAMESPACE], store.numbers[S_COMMON]
    return bool(whose == own or (common >= 0 and whose == common))


@lean_kernel
def _edit_at(state: State, slot: Index, source: Index, position: Index) -> Index:
    """Agreement before ``position`` of a source, past one edited token of it or of the context."""
    if source != STORE:
        return _edit_in_stream(state, slot, position - 1, _LAST)
    store = state.store
    low = max(BLOCK, store.numbers[S_END] - store.tokens.shape[0] + 1)
    return _edit_in_store(state, position - 1, _LAST, physical(store, position - 1), low)


@lean_kernel
def _is_known(state: State, source: Index, position: Index, count: Index) -> bool:
    """Whether one of the candidates is this place already."""
    candidates = state.scratch.candidates
    for row in range(count):
        if candidates[row, POSITION] == position and (
            (candidates[row, SOURCE] == STORE) == (source == STORE)
        ):
            return True
    return False


@lean_kernel
def _find_by_pointers(state: State, slot: Index, count: Index) -> Index:
    """Append the places where copying had got to: past one substituted token, or past one inserted token.

    A pointer goes on by itself, so in the store it may have come to the output of another tenant.
    """
    slots, store = state.slots, state.store
    for source in range(N_SOURCES):
        low = BLOCK if source == STORE else 0
        end = store.numbers[S_END] if source == STORE else slots.numbers[slot, N_LENGTH]
        for inserted in range(2):
            position = slots.numbers[slot, N_POINTER + source] - inserted
            if position <= low + MAX_EDIT or position >= end or count >= MAX_CANDIDATES:
                continue
            if source == STORE and not _may_read(state, slot, position):
                continue
            extension = _edit_at(state, slot, source, position)
            if extension > 0 and not _is_known(state, source, position, count):
                _take(state, count, position, 0, class_of(extension, inserted))
                state.scratch.candidates[count, SOURCE] = source
                count += 1
    return count


@lean_kernel
def find_candidates(state: State, slot: Index, size: Index) -> Index:
    """All candidates of a request with ``size`` tokens of context; returns how many. Work is bounded by constants."""
    if size == 0:
        return 0
    count = _find_in_stream(state, slot, 0)
    count = _find_in_store(state, slot, count)
    return _find_by_pointers(state, slot, count)
