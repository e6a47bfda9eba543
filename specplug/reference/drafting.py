"""Slow twin of :mod:`specplug.kernels.drafting`.

Empty history or no candidate: no draft. One candidate: a copy of what follows it while the estimate holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specplug.reference.match import find_candidates, load_context
from specplug.reference.ranking import rank_tokens
from specplug.reference.streams import append_tokens, index_some
from specplug.reference.suffix_state import (
    KEEP,
    LINKED_PER_CALL,
    LOG_CANDIDATES,
    LOG_TOKENS,
    PROMPT,
    STORE,
    Candidate,
    Depth,
    SuffixState,
)


def draft_row(
    state: SuffixState, slot: int, ceiling: int, cost: float
) -> tuple[list[int], list[float]]:
    """Draft tokens and survival estimates for one request."""
    stream = state.streams[slot]
    model = state.models[stream.model]
    stream.depths, stream.drafted = [], 0
    context = load_context(state, slot)
    candidates = find_candidates(state, slot) if context else []
    floor = cost * model.tokens / model.cost
    tokens: list[int] = []
    survival: list[float] = []
    room = [LOG_TOKENS, LOG_CANDIDATES]
    for depth in range(ceiling):
        candidates = _with_next_token(state, slot, candidates, tokens)
        if not candidates:
            break
        previous = tokens[-1] if tokens else context[-1]
        here = rank_tokens(state, slot, depth, candidates, previous, tokens)
        top = max(here.ranked, key=lambda entry: entry.probability)
        stream.depths.append(here if _fits(here, room) else Depth((0, 0, 0), [], []))
        surviving = (survival[-1] if survival else 1.0) * top.probability
        if surviving < floor:
            break
        tokens.append(top.token)
        survival.append(surviving)
        candidates = _follow(candidates, top.token)
    stream.drafted = len(tokens)
    return tokens, survival


def draft_batch(
    state: SuffixState, slots: Sequence[int], ceilings: Sequence[int], cost: float
) -> list[tuple[list[int], list[float]]]:
    """Draft for every slot."""
    return [draft_row(state, s, c, cost) for s, c in zip(slots, ceilings, strict=True)]


def learn_row(state: SuffixState, slot: int, tokens: Sequence[int], cost: float) -> None:
    """Learn from the tokens that the target emitted after the last draft of ``slot``."""
    stream = state.streams[slot]
    model = state.models[stream.model]
    for depth, true in zip(stream.depths, tokens, strict=False):
        if not depth.ranked:
            break
        _learn_tokens(state, slot, depth, int(true))
        _learn_candidates(state, slot, depth, int(true))
    if stream.drafted >= 0:
        model.tokens = 0.998 * model.tokens + len(tokens)
        model.cost = 0.998 * model.cost + 1.0 + cost * stream.drafted
    stream.depths, stream.drafted = [], -1


def observe_batch(
    state: SuffixState, slots: Sequence[int], rows: Sequence[Sequence[int]], cost: float
) -> None:
    """Learn from, append and index the new tokens of every slot, in the order given, a bounded number per call."""
    budget = LINKED_PER_CALL
    for slot, tokens in zip(slots, rows, strict=True):
        learn_row(state, slot, tokens, cost)
        append_tokens(state, slot, tokens)
        budget -= index_some(state, slot, budget)


def _fits(depth: Depth, room: list[int]) -> bool:
    """Whether the log has room for this depth; takes the room if so."""
    if len(depth.ranked) > room[0] or len(depth.candidates) > room[1]:
        return False
    room[0] -= len(depth.ranked)
    room[1] -= len(depth.candidates)
    return True


def _with_next_token(
    state: SuffixState, slot: int, candidates: list[Candidate], drafted: list[int]
) -> list[Candidate]:
    """The candidates that have a next token; copying own text may run into the draft itself."""
    own = state.streams[slot].tokens + drafted
    kept = []
    for candidate in candidates:
        text = state.store.tokens if candidate.source == STORE else own
        token = text[candidate.position] if candidate.position < len(text) else -1
        if token >= 0:
            kept.append(replace(candidate, token=token))
    return kept


def _follow(candidates: list[Candidate], token: int) -> list[Candidate]:
    """Advance those that guessed ``token``; the first KEEP of own text and of the store survive."""
    kept: list[Candidate] = []
    counts = {False: 0, True: 0}
    for candidate in candidates:
        if candidate.token == token:
            stored = candidate.source == STORE
            counts[stored] += 1
            if counts[stored] <= KEEP:
                length = min(63, candidate.length + 1)
                kept.append(replace(candidate, position=candidate.position + 1, length=length))
    return kept


def _count_hit(table: NDArray[np.float64], row: int, hit: bool) -> None:
    table[row] += (float(hit), 1.0)
    if table[row, 1] > 20000.0:
        table[row] *= 0.5


def _learn_tokens(state: SuffixState, slot: int, depth: Depth, true: int) -> None:
    model = state.models[state.streams[slot].model]
    model.updates += 1.0
    step = 0.02 * max(0.2, 1.0 / math.sqrt(1.0 + model.updates / 1000.0))
    for entry in depth.ranked:
        hit = entry.token == true
        for table, row in zip(
            (state.by_token, state.by_context, model.by_recency), entry.rows, strict=True
        ):
            _count_hit(table, row, hit)
        error = step * (float(hit) - entry.probability)
        for f, x in enumerate(entry.features):
            for part, row in enumerate(depth.sets):
                model.weights[part, row, f] += error * x


def _learn_candidates(state: SuffixState, slot: int, depth: Depth, true: int) -> None:
    """Count hits, and move each copy pointer behind the longest supporter of the true token (ties: the first)."""
    model, pointers = state.models[state.streams[slot].model], state.streams[slot].pointers
    for source in range(PROMPT, STORE + 1):
        mine = [c for c in depth.candidates if c.source == source]
        for c in mine:
            for table, row in zip(model.cells, c.cells, strict=True):
                _count_hit(table, row, c.token == true)
            _count_hit(model.parents, c.parent, c.token == true)
        right = [c for c in mine if c.token == true]
        best = max(right, key=lambda c: c.length, default=None)
        pointers[source] = pointers[source] + 1 if best is None else best.position + 1
