"""Candidates: earlier places whose context resembles the end of a request.

Chains of every order are walked newest first, the highest order first; each candidate is extended to its true
match length and, past one edited token (substituted, inserted or deleted), to an *edit extension*. A *copy pointer*
per source remembers where copying had got to, and offers that place when nothing matches any more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import lean_kernel
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
    Store,
)
from specplug.kernels.store import physical, seed_of
from specplug.kernels.streams import bucket_of, bucket_page, mix, token_at


@lean_kernel
def load_context(slots: Slots, slot: Index, context: IntArray) -> Index:
    """Copy the last tokens of a stream to the front of ``context``; returns how many."""
    length = slots.numbers[slot, N_LENGTH]
    size = min(length, CONTEXT)
    for j in range(size):
        context[j] = token_at(slots, slot, length - size + j)
    return size


@lean_kernel
def _hash_context(context: IntArray, size: Index, seed: Any, hashes: LongArray) -> None:
    """Hash the last ``ORDERS[i]`` tokens of ``context[:size]`` into ``hashes[i]``; -1 where there are not so many."""
    for order in range(N_ORDERS):
        hashes[order] = -1
    hashed = seed
    order = 0
    for back in range(1, LONGEST + 1):
        token = context[size - back] if back <= size else -1
        if token < 0:
            break
        hashed = mix(hashed, token)
        if back == ORDERS[order]:
            hashes[order] = np.int64(hashed)
            order += 1


@lean_kernel
def _token_before(slots: Slots, slot: Index, store: Store, position: Index) -> Any:
    """Token ``position`` of a stream, or of the store where ``slot`` is negative; -1 where it does not exist."""
    if slot >= 0:
        return token_at(slots, slot, position) if position >= 0 else np.int32(-1)
    if position < BLOCK or position <= store.numbers[S_END] - store.tokens.shape[0]:
        return np.int32(-1)
    return store.tokens[physical(store, position)]


@lean_kernel
def _match_length(
    slots: Slots, slot: Index, store: Store, position: Index, context: IntArray, size: Index
) -> Index:
    """Number of tokens that agree before ``position`` and at the end of ``context[:size]``, at most MAX_MATCH."""
    length = 0
    reach = min(MAX_MATCH, size)
    while length < reach:
        token = _token_before(slots, slot, store, position - 1 - length)
        if token < 0 or token != context[size - 1 - length]:
            break
        length += 1
    return length


@lean_kernel
def _edit_extension(
    slots: Slots, slot: Index, store: Store, position: Index, context: IntArray, size: Index
) -> Index:
    """Longest agreement (at most MAX_EDIT) before ``position`` and ``size`` past one edited token."""
    best = 0
    for edit in range(3):  # substituted, inserted in the context, deleted from it
        here = position - 1 - (1 if edit != 1 else 0)
        there = size - 1 - (1 if edit != 2 else 0)
        length = 0
        while length < MAX_EDIT and there - length >= 0:
            token = _token_before(slots, slot, store, here - length)
            if token < 0 or token != context[there - length]:
                break
            length += 1
        best = max(best, length)
    return best


@lean_kernel
def class_of(edit: Index, rank: Index) -> Index:
    """The class of a candidate by its edit extension and its rank in the chain."""
    edits = 0 if edit < 3 else (1 if edit < 7 else 2)
    ranks = 0 if rank == 0 else (1 if rank <= 3 else 2)
    return 3 * edits + ranks


@lean_kernel
def _take(
    state: State,
    owner: Index,
    position: Index,
    length: Index,
    rank: Index,
    size: Index,
    row: Index,
) -> None:
    """Write position, length and class of a candidate; ``owner`` is its slot, or negative for the store."""
    candidates = state.scratch.candidates
    edit: Index = 0
    if 2 * length < MAX_MATCH:  # beyond that an edit further back says nothing more
        edit = _edit_extension(
            state.slots, owner, state.store, position - length, state.scratch.context, size - length
        )
    candidates[row, POSITION] = position
    candidates[row, LENGTH] = length
    candidates[row, CLASS] = class_of(edit, rank)


@lean_kernel
def _find_in_stream(state: State, slot: Index, size: Index, count: Index) -> Index:
    """Append the candidates of the request's own stream to the scratch; returns the new count."""
    slots, store, scratch = state.slots, state.store, state.scratch
    candidates, context = scratch.candidates, scratch.context
    _hash_context(context, size, np.uint64(2166136261), scratch.hashes)
    indexed = slots.numbers[slot, N_INDEXED]
    pages = ((indexed - 1) >> PAGE_BITS) + 1
    first = count
    for order in range(N_ORDERS - 1, -1, -1):
        hashed = scratch.hashes[order]
        if hashed < 0 or indexed <= 1 or count - first >= ENOUGH:
            continue
        longer = ORDERS[order + 1] if order < N_ORDERS - 1 else MAX_MATCH + 1
        page = slots.pages[slot, bucket_page(hashed, pages)]
        position = np.int64(slots.heads[page, order, bucket_of(hashed)])
        rank = 0
        for _ in range(MAX_STEPS):
            if position <= 0 or rank >= MAX_FOUND:
                break
            length = _match_length(slots, slot, store, position, context, size)
            if ORDERS[order] <= length < longer:
                _take(state, slot, position, length, rank, size, count)
                candidates[count, SOURCE] = (
                    PROMPT if position < slots.numbers[slot, N_PROMPT] else OUTPUT
                )
                count += 1
            if length >= ORDERS[order]:
                rank += 1
            here = (slots.pages[slot, position >> PAGE_BITS] << PAGE_BITS) | (
                position & ((1 << PAGE_BITS) - 1)
            )
            position = np.int64(slots.links[here, order])
    return count


