"""Slow twin of :mod:`specplug.kernels.store`: an ever-growing list of which only the end still exists."""

from __future__ import annotations

from specplug.reference.streams import mix
from specplug.reference.suffix_state import BLOCK, ORDERS, SEPARATOR, Store, SuffixState


def physical(store: Store, position: int) -> int:
    """The place in the ring of a stored position."""
    return position % store.capacity


def seed_of(namespace: int) -> int:
    """Hash seed of a namespace."""
    return mix(2166136261, namespace)


def store_output(state: SuffixState, slot: int, start: int, end: int) -> None:
    """Append the tokens ``start .. end - 1`` of a stream as one output; a too long one keeps its last part."""
    stream, store = state.streams[slot], state.store
    start = max(start, end - (store.capacity - 2 * BLOCK))
    first = len(store.tokens)
    for token in stream.tokens[start:end]:
        position = len(store.tokens)
        hashed = seed_of(stream.namespace)
        for back in range(1, ORDERS[-1] + 1):
            if position - back < first or store.tokens[position - back] < 0:
                break
            hashed = mix(hashed, store.tokens[position - back])
            if back in ORDERS:
                key = (ORDERS.index(back), hashed % store.bucket_count)
                store.buckets.setdefault(key, []).insert(0, position)
        store.tokens.append(token)
        store.namespaces.append(stream.namespace)
    padding = 1 + -(len(store.tokens) + 1) % BLOCK
    store.tokens.extend([SEPARATOR] * padding)
    store.namespaces.extend([stream.namespace] * padding)
    store.outputs += 1
