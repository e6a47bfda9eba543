"""Begin and end of a request in the suffix drafter."""

from __future__ import annotations

from specplug.kernels._jit import lean_kernel
from specplug.kernels.handle import unpack
from specplug.kernels.layout import (
    LINKED_PER_CALL,
    N_LENGTH,
    N_PROMPT,
    PAGE,
    PAGE_BITS,
    Handle,
    Index,
    IntArray,
)
from specplug.kernels.store import store_output
from specplug.kernels.streams import (
    append_tokens,
    begin_stream,
    free_stream,
    index_some,
    token_at,
)


@lean_kernel
def start_request(
    handle: Handle,
    slot: Index,
    prompt_length: Index,
    namespace: Index,
    model: Index,
    history: IntArray,
    shows: bool,
) -> Index:
    """Make ``slot`` a stream of ``history``, freeing what it held; a long one is linked over several calls.

    With ``shows`` others may read the answer while it is written.

    Returns 0, or how many pages are missing; then nothing was done.
    """
    slots = unpack(handle).slots
    held = (slots.numbers[slot, N_LENGTH] + PAGE - 1) >> PAGE_BITS
    missing = ((len(history) + PAGE - 1) >> PAGE_BITS) - held - slots.free_count[0]
    if missing > 0:
        return missing
    free_stream(slots, slot)
    begin_stream(slots, slot, prompt_length, namespace, model, shows)
    append_tokens(slots, slot, history)
    index_some(slots, slot, LINKED_PER_CALL)
    return 0


@lean_kernel
def finish_request(handle: Handle, slot: Index, keep: bool, stops: IntArray, prompt: Index) -> None:
    """Free ``slot``; with ``keep`` its output, up to the first of the tokens ``stops``, joins the store.

    The last ``prompt`` tokens of its prompt stand before it.
    """
    state = unpack(handle)
    slots = state.slots
    if keep and state.store.tokens.shape[0] > 0:
        start = slots.numbers[slot, N_PROMPT]
        end = slots.numbers[slot, N_LENGTH]
        for position in range(start, end):
            token = token_at(slots, slot, position)
            stopped = False
            for stop in stops:
                stopped |= stop == token
            if stopped:
                end = position + 1
                break
        start = max(0, start - prompt)
        if end > start:
            store_output(slots, slot, state.store, start, end)
    free_stream(slots, slot)
