"""Slow twin of :mod:`specplug.kernels.requests`.

An output without a stop token is kept whole; one that is empty leaves nothing in the store.
"""

from __future__ import annotations

from collections.abc import Sequence

from specplug.reference.store import store_output
from specplug.reference.streams import append_tokens, begin_stream, free_stream, index_some
from specplug.reference.suffix_state import LINKED_PER_CALL, SuffixState


def start_request(
    state: SuffixState,
    slot: int,
    prompt_length: int,
    namespace: int,
    model: int,
    history: Sequence[int],
    shows: bool,
) -> None:
    """Make ``slot`` a stream of ``history``."""
    free_stream(state, slot)
    begin_stream(state, slot, prompt_length, namespace, model, shows)
    append_tokens(state, slot, history)
    index_some(state, slot, LINKED_PER_CALL)


def finish_request(
    state: SuffixState, slot: int, keep: bool, stops: Sequence[int], prompt: int
) -> None:
    """Free ``slot``; the end of its prompt and its output up to the first stop token join the store."""
    stream = state.streams.get(slot)
    if stream is not None and keep and state.store.capacity:
        start, end = stream.prompt_length, len(stream.tokens)
        ends = [i + 1 for i in range(start, end) if stream.tokens[i] in stops]
        end = min([end, *ends])
        start = max(0, start - prompt)
        if end > start:
            store_output(state, slot, start, end)
    free_stream(state, slot)
