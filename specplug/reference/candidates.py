"""Slow twin of :mod:`specplug.kernels.candidates`.

Order of the candidates: own text, then what other requests are saying, then the store; copy pointers last.
"""

from __future__ import annotations

from specplug.reference.chains import class_of, take
from specplug.reference.live import find_live, is_shown, slot_of
from specplug.reference.match import (
    edit_in_store,
    edit_in_stream,
    find_in_store,
    find_in_stream,
    load_context,
)
from specplug.reference.suffix_state import (
    BLOCK,
    LIVE,
    MAX_CANDIDATES,
    MAX_EDIT,
    OUTPUT,
    PROMPT,
    STORE,
    Candidate,
    SuffixState,
)


def find_candidates(state: SuffixState, slot: int) -> list[Candidate]:
    """All candidates of a request."""
    context = load_context(state, slot)
    found = find_in_stream(state, slot, context) + _elsewhere(state, slot, context)
    return found + _by_pointers(state, slot, context, found)


def _elsewhere(state: SuffixState, slot: int, context: list[int]) -> list[Candidate]:
    """In the request's namespace, then in the one that serves all."""
    own, common = state.streams[slot].namespace, state.store.common
    found: list[Candidate] = []
    for namespace in (own,) if common in (None, own) else (own, common):
        assert namespace is not None
        found += find_live(state, slot, namespace, context)
        found = find_in_store(state, namespace, context, found)
    return found


def _may_copy(state: SuffixState, slot: int, source: int, position: int) -> bool:
    """Whether a place exists; a pointer goes on by itself, and may have come to another tenant's output."""
    stream, store = state.streams[slot], state.store
    readable = (stream.namespace, store.common)
    if source != STORE:
        return MAX_EDIT < position < len(stream.tokens)
    if position >= LIVE:
        return any(is_shown(state, slot, namespace, position) for namespace in readable)
    return (
        BLOCK + MAX_EDIT < position < len(store.tokens) and store.namespaces[position] in readable
    )


def _by_pointers(
    state: SuffixState, slot: int, context: list[int], found: list[Candidate]
) -> list[Candidate]:
    """Where copying had got to: past one substituted token, or past one inserted token."""
    added: list[Candidate] = []
    for source in (PROMPT, OUTPUT, STORE):
        for inserted in (0, 1):
            position = state.streams[slot].pointers[source] - inserted
            room = len(found) + len(added) < MAX_CANDIDATES
            if not room or not _may_copy(state, slot, source, position):
                continue
            known = any(
                c.position == position and (c.source == STORE) == (source == STORE)
                for c in found + added
            )
            if source != STORE:
                extension = edit_in_stream(state, slot, 0, position, context)
            elif position >= LIVE:
                other, place = slot_of(position)
                first = state.streams[other].prompt_length
                extension = edit_in_stream(state, other, first, place, context)
            else:
                extension = edit_in_store(state, position, context)
            if extension > 0 and not known:
                added.append(take(position, 0, class_of(extension, inserted), source))
    return added
