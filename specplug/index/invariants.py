"""Brute-force check of the suffix drafter's state, for tests and ``--check`` runs."""

from __future__ import annotations

import hashlib

import numpy as np

from specplug.kernels import layout


def broken_invariant(state: layout.State) -> str:
    """ "" if all invariants hold, else a sentence naming the first broken one. Cost: the whole state is read."""
    slots = state.slots
    return (
        _pages(slots)
        or _links(slots)
        or _recent(slots)
        or _live(slots)
        or _store(state.store)
        or _model(state.model)
    )


def state_digest(state: layout.State) -> bytes:
    """SHA-256 over streams, store and model; pages of nobody and work space do not count."""
    digest = hashlib.sha256(np.ascontiguousarray(state.slots.numbers).data)
    for slot in range(len(state.slots.numbers)):
        pages = _assigned(state.slots, slot)
        digest.update(np.array(pages, np.int64).data)
        digest.update(state.slots.tokens.reshape(-1, layout.PAGE)[pages].data)
    for array in (state.slots.live, *state.store, *state.model):
        digest.update(array.data)
    return digest.digest()


def _assigned(slots: layout.Slots, slot: int) -> list[int]:
    length = int(slots.numbers[slot, layout.N_LENGTH])
    return [int(p) for p in slots.pages[slot, : -(-length // layout.PAGE)]]


def _pages(slots: layout.Slots) -> str:
    owners: dict[int, int] = {}
    for slot in range(len(slots.numbers)):
        for page in _assigned(slots, slot):
            if not 0 <= page < len(slots.free):
                return f"slot {slot} holds page {page}, but there are {len(slots.free)}"
            if page in owners:
                return f"page {page} belongs to slots {owners[page]} and {slot}"
            owners[page] = slot
    free = slots.free[: slots.free_count[0]].tolist()
    if len(set(free)) != len(free):
        return "a page stands twice in the free stack"
    both = owners.keys() & set(free)
    if both:
        return f"page {min(both)} is free and belongs to slot {owners[min(both)]}"
    if len(owners) + len(free) != len(slots.free):
        return f"{len(slots.free) - len(owners) - len(free)} pages are neither free nor in use"
    return ""


def _recent(slots: layout.Slots) -> str:
    for slot in range(len(slots.numbers)):
        known = int(slots.numbers[slot, layout.N_INDEXED]) - 1
        pages = _assigned(slots, slot)
        tokens = slots.tokens.reshape(-1, layout.PAGE)[pages].reshape(-1)[:known]
        rows = slots.recent[slot]
        rows = rows[rows[:, 0] >= 0] if known > 0 else rows[:0]
        latest = dict(zip(tokens.tolist(), range(len(tokens)), strict=True))
        for token, place in rows.tolist():
            if latest.get(token) != place:
                return (
                    f"slot {slot}: token {token} stands last at {latest.get(token)}, but at {place} according to the "
                    "table of last places"
                )
    return ""


def _live(slots: layout.Slots) -> str:
    numbers = slots.numbers
    running = int((numbers[:, layout.N_SHOWN] >= 0).sum())
    if slots.running[0] != running:
        return f"{running} slots are somebody's, but {slots.running[0]} are counted"
    for slot, row in enumerate(numbers):
        most = max(1, row[layout.N_LENGTH], row[layout.N_PROMPT])
        if row[layout.N_SHOWN] > most:
            return f"slot {slot} shows {row[layout.N_SHOWN]} of {row[layout.N_LENGTH]} tokens"
    table = slots.live.reshape(-1, layout.LIVE_WAYS)
    for row in table[(table != 0).any(axis=1)]:
        places = row[: np.count_nonzero(row)]
        if (places == 0).any() or len(np.unique(places)) < len(places):
            return f"a row of the running answers has a gap or a place twice: {row.tolist()}"
        owners = places % (1 << layout.LIVE_TAG) >> layout.LIVE_BITS
        if (places < layout.LIVE).any() or (owners >= len(numbers)).any():
            return f"a row of the running answers names a slot that does not exist: {row.tolist()}"
    return ""


def _links(slots: layout.Slots) -> str:
    links = slots.links.T.reshape(layout.N_ORDERS, -1, layout.PAGE)
    for slot in range(len(slots.numbers)):
        length, indexed = slots.numbers[slot, [layout.N_LENGTH, layout.N_INDEXED]].tolist()
        if indexed > max(1, length):
            return f"slot {slot} has linked {indexed} positions of {length} tokens"
        if indexed <= 1:
            continue
        pages = _assigned(slots, slot)
        own = links[:, pages].reshape(layout.N_ORDERS, -1)[:, :indexed]
        for order, position in np.argwhere(own < 0)[:1]:
            return f"slot {slot}, order {layout.ORDERS[order]}: position {position} links to {own[order, position]}"
        later = np.argwhere(own >= np.arange(indexed))
        later = later[later[:, 1] > 0]
        if len(later):
            order, position = later[0]
            return f"slot {slot}, order {layout.ORDERS[order]}: position {position} links to a later one"
        heads = slots.heads[pages[: (indexed - 1) // layout.PAGE + 1]]
        if heads.size and heads.max() >= indexed:
            return (
                f"slot {slot}: a bucket points to {heads.max()}, but {indexed} positions are linked"
            )
    return ""


def _store(store: layout.Store) -> str:
    end, capacity = int(store.numbers[layout.S_END]), len(store.tokens)
    if end % layout.BLOCK:
        return f"the store ends at {end}, which is no multiple of {layout.BLOCK}"
    if capacity % layout.BLOCK or len(store.namespaces) * layout.BLOCK != capacity:
        return f"the store has {capacity} tokens and {len(store.namespaces)} blocks"
    if end > layout.BLOCK and store.tokens[(end - 1) % capacity] != layout.SEPARATOR:
        return "the last output of the store has no separator"
    # Links and buckets hold positions modulo 2**32, of which nothing can be said once there are more.
    return _store_links(store, end) if end < 2**32 else ""


def _store_links(store: layout.Store, end: int) -> str:
    for order, bucket in np.argwhere(store.heads >= end)[:1]:
        return (
            f"store, order {layout.ORDERS[order]}: a bucket points to {store.heads[order, bucket]}, "
            f"but the store ends at {end}"
        )
    positions = np.arange(max(0, end - len(store.tokens)), end)
    links = store.links[positions % max(1, len(store.tokens))].T
    for order, column in np.argwhere(links > positions)[:1]:
        return (
            f"store, order {layout.ORDERS[order]}: position {positions[column]} links "
            f"{links[order, column]} places back"
        )
    return ""


def _model(model: layout.Model) -> str:
    for name in model._fields:
        if not np.isfinite(getattr(model, name)).all():
            return f"model array {name!r} holds a value that is not finite"
    for name in ("parents", "cells", "by_token", "by_context", "by_recency"):
        table = getattr(model, name)
        if (table < 0).any() or (table[..., 0] > table[..., 1]).any():
            return f"table {name!r} counts more hits than trials"
    return ""
