"""All candidates of a request: in its own text, in what others are saying, in the store, and by copy pointers.

A *copy pointer* per source remembers where copying had got to, and offers that place when nothing matches any more.
"""

from __future__ import annotations

from specplug.kernels._jit import lean_kernel
from specplug.kernels.chains import class_of, hash_context, take
from specplug.kernels.layout import (
    BLOCK,
    CONTEXT,
    LIVE,
    MAX_CANDIDATES,
    MAX_EDIT,
    N_LENGTH,
    N_NAMESPACE,
    N_POINTER,
    N_PROMPT,
    N_SOURCES,
    POSITION,
    S_COMMON,
    S_END,
    SOURCE,
    STORE,
    Index,
    State,
)
from specplug.kernels.live import find_live, is_shown, slot_of
from specplug.kernels.match import (
    edit_in_store,
    edit_in_stream,
    find_in_store,
    find_in_stream,
)
from specplug.kernels.store import physical, seed_of

#: Where the last token stands in the context.
_LAST = CONTEXT - 1


@lean_kernel
def _find_in_namespace(
    state: State, slot: Index, namespace: Index, first: Index, count: Index
) -> Index:
    """Append what other requests of a namespace say or have said; returns the new count."""
    hash_context(state.scratch.context, seed_of(namespace), state.scratch.hashes)
    if state.slots.running[0] > 1 and state.slots.live.shape[1] > 0:
        count = find_live(state, slot, namespace, count)
    return find_in_store(state, namespace, first, count)


@lean_kernel
def _find_elsewhere(state: State, slot: Index, count: Index) -> Index:
    """Append the candidates of other requests, in the own namespace and then in the one that serves all.

    Returns the new count. The store is asked for the second where the first had few.
    """
    own, common = state.slots.numbers[slot, N_NAMESPACE], state.store.numbers[S_COMMON]
    first = count
    count = _find_in_namespace(state, slot, own, first, count)
    if common >= 0 and common != own:
        count = _find_in_namespace(state, slot, common, first, count)
    return count


@lean_kernel
def _may_read(state: State, slot: Index, position: Index) -> bool:
    """Whether a place of other requests exists, in the request's namespace or in the one that serves all."""
    store = state.store
    own, common = state.slots.numbers[slot, N_NAMESPACE], store.numbers[S_COMMON]
    if position >= LIVE:
        return is_shown(state, slot, own, position) or (
            common >= 0 and is_shown(state, slot, common, position)
        )
    if position <= BLOCK + MAX_EDIT or position >= store.numbers[S_END]:
        return False
    whose = store.namespaces[physical(store, position) // BLOCK]
    return bool(whose == own or (common >= 0 and whose == common))


@lean_kernel
def _edit_at(state: State, slot: Index, source: Index, position: Index) -> Index:
    """Agreement before ``position`` of a source, past one edited token of it or of the context."""
    if source != STORE:
        return edit_in_stream(state, slot, 0, position - 1, _LAST)
    if position >= LIVE:
        other, place = slot_of(position)
        return edit_in_stream(state, other, state.slots.numbers[other, N_PROMPT], place - 1, _LAST)
    store = state.store
    low = max(BLOCK, store.numbers[S_END] - store.tokens.shape[0] + 1)
    return edit_in_store(state, position - 1, _LAST, physical(store, position - 1), low)


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
    numbers = state.slots.numbers[slot]
    for source in range(N_SOURCES):
        for inserted in range(2):
            position = numbers[N_POINTER + source] - inserted
            if count >= MAX_CANDIDATES:
                continue
            if source == STORE:
                if not _may_read(state, slot, position):
                    continue
            elif position <= MAX_EDIT or position >= numbers[N_LENGTH]:
                continue
            extension = _edit_at(state, slot, source, position)
            if extension > 0 and not _is_known(state, source, position, count):
                take(state, count, (position, source), 0, class_of(extension, inserted))
                count += 1
    return count


@lean_kernel
def find_candidates(state: State, slot: Index, size: Index) -> Index:
    """All candidates of a request with ``size`` tokens of context; returns how many. Work is bounded by constants."""
    if size == 0:
        return 0
    count = find_in_stream(state, slot, 0)
    count = _find_elsewhere(state, slot, count)
    return _find_by_pointers(state, slot, count)
