"""The store of finished outputs: a ring of tokens with hash chains; old text is evicted by being overwritten."""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import lean_kernel
from specplug.kernels.layout import (
    BLOCK,
    LONGEST,
    N_NAMESPACE,
    N_ORDERS,
    ORDERS,
    S_END,
    S_OUTPUTS,
    SEPARATOR,
    Index,
    Slots,
    Store,
)
from specplug.kernels.streams import mix, token_at


@lean_kernel
def physical(store: Store, position: Index) -> Index:
    """The place in the ring of a stored position that still exists or is about to be written."""
    return position % store.tokens.shape[0]


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


@lean_kernel
def store_output(slots: Slots, slot: Index, store: Store, start: Index, end: Index) -> None:
    """Append the tokens ``start .. end - 1`` of a stream to the store as one output, and link them.

    An output longer than the ring keeps its last part.
    """
    namespace = slots.numbers[slot, N_NAMESPACE]
    start = max(start, end - (store.tokens.shape[0] - 2 * BLOCK))
    seed = seed_of(namespace)
    mask = np.int64(store.heads.shape[1] - 1)
    first = store.numbers[S_END]
    for index in range(start, end):
        token = token_at(slots, slot, index)
        position = store.numbers[S_END]
        place = physical(store, position)
        _push_token(store, namespace, token)
        hashed = seed
        order = 0
        for back in range(1, LONGEST + 1):
            if position - back < first:
                break
            earlier = store.tokens[physical(store, position - back)]
            if earlier < 0:
                break
            hashed = mix(hashed, earlier)
            if back == ORDERS[order]:
                bucket = np.int64(hashed) & mask
                distance = np.uint32(np.uint32(position) - store.heads[order, bucket])
                store.links[place, order] = distance
                store.heads[order, bucket] = np.uint32(position)
                order += 1
    _push_token(store, namespace, SEPARATOR)
    while store.numbers[S_END] % BLOCK != 0:
        _push_token(store, namespace, SEPARATOR)
    store.numbers[S_OUTPUTS] += 1
