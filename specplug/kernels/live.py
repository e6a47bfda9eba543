"""Answers that are still being written serve other requests of their namespace: a table of their newest places.

A place in another request's stream is numbered ``LIVE + (slot << LIVE_BITS) + position``. For each order and hash of a
context, seeded with the namespace, a row of the table holds the newest places of that hash, newest first, each with
the upper half of the hash as a tag: most of what shares a row need not be looked at. Rows are never cleaned: an entry
says where to look, and what stands there is compared token by token. So an answer that is over, or that was taken back
in part, is simply not found any more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import inlined_kernel, lean_kernel
from specplug.kernels.chains import class_of, take
from specplug.kernels.layout import (
    CONTEXT,
    LIVE,
    LIVE_BITS,
    LIVE_ENOUGH,
    LIVE_FIRST,
    LIVE_TAG,
    LIVE_WAYS,
    MAX_MATCH,
    N_LENGTH,
    N_NAMESPACE,
    N_ORDERS,
    N_PROMPT,
    N_SHOWN,
    ORDERS,
    SEPARATOR,
    SHOWN_PER_CALL,
    STORE,
    Index,
    IntArray,
    Slots,
    State,
)
from specplug.kernels.match import edit_in_stream, match_in_stream
from specplug.kernels.store import seed_of
from specplug.kernels.streams import context_hashes, token_at, token_from

#: Where the last token stands in the context.
_LAST = CONTEXT - 1


@inlined_kernel
def slot_of(place: Index) -> Any:
    """Whose answer a place is in, and where."""
    return (place - LIVE) >> LIVE_BITS, place & ((1 << LIVE_BITS) - 1)


@lean_kernel
def is_shown(state: State, slot: Index, namespace: Index, place: Index) -> bool:
    """Whether a place is in an answer of ``namespace`` that another request than ``slot`` is writing."""
    other, position = slot_of(place)
    numbers = state.slots.numbers
    return bool(
        other != slot
        and 0 <= other < numbers.shape[0]
        and numbers[other, N_PROMPT] < position < numbers[other, N_SHOWN]
        and numbers[other, N_NAMESPACE] == namespace
    )


@lean_kernel
def live_token(slots: Slots, place: Index) -> Any:
    """The token at a place that is shown, or behind one; -1 at the end of what is written."""
    other, position = slot_of(place)
    if position >= slots.numbers[other, N_LENGTH]:
        return np.int32(SEPARATOR)
    return token_at(slots, other, position)


@inlined_kernel
def _tag_of(hashed: Index) -> Index:
    return (np.int64(hashed) >> 16) << LIVE_TAG


@inlined_kernel
def _take_row(state: State, slot: Index, namespace: Index, order: Index, count: Index) -> Index:
    """Append the candidates of the table's row of an order; returns the new count."""
    table = state.slots.live
    hashed = state.scratch.hashes[order]
    row = table[order - LIVE_FIRST, hashed & (table.shape[1] - 1)]
    tag = _tag_of(hashed)
    shortest = ORDERS[order]
    longer = ORDERS[order + 1] if order < N_ORDERS - 1 else MAX_MATCH + 1
    rank = 0
    for way in range(LIVE_WAYS):
        place = row[way] - tag
        # An empty row has no place, another tag leaves none that exists.
        if place >> LIVE_TAG != LIVE >> LIVE_TAG or not is_shown(state, slot, namespace, place):
            continue
        other, position = slot_of(place)
        first = state.slots.numbers[other, N_PROMPT]
        length = match_in_stream(state, other, first, position, min(longer, MAX_MATCH))
        if length >= shortest:
            if length < longer:
                edit: Index = 0
                if 2 * length < MAX_MATCH:
                    before = position - length - 1
                    edit = edit_in_stream(state, other, first, before, _LAST - length)
                take(state, count, (place, STORE), length, class_of(edit, rank))
                count += 1
            rank += 1
    return count


@lean_kernel
def find_live(state: State, slot: Index, namespace: Index, count: Index) -> Index:
    """Append the candidates of running answers of a namespace, whose hashes stand in the scratch; the new count."""
    first = count
    for order in range(N_ORDERS - 1, LIVE_FIRST - 1, -1):
        if state.scratch.hashes[order] >= 0 and count - first < LIVE_ENOUGH:
            count = _take_row(state, slot, namespace, order, count)
    return count


@inlined_kernel
def _enter(slots: Slots, order: Index, hashed: Any, place: Index) -> None:
    """Put a place at the head of its row; the oldest one falls out, unless the place stood in the row already."""
    row = slots.live[order - LIVE_FIRST, hashed & (slots.live.shape[1] - 1)]
    entry = entering = place + _tag_of(hashed)
    for way in range(LIVE_WAYS):
        leaving = row[way]
        row[way] = entering
        if leaving == entry:
            break
        entering = leaving


@inlined_kernel
def _show(slots: Slots, slot: Index, budget: Index) -> Index:
    """Enter up to ``budget`` further places of an answer; returns how many."""
    numbers = slots.numbers[slot]
    start = numbers[N_SHOWN]
    end = min(numbers[N_LENGTH], start + budget)
    if start <= 0 or end <= start:
        return 0
    seed = seed_of(numbers[N_NAMESPACE])
    first = numbers[N_PROMPT]
    a, b = token_from(slots, slot, first, start - 1), token_from(slots, slot, first, start - 2)
    c, d = token_from(slots, slot, first, start - 3), token_from(slots, slot, first, start - 4)
    for position in range(start, end):
        hashes, known = context_hashes(seed, (a, b, c, d))
        place = LIVE + (np.int64(slot) << LIVE_BITS) + position
        for order in range(LIVE_FIRST, known):
            _enter(slots, order, hashes[order], place)
        a, b, c, d = token_at(slots, slot, position), a, b, c
    numbers[N_SHOWN] = end
    return end - start


@lean_kernel
def show_answers(slots: Slots, observed: IntArray) -> None:
    """Enter what is new in the answers of these slots, a bounded number of places per call; the rest follows later.

    Nothing is done for a request that runs alone.
    """
    if slots.running[0] < 2 or slots.live.shape[1] == 0:
        return
    budget = SHOWN_PER_CALL
    for slot in observed:
        budget -= _show(slots, slot, budget)
