"""Slow twin of :mod:`specplug.kernels.live`.

Order: of each row the newest place first; places that became known in one call are entered request by request, in the
order given. A request alone enters nothing and finds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from specplug.reference.chains import hash_context
from specplug.reference.store import seed_of
from specplug.reference.streams import token_from
from specplug.reference.suffix_state import (
    LIVE,
    LIVE_BITS,
    LIVE_ENOUGH,
    LIVE_FIRST,
    LIVE_WAYS,
    ORDERS,
    SEPARATOR,
    SHOWN_PER_CALL,
    Candidate,
    SuffixState,
)
from specplug.reference.walking import walk


def slot_of(place: int) -> tuple[int, int]:
    """Whose answer a place is in, and where."""
    return divmod(place - LIVE, 1 << LIVE_BITS)


def is_shown(state: SuffixState, slot: int, namespace: int | None, place: int) -> bool:
    """Whether a place is in an answer of ``namespace`` that another request than ``slot`` is writing."""
    other, position = slot_of(place)
    stream = state.streams.get(other)
    return (
        stream is not None
        and other != slot
        and stream.prompt_length < position < stream.shown
        and stream.namespace == namespace
    )


def live_token(state: SuffixState, place: int) -> int:
    """The token of an answer at a place, -1 where it has not come to, or before its beginning."""
    other, position = slot_of(place)
    stream = state.streams.get(other)
    if stream is None or position >= len(stream.tokens):
        return SEPARATOR
    return token_from(state, other, stream.prompt_length, position)


def find_live(state: SuffixState, slot: int, namespace: int, context: list[int]) -> list[Candidate]:
    """Candidates of running answers of a namespace."""
    chains: list[list[int]] = [[] for _ in ORDERS]
    if len(state.streams) > 1 and state.live_rows > 0:
        for order, hashed in enumerate(hash_context(context, seed_of(namespace))):
            if hashed >= 0:
                row = state.live.get((order, hashed % state.live_rows), [])
                chains[order] = [place for tag, place in row if tag == hashed >> 16]
    return walk(
        *(lambda place: live_token(state, place), chains, context),
        *(lambda place: is_shown(state, slot, namespace, place), LIVE_ENOUGH),
    )


def _show(state: SuffixState, slot: int, budget: int) -> int:
    stream = state.streams[slot]
    start, end = stream.shown, min(len(stream.tokens), stream.shown + budget)
    if start <= 0 or end <= start:
        return 0
    for position in range(start, end):
        place = LIVE + (slot << LIVE_BITS) + position
        said = stream.tokens[stream.prompt_length : position]
        for order, hashed in enumerate(hash_context(said, seed_of(stream.namespace))):
            if order >= LIVE_FIRST and hashed >= 0:
                row = state.live.setdefault((order, hashed % state.live_rows), [])
                entry = (hashed >> 16, place)
                row[:] = [entry, *(other for other in row if other != entry)][:LIVE_WAYS]
    stream.shown = end
    return end - start


def show_answers(state: SuffixState, observed: Sequence[int]) -> None:
    """Enter what is new in the answers of these slots, a bounded number of places per call."""
    if len(state.streams) < 2 or state.live_rows == 0:
        return
    budget = SHOWN_PER_CALL
    for slot in observed:
        budget -= _show(state, slot, budget)
