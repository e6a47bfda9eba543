"""Slow twin of :mod:`specplug.kernels.streams`: a list of tokens and, per bucket, a list of positions.

Order: positions of a bucket newest first. Empty streams have no buckets. Position 0 has no context and is never linked.
"""

from __future__ import annotations

from collections.abc import Sequence

from specplug.reference.suffix_state import (
    BUCKET_BITS,
    MAX_STEPS,
    ORDERS,
    PAGE,
    RECENT_ROWS,
    SEPARATOR,
    Stream,
    SuffixState,
)


def mix(state: int, token: int) -> int:
    """One step of a 32-bit hash over the tokens of a context, newest first."""
    mixed = ((state ^ (token & 0xFFFFFFFF)) * 2654435769) & 0xFFFFFFFF
    return mixed ^ (mixed >> 15)


def context_hashes(seed: int, tokens: Sequence[int]) -> tuple[list[int], int]:
    """Hashes of the last ``ORDERS`` of four tokens, newest first, and how many of them exist."""
    hashes = []
    hashed, known, ended = seed, 0, False
    for back, token in enumerate(tokens, 1):
        hashed = mix(hashed, token)
        ended = ended or token < 0
        if back in ORDERS:
            hashes.append(hashed)
            known += not ended
    return hashes, known


def token_at(state: SuffixState, slot: int, position: int) -> int:
    """The token of a stream at ``position``."""
    return state.streams[slot].tokens[position]


def token_from(state: SuffixState, slot: int, first: int, position: int) -> int:
    """The token at ``position``, -1 before ``first``, where what may be read begins."""
    return token_at(state, slot, position) if position >= first else SEPARATOR


def bucket_page(hashed: int, pages: int) -> int:
    """The bucket page of a hash value in a table of ``pages`` pages (linear hashing, Litwin 1980)."""
    half = 1 << (pages.bit_length() - 1)
    page = hashed % (2 * half)
    return page if page < pages else hashed % half


def bucket_of(hashed: int) -> int:
    """The bucket of a hash value within its page: its top bits."""
    return hashed >> (32 - BUCKET_BITS)


def last_place(state: SuffixState, slot: int, token: int) -> int:
    """Index of the last occurrence of ``token`` in a stream before its linked positions; -1 if it is not found.

    It is found in ``recent``, or among the newest of its bucket if another token of its hash came later.
    """
    stream = state.streams[slot]
    hashed = mix(2166136261, token)
    known, index = stream.recent.get(hashed % RECENT_ROWS, (-1, -1))
    if known in (token, -1):
        return index
    page = stream.buckets[bucket_page(hashed, (stream.indexed - 1) // PAGE + 1)]
    for position in page.get((0, bucket_of(hashed)), [])[:MAX_STEPS]:
        if stream.tokens[position - 1] == token:
            return position - 1
    return -1


def begin_stream(
    state: SuffixState, slot: int, prompt_length: int, namespace: int, model: int, shows: bool
) -> None:
    """Make ``slot`` an empty stream; ``shows``: others may read its answer while it is written."""
    shown = max(1, prompt_length) if shows else 0
    state.streams[slot] = Stream(prompt_length, namespace, model, shown)


def append_tokens(state: SuffixState, slot: int, tokens: Sequence[int]) -> None:
    """Append ``tokens`` to the stream of ``slot``; one separator is like another."""
    state.streams[slot].tokens.extend(max(SEPARATOR, int(t)) for t in tokens)


def index_stream(state: SuffixState, slot: int, end: int) -> None:
    """Link the positions up to ``end`` (excluded) that are not linked yet."""
    stream = state.streams[slot]
    for position in range(stream.indexed, end):
        pages = position // PAGE + 1
        if len(stream.buckets) < pages:
            _open_bucket_page(stream)
        newest = stream.tokens[position - 1]
        if newest >= 0:
            stream.recent[mix(2166136261, newest) % RECENT_ROWS] = (newest, position - 1)
        hashed = 2166136261
        for back in range(1, ORDERS[-1] + 1):
            token = stream.tokens[position - back] if back <= position else -1
            if token < 0:
                break
            hashed = mix(hashed, token)
            if back in ORDERS:
                key = (ORDERS.index(back), bucket_of(hashed))
                stream.buckets[bucket_page(hashed, pages)].setdefault(key, []).insert(0, position)
    stream.indexed = max(stream.indexed, end)


def index_some(state: SuffixState, slot: int, budget: int) -> int:
    """Link up to ``budget`` more positions of a stream; returns how many."""
    stream = state.streams[slot]
    count = max(0, min(budget, len(stream.tokens) - stream.indexed))
    index_stream(state, slot, stream.indexed + count)
    return count


def free_stream(state: SuffixState, slot: int) -> None:
    """Forget the stream of ``slot``."""
    state.streams.pop(slot, None)


def _open_bucket_page(stream: Stream) -> None:
    """Add a bucket page: a copy of the page from which linear hashing splits it off."""
    page = len(stream.buckets)
    if page == 0:
        stream.buckets.append({})
        return
    parent = page - (1 << (page.bit_length() - 1))
    stream.buckets.append({key: list(chain) for key, chain in stream.buckets[parent].items()})


def slots_exist(count: int, wanted: Sequence[int]) -> bool:
    """Whether all of ``wanted`` are slots when there are ``count``."""
    return all(slot in range(count) for slot in wanted)
