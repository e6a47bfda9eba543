"""Slow twin of :mod:`specplug.kernels.match`.

Order of the candidates: own text before the store; the longest order first, within an order newest first; copy pointers
last. A candidate belongs to the longest order that its match reaches. Empty contexts have no candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specplug.reference.store import seed_of
from specplug.reference.streams import bucket_of, bucket_page, mix
from specplug.reference.suffix_state import (
    BLOCK,
    CONTEXT,
    ENOUGH,
    MAX_CANDIDATES,
    MAX_EDIT,
    MAX_FOUND,
    MAX_MATCH,
    MAX_STEPS,
    ORDERS,
    OUTPUT,
    PAGE,
    PROMPT,
    STORE,
    Candidate,
    SuffixState,
)

Reader = Callable[[int], int]


def load_context(state: SuffixState, slot: int) -> list[int]:
    """The last tokens of a stream."""
    return state.streams[slot].tokens[-CONTEXT:]


def find_candidates(state: SuffixState, slot: int) -> list[Candidate]:
    """All candidates of a request."""
    context = load_context(state, slot)
    found = _in_stream(state, slot, context) + _in_store(state, slot, context)
    return found + _by_pointers(state, slot, context, found)


def _stream_reader(state: SuffixState, slot: int) -> Reader:
    tokens = state.streams[slot].tokens
    return lambda position: tokens[position] if position >= 0 else -1


def _store_reader(state: SuffixState) -> Reader:
    store = state.store
    oldest = max(BLOCK, len(store.tokens) - store.capacity + 1)
    return lambda position: store.tokens[position] if position >= oldest else -1


def _hashes(context: list[int], seed: int) -> list[int]:
    hashes = [-1] * len(ORDERS)
    hashed = seed
    for back, token in enumerate(reversed(context[-ORDERS[-1] :]), 1):
        if token < 0:
            break
        hashed = mix(hashed, token)
        if back in ORDERS:
            hashes[ORDERS.index(back)] = hashed
    return hashes


def _agreement(read: Reader, here: int, context: list[int], there: int, most: int) -> int:
    """Tokens that agree at and before ``here`` and ``context[there]``."""
    length = 0
    while length < most and there - length >= 0:
        token = read(here - length)
        if token < 0 or token != context[there - length]:
            break
        length += 1
    return length


def _edit_extension(read: Reader, position: int, context: list[int], size: int) -> int:
    """Agreement past one substituted token, one inserted in the context, or one deleted from it."""
    return max(
        _agreement(read, position - 1 - back, context, size - 1 - ahead, MAX_EDIT)
        for back, ahead in ((1, 1), (0, 1), (1, 0))
    )


def class_of(edit: int, rank: int) -> int:
    """The class of a candidate: three bins of the edit extension times three of the rank."""
    return 3 * ((edit >= 3) + (edit >= 7)) + (rank >= 1) + (rank >= 4)


def _walk(
    read: Reader,
    chains: list[list[int]],
    context: list[int],
    belongs: Callable[[int], bool],
    before: Sequence[Candidate] = (),
) -> list[Candidate]:
    """``before``, and candidates along the chains of each order (``chains[i]`` for ``ORDERS[i]``)."""
    found = list(before)
    for order in reversed(range(len(ORDERS))):
        if len(found) >= ENOUGH:
            break
        longer = ORDERS[order + 1] if order + 1 < len(ORDERS) else MAX_MATCH + 1
        rank = 0
        for position in chains[order][:MAX_STEPS]:
            if rank >= MAX_FOUND:
                break
            length = _agreement(read, position - 1, context, len(context) - 1, MAX_MATCH)
            if length < ORDERS[order] or not belongs(position):
                continue
            if length < longer:
                edit = 0
                if 2 * length < MAX_MATCH:
                    edit = _edit_extension(read, position - length, context, len(context) - length)
                found.append(Candidate(position, length, class_of(edit, rank), STORE))
            rank += 1
    return found


def _in_stream(state: SuffixState, slot: int, context: list[int]) -> list[Candidate]:
    stream = state.streams[slot]
    chains: list[list[int]] = [[] for _ in ORDERS]
    if stream.indexed > 1:
        pages = (stream.indexed - 1) // PAGE + 1
        for order, hashed in enumerate(_hashes(context, 2166136261)):
            if hashed >= 0:
                page = stream.buckets[bucket_page(hashed, pages)]
                chains[order] = page.get((order, bucket_of(hashed)), [])
    found = _walk(_stream_reader(state, slot), chains, context, lambda position: True)
    for candidate in found:
        candidate.source = PROMPT if candidate.position < stream.prompt_length else OUTPUT
    return found


def _in_store(state: SuffixState, slot: int, context: list[int]) -> list[Candidate]:
    """In the request's namespace, then in the one that serves all."""
    own, common = state.streams[slot].namespace, state.store.common
    found = _in_namespace(state, own, context, [])
    return found if common in (None, own) else _in_namespace(state, common, context, found)


def _in_namespace(
    state: SuffixState, namespace: int, context: list[int], before: list[Candidate]
) -> list[Candidate]:
    store = state.store
    end = len(store.tokens)
    used = min(store.capacity, end - BLOCK)
    chains: list[list[int]] = [[] for _ in ORDERS]
    for order, hashed in enumerate(_hashes(context, seed_of(namespace))):
        if hashed >= 0:
            chain = store.buckets.get((order, hashed % store.bucket_count), [])
            chains[order] = [position for position in chain if end - position < used]
    return _walk(
        _store_reader(state), chains, context, lambda p: store.namespaces[p] == namespace, before
    )


def _by_pointers(
    state: SuffixState, slot: int, context: list[int], found: list[Candidate]
) -> list[Candidate]:
    """Where copying had got to: past one substituted token, or past one inserted token."""
    added: list[Candidate] = []
    readable = {state.streams[slot].namespace, state.store.common}
    for source in (PROMPT, OUTPUT, STORE):
        read = _store_reader(state) if source == STORE else _stream_reader(state, slot)
        low = BLOCK if source == STORE else 0
        end = len(state.store.tokens) if source == STORE else len(state.streams[slot].tokens)
        for inserted in (0, 1):
            position = state.streams[slot].pointers[source] - inserted
            if not low + MAX_EDIT < position < end or len(found) + len(added) >= MAX_CANDIDATES:
                continue
            if source == STORE and state.store.namespaces[position] not in readable:
                continue  # a pointer goes on by itself, and may have come to another tenant's output
            known = any(
                c.position == position and (c.source == STORE) == (source == STORE)
                for c in found + added
            )
            extension = _edit_extension(read, position, context, len(context))
            if extension > 0 and not known:
                added.append(Candidate(position, 0, class_of(extension, inserted), source))
    return added
