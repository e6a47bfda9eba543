"""The store of finished outputs: a ring of tokens with hash chains; old text is evicted by being overwritten."""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import inlined_kernel, lean_kernel
from specplug.kernels.lanes import prefetch
from specplug.kernels.layout import (
    BLOCK,
    N_NAMESPACE,
    N_ORDERS,
    S_END,
    S_OUTPUTS,
    SEPARATOR,
    Index,
    Slots,
    Store,
)
from specplug.kernels.streams import context_hashes, mix, token_at

#: Tokens ahead of the one that is linked whose buckets are asked for.
AHEAD = 8


@lean_kernel
def physical(store: Store, position: Index) -> Index:
    """The place in the ring of a stored position that still exists or is about to be written."""
    # Unsigned: a remainder of signed numbers takes a correction.
    return np.int64(np.uint64(position) % np.uint64(store.tokens.shape[0]))


@lean_kernel
def seed_of(namespace: Index) -> Any:
    """Hash seed of a namespace, so that the chains of different tenants hardly meet."""
    return mix(np.uint64(2166136261), namespace)


@lean_kernel
def _push_token(store: Store, namespace: Index, token: Index) -> None:
    """Write one token at the end of the ring, without linking it."""
    end = store.numbers[S_END]
    place = physical(store, end)
    store.tokens[place] = token
    if place % BLOCK == 0:
        store.namespaces[place // BLOCK] = namespace
    for order in range(N_ORDERS):
        store.links[place, order] = 0
    store.numbers[S_END] = end + 1


@inlined_kernel
def _expect(slots: Slots, slot: Index, store: Store, seed: Any, index: Index, end: Index) -> None:
    """Ask for the memory that linking the token ``index`` of a stream will read and write; see store_output."""
    if index < 4 or index >= end:
        return
    tokens = (
        token_at(slots, slot, index - 1),
        token_at(slots, slot, index - 2),
        token_at(slots, slot, index - 3),
        token_at(slots, slot, index - 4),
    )
    hashes, _ = context_hashes(seed, tokens)
    buckets = np.int64(store.heads.shape[1])
    prefetch(store.heads, hashes[0] & (buckets - 1))
    prefetch(store.heads, buckets + (hashes[1] & (buckets - 1)))
    prefetch(store.heads, 2 * buckets + (hashes[2] & (buckets - 1)))


@inlined_kernel
def _link(store: Store, position: Index, place: Index, order: Index, hashed: Any) -> None:
    """Put a position, at ``place`` of the ring, at the head of its chain of an order."""
    bucket = hashed & np.int64(store.heads.shape[1] - 1)
    store.links[place, order] = np.uint32(np.uint32(position) - store.heads[order, bucket])
    store.heads[order, bucket] = np.uint32(position)


@lean_kernel
def store_output(slots: Slots, slot: Index, store: Store, start: Index, end: Index) -> None:
    """Append the tokens ``start .. end - 1`` of a stream to the store as one output, and link them.

    An output longer than the ring keeps its last part. The buckets lie anywhere in a large table: each is asked for
    some tokens ahead.
    """
    namespace = slots.numbers[slot, N_NAMESPACE]
    start = max(start, end - (store.tokens.shape[0] - 2 * BLOCK))
    seed = seed_of(namespace)
    position = store.numbers[S_END]
    place = physical(store, position)
    a: Any = np.int32(SEPARATOR)
    b: Any = a
    c: Any = a
    d: Any = a
    for index in range(start, end):
        _expect(slots, slot, store, seed, index + AHEAD, end)
        store.tokens[place] = token_at(slots, slot, index)
        if place % BLOCK == 0:
            store.namespaces[place // BLOCK] = namespace
        hashes, known = context_hashes(seed, (a, b, c, d))
        for order in range(known, N_ORDERS):
            store.links[place, order] = 0
        if known > 0:
            _link(store, position, place, 0, hashes[0])
        if known > 1:
            _link(store, position, place, 1, hashes[1])
        if known > 2:
            _link(store, position, place, 2, hashes[2])
        a, b, c, d = store.tokens[place], a, b, c
        position += 1
        place += 1
        if place == store.tokens.shape[0]:
            place = 0
    store.numbers[S_END] = position
    _push_token(store, namespace, SEPARATOR)
    while store.numbers[S_END] % BLOCK != 0:
        _push_token(store, namespace, SEPARATOR)
    store.numbers[S_OUTPUTS] += 1