@lean_kernel
def _find_in_namespace(
    state: State, namespace: Index, size: Index, first: Index, count: Index
) -> Index:
    """Append the store's candidates of one namespace, the store's own beginning at ``first``; returns the new count."""
    slots, store, scratch = state.slots, state.store, state.scratch
    candidates, context = scratch.candidates, scratch.context
    _hash_context(context, size, seed_of(namespace), scratch.hashes)
    end = store.numbers[S_END]
    capacity = store.tokens.shape[0]
    used = min(capacity, end - BLOCK)
    mask = np.int64(store.heads.shape[1] - 1)
    for order in range(N_ORDERS - 1, -1, -1):
        hashed = scratch.hashes[order]
        if hashed < 0 or count - first >= ENOUGH:
            continue
        longer = ORDERS[order + 1] if order < N_ORDERS - 1 else MAX_MATCH + 1
        age = np.int64(np.uint32(np.uint32(end) - store.heads[order, hashed & mask]))
        rank = 0
        for _ in range(MAX_STEPS):
            if age <= 0 or age >= used or rank >= MAX_FOUND:
                break
            position = end - age
            place = physical(store, position)
            length = _match_length(slots, -1, store, position, context, size)
            if length >= ORDERS[order] and store.namespaces[place // BLOCK] == namespace:
                if length < longer:
                    _take(state, -1, position, length, rank, size, count)
                    candidates[count, SOURCE] = STORE
                    count += 1
                rank += 1
            link = np.int64(store.links[place, order])
            if link == 0:
                break
            age += link
    return count


@lean_kernel
def _find_in_store(state: State, slot: Index, size: Index, count: Index) -> Index:
    """Append the candidates of the store, in the request's namespace and then in the one that serves all.

    Returns the new count. Both together are no more than one could bring: the second is asked where the first had few.
    """
    own, common = state.slots.numbers[slot, N_NAMESPACE], state.store.numbers[S_COMMON]
    first = count
    count = _find_in_namespace(state, own, size, first, count)
    if common >= 0 and common != own:
        count = _find_in_namespace(state, common, size, first, count)
    return count


@lean_kernel
def _may_read(state: State, slot: Index, position: Index) -> bool:
    """Whether a stored position is of the request's namespace or of the one that serves all."""
    store = state.store
    whose = store.namespaces[physical(store, position) // BLOCK]
    own, common = state.slots.numbers[slot, N_NAMESPACE], store.numbers[S_COMMON]
    return bool(whose == own or (common >= 0 and whose == common))


@lean_kernel
def _find_by_pointers(state: State, slot: Index, size: Index, count: Index) -> Index:
    """Append the places where copying had got to: past one substituted token, or past one inserted token.

    A pointer goes on by itself, so in the store it may have come to the output of another tenant.
    """
    slots, store, scratch = state.slots, state.store, state.scratch
    candidates = scratch.candidates
    for source in range(N_SOURCES):
        owner = -1 if source == STORE else slot
        low = BLOCK if source == STORE else 0
        end = store.numbers[S_END] if source == STORE else slots.numbers[slot, N_LENGTH]
        for inserted in range(2):
            position = slots.numbers[slot, N_POINTER + source] - inserted
            if position <= low + MAX_EDIT or position >= end or count >= MAX_CANDIDATES:
                continue
            if source == STORE and not _may_read(state, slot, position):
                continue
            extension = _edit_extension(slots, owner, store, position, scratch.context, size)
            if extension == 0:
                continue
            known = False
            for other in range(count):
                same = (candidates[other, SOURCE] == STORE) == (source == STORE)
                known |= same and candidates[other, POSITION] == position
            if not known:
                candidates[count, POSITION] = position
                candidates[count, LENGTH] = 0
                candidates[count, CLASS] = class_of(extension, inserted)
                candidates[count, SOURCE] = source
                count += 1
    return count


@lean_kernel
def find_candidates(state: State, slot: Index, size: Index) -> Index:
    """All candidates of a request into the scratch; returns how many. Work is bounded by constants."""
    count = _find_in_stream(state, slot, size, 0)
    count = _find_in_store(state, slot, size, count)
    return _find_by_pointers(state, slot, size, count)
