"""Slow twin of :mod:`specplug.kernels.learning`.

A draft that was never observed teaches nothing; one of which no depth is known still counts for the goodput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specplug.reference.calibration import learn_survival
from specplug.reference.live import show_answers
from specplug.reference.streams import append_tokens, index_some
from specplug.reference.suffix_state import (
    LINKED_PER_CALL,
    N_FEATURES,
    PROMPT,
    STORE,
    Depth,
    Outcome,
    SuffixState,
)

Table = NDArray[np.float32] | NDArray[np.float64]


def _count_hit(table: Table, row: int, hit: bool) -> None:
    table[row] += (float(hit), 1.0)
    if table[row, 1] > 20000.0:
        table[row] *= 0.5


def _learn_tokens(state: SuffixState, slot: int, depth: Depth, true: int) -> None:
    model = state.models[state.streams[slot].model]
    model.updates += 1.0
    step = 0.02 * max(0.2, 1.0 / math.sqrt(1.0 + model.updates / 1000.0))
    slope = [0.0] * N_FEATURES
    for entry in depth.ranked:
        hit = entry.token == true
        for table, row in zip(
            (state.by_token, state.by_context, model.by_recency), entry.rows, strict=True
        ):
            _count_hit(table, row, hit)
        error = step * (float(hit) - entry.probability)
        slope = [sum_ + error * x for sum_, x in zip(slope, entry.features, strict=True)]
    for part, row in enumerate(depth.sets):
        model.weights[part, row] += slope


def _learn_candidates(state: SuffixState, slot: int, depth: Depth, true: int) -> None:
    model = state.models[state.streams[slot].model]
    for c in depth.candidates:
        for table, row in zip(model.cells, c.cells, strict=True):
            _count_hit(table, row, c.token == true)
        _count_hit(model.parents, c.parent, c.token == true)


def _move_pointers(state: SuffixState, slot: int, depth: Depth, true: int) -> None:
    """Move each copy pointer behind the longest supporter of the true token (ties: the first)."""
    pointers = state.streams[slot].pointers
    for source in range(PROMPT, STORE + 1):
        right = [c for c in depth.candidates if c.source == source and c.token == true]
        best = max(right, key=lambda c: c.length, default=None)
        pointers[source] = pointers[source] + 1 if best is None else best.position + 1


def note_outcome(state: SuffixState, slot: int, tokens: Sequence[int]) -> None:
    """Move the copy pointers by what the target emitted, and keep the last draft to learn from it later."""
    stream = state.streams[slot]
    if stream.drafted < 0:
        return
    known: list[tuple[Depth, int]] = []
    for depth, true in zip(stream.depths, tokens, strict=False):
        if not depth.ranked:
            break
        _move_pointers(state, slot, depth, int(true))
        known.append((depth, int(true)))
        if max(depth.ranked, key=lambda entry: entry.probability).token != true:
            break  # what was ranked further on stands behind another token
    proposed = list(zip(stream.depths, stream.chain, strict=False))
    state.pending.append(Outcome(slot, known, len(tokens), stream.drafted, proposed))
    stream.depths, stream.drafted = [], -1


def learn_row(state: SuffixState, outcome: Outcome, cost: float) -> None:
    """Learn from one outcome."""
    model = state.models[state.streams[outcome.slot].model]
    for depth, true in outcome.known:
        _learn_tokens(state, outcome.slot, depth, true)
        _learn_candidates(state, outcome.slot, depth, true)
    learn_survival(state, outcome.slot, outcome.known, outcome.proposed)
    model.tokens = 0.998 * model.tokens + outcome.emitted
    model.cost = 0.998 * model.cost + 1.0 + cost * outcome.drafted


def learn_batch(state: SuffixState, cost: float) -> None:
    """Learn from all outcomes noted, in their order."""
    for outcome in state.pending:
        learn_row(state, outcome, cost)
    state.pending.clear()


def observe_batch(
    state: SuffixState, slots: Sequence[int], rows: Sequence[Sequence[int]], cost: float
) -> None:
    """Learn from the outcomes before; append and index new tokens in the order given, a bounded number per call."""
    learn_batch(state, cost)
    budget = LINKED_PER_CALL
    for slot, tokens in zip(slots, rows, strict=True):
        note_outcome(state, slot, tokens)
        append_tokens(state, slot, tokens)
        budget -= index_some(state, slot, budget)
    show_answers(state, slots)
