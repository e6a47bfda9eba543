"""Slow twin of :mod:`specplug.kernels.match`.

Order of the candidates: the longest order first, within an order newest first. A candidate belongs to the longest order
that its match reaches. Empty contexts have no candidates.
"""

from __future__ import annotations

from specplug.reference.chains import hash_context
from specplug.reference.store import seed_of
from specplug.reference.streams import bucket_of, bucket_page, token_from
from specplug.reference.suffix_state import (
    BLOCK,
    CONTEXT,
    ENOUGH,
    MAX_MATCH,
    ORDERS,
    OUTPUT,
    PAGE,
    PROMPT,
    Candidate,
    SuffixState,
)
from specplug.reference.walking import Reader, agreement, edit_extension, walk


def load_context(state: SuffixState, slot: int) -> list[int]:
    """The last tokens of a stream."""
    return state.streams[slot].tokens[-CONTEXT:]


def _stream_reader(state: SuffixState, slot: int, first: int) -> Reader:
    return lambda position: token_from(state, slot, first, position)


def _store_reader(state: SuffixState) -> Reader:
    store = state.store
    oldest = max(BLOCK, len(store.tokens) - store.capacity + 1)
    return lambda position: store.tokens[position] if position >= oldest else -1


def edit_in_stream(
    state: SuffixState, slot: int, first: int, position: int, context: list[int]
) -> int:
    """Agreement past one edited token before ``position`` of a text beginning at ``first``, and in the context."""
    return edit_extension(_stream_reader(state, slot, first), position, context, len(context))


def match_in_stream(
    state: SuffixState, slot: int, first: int, position: int, context: list[int]
) -> int:
    """Tokens that agree before ``position`` of a stream, from ``first`` on, and at the end of the context."""
    read = _stream_reader(state, slot, first)
    return agreement(read, position - 1, context, len(context) - 1, MAX_MATCH)


def edit_in_store(state: SuffixState, position: int, context: list[int]) -> int:
    """The same for the store."""
    return edit_extension(_store_reader(state), position, context, len(context))


def find_in_stream(state: SuffixState, slot: int, context: list[int]) -> list[Candidate]:
    """Candidates of the request's own text."""
    stream = state.streams[slot]
    chains: list[list[int]] = [[] for _ in ORDERS]
    if stream.indexed > 1:
        pages = (stream.indexed - 1) // PAGE + 1
        for order, hashed in enumerate(hash_context(context, 2166136261)):
            if hashed >= 0:
                page = stream.buckets[bucket_page(hashed, pages)]
                chains[order] = page.get((order, bucket_of(hashed)), [])
    found = walk(_stream_reader(state, slot, 0), chains, context, lambda position: True, ENOUGH)
    for candidate in found:
        candidate.source = PROMPT if candidate.position < stream.prompt_length else OUTPUT
    return found


def find_in_store(
    state: SuffixState, namespace: int, context: list[int], before: list[Candidate]
) -> list[Candidate]:
    """``before``, the candidates of other requests so far, and those of a namespace in the store."""
    store = state.store
    end = len(store.tokens)
    used = min(store.capacity, end - BLOCK)
    chains: list[list[int]] = [[] for _ in ORDERS]
    for order, hashed in enumerate(hash_context(context, seed_of(namespace))):
        if hashed >= 0:
            chain = store.buckets.get((order, hashed % store.bucket_count), [])
            chains[order] = [position for position in chain if end - position < used]
    return walk(
        *(_store_reader(state), chains, context),
        *(lambda position: store.namespaces[position] == namespace, ENOUGH, before),
    )
