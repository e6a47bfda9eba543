"""Which of the candidates' next tokens comes true: an online log-linear model over the distinct tokens and "none".

Each candidate has a reliability, the online hit rate of its class, shrunk towards that of its source and length. Each
distinct token gets features from its supporters and from online count tables; a softmax over the tokens and "none of
them" (logit 0) gives probabilities. Weights follow stochastic gradient descent on the log loss.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specplug.kernels._jit import inlined_kernel, lean_kernel
from specplug.kernels.lanes import LANES, place_of, prefetch
from specplug.kernels.layout import (
    AGE,
    CLASS,
    D_CANDIDATE_START,
    D_SET,
    D_TOKEN_START,
    D_TOKENS,
    F_AGE,
    F_BOTH,
    F_CONTEXT,
    F_COUNT,
    F_NEAR,
    F_ONE,
    F_RECENCY,
    F_RELIABILITY,
    F_TOKEN,
    LENGTH,
    LENGTH_BINS,
    MAX_CANDIDATES,
    N_FEATURES,
    N_LENGTH,
    N_LOG,
    N_MODEL,
    N_SOURCES,
    NEAR,
    O_AGE,
    O_BOTH,
    O_CONTEXT,
    O_NEAR,
    O_RECENCY,
    O_RELIABILITY,
    O_TOKEN,
    ODDS,
    OUTPUT,
    PARENT,
    PROMPT,
    RAREST,
    SOURCE,
    STORE,
    TABLE_ROWS,
    TOKEN,
    V_AGE,
    V_COUNT,
    V_FIRST,
    V_LENGTH,
    V_NEAR,
    VOTE_FIELDS,
    CountArray,
    Index,
    IntArray,
    LongArray,
    State,
)
from specplug.kernels.quick import floor_log2, quick_exp, quick_log
from specplug.kernels.streams import last_place, token_at

#: Pseudo-counts with which a cell is shrunk to its parent: candidate cells, token and context cells, recency cells.
SHRINK_CELL = 4.0
SHRINK_TOKEN = 1.0
SHRINK_RECENCY = 4.0


#: Twelve bins of match lengths: exact up to 4, then coarser.
_LENGTH_BIN: Any = np.searchsorted([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32], np.arange(64))
#: Logarithms of numbers of supporters.
_LOG = np.array([-math.inf, *(math.log(n) for n in range(1, MAX_CANDIDATES + 1))])
#: Reliabilities are kept away from 0 and 1.
_LEAST, _MOST = 0.005, 0.995


@lean_kernel
def class_rate(state: State, which: Index, source: Index, length: Index, kind: Index) -> Any:
    """Hit rate of a class of candidates of model ``which``, shrunk towards that of its source and length."""
    parent = source * LENGTH_BINS + _LENGTH_BIN[length]
    prior = state.model.parents[which, parent, 2]
    cell = state.model.cells[which, parent, kind]
    rate = (cell[0] + SHRINK_CELL * prior) / (cell[1] + SHRINK_CELL)
    return min(_MOST, max(_LEAST, rate))


@inlined_kernel
def _log2_bin(value: Index, top: Index) -> Index:
    """Floor of the binary logarithm of ``value`` (0 for values below 2), at most ``top``."""
    return min(top, floor_log2(max(1, value)))


@inlined_kernel
def _hash_row(token: Any, length: Index, model: Index) -> Any:
    """Row of a token at a match length in the hashed tables, for one model."""
    mixed = np.int64(token) * np.int64(2654435769) + np.int64(model) * np.int64(40503)
    return ((mixed >> 7) & (TABLE_ROWS // 8 - 1)) * 8 + min(_LENGTH_BIN[length], 7)


@inlined_kernel
def _row_of(distinct: IntArray, token: Index, found: Index) -> Index:
    """Row of ``token`` among the ``found`` distinct ones, several compared at once; ``found`` if it is not there."""
    row = np.int64(0)
    while row < found:
        place = place_of(distinct, row, token)
        row += place
        if place < LANES:
            break
    # What stands behind them is left from an earlier search.
    return min(row, found)


@inlined_kernel
def _gather_token(state: State, slot: Index, start: Index, count: Index, c: LongArray) -> Index:
    """Row of a candidate's token among the ``count`` distinct ones; ``count`` if it is new, and is then added."""
    scratch = state.scratch
    row = _row_of(scratch.distinct, c[TOKEN], count)
    if row == count:
        scratch.distinct[count] = c[TOKEN]
        numbers = state.slots.numbers[slot]
        state.log.tokens[numbers[N_LOG], start + count, 0] = c[TOKEN]
        prefetch(state.model.by_token, 2 * _hash_row(c[TOKEN], c[LENGTH], numbers[N_MODEL]))
        best = scratch.best[count]
        for field in range(VOTE_FIELDS):
            best[field] = 0.0
    return row


@inlined_kernel
def _bounded_odds(cell: CountArray, hopes: float, doubts: float) -> Any:
    """Odds of a cell with what it is shrunk by, no further from 1 than those of its parent can be."""
    odds = (cell[0] + hopes) / (cell[1] - np.float64(cell[0]) + doubts)
    return min(1.0 / RAREST, max(RAREST, odds))


@inlined_kernel
def _pool_votes(state: State, slot: Index, depth: Index, count: Index, start: Index) -> Index:
    """Sum up the candidates per distinct token, into the log's rows from ``start`` on; returns how many tokens."""
    which, where = state.slots.numbers[slot, N_MODEL], state.slots.numbers[slot, N_LOG]
    parents, cells = state.model.parents[which], state.model.cells[which]
    candidates = state.log.candidates[where]
    first = state.log.depths[where, depth, D_CANDIDATE_START]
    found = 0
    for row in range(first, first + count):
        c = candidates[row]
        # Indices that may be negative, as far as the compiler knows, cost three operations more each.
        parent = np.uint64(c[SOURCE] * LENGTH_BINS + _LENGTH_BIN[np.uint64(c[LENGTH])])
        c[PARENT] = np.int64(parent)
        kind, nearness, old = np.uint64(c[CLASS]), np.uint64(c[NEAR]), np.uint64(c[AGE])
        prior, against = parents[parent, 2], parents[parent, 3]
        hopes, doubts = SHRINK_CELL * prior, SHRINK_CELL * (1.0 - prior)
        own, near, age = cells[parent, kind], cells[parent, nearness], cells[parent, old]
        t = _gather_token(state, slot, start, found, c)
        found = max(found, t + 1)
        best = state.scratch.best[np.uint64(t)]
        rate = (own[0] + hopes) / (own[1] + SHRINK_CELL)
        source = np.uint64(c[SOURCE])
        best[source] = max(best[source], rate)
        best[V_LENGTH] = max(best[V_LENGTH], c[LENGTH])
        best[V_NEAR] = max(best[V_NEAR], _bounded_odds(near, hopes, doubts) * against)
        best[V_AGE] = max(best[V_AGE], _bounded_odds(age, hopes, doubts) * against)
        best[V_COUNT] += 1.0
    return found


@inlined_kernel
def _divide(scratch: Any, at: Index, cell: CountArray, strength: float, prior: float) -> None:
    """Odds of a cell that is shrunk to ``prior``."""
    scratch.above[at] = cell[0] + strength * prior
    scratch.below[at] = cell[1] - np.float64(cell[0]) + strength * (1.0 - prior)


@inlined_kernel
def _recency_row(
    state: State, slot: Index, depth: Index, token: Any, length: Index, last: Index
) -> Index:
    """Row of the recency table: how long ago ``token`` occurred in the request, whose last token is ``last``, or in its
    draft so far."""
    drafted = state.scratch.drafted
    end = state.slots.numbers[slot, N_LENGTH]
    seen = end - 1 if last == token else last_place(state.slots, slot, token)
    for q in range(depth):
        if drafted[q] == token:
            seen = end + q
    ago = end + depth - seen if seen >= 0 else np.int64(1 << 13)
    return _log2_bin(ago + 1, 13) * 16 + _LENGTH_BIN[length]


@inlined_kernel
def _choose_weights(state: State, slot: Index, depth: Index, found: Index) -> None:
    """Sum up the weight sets that apply: by depth; by the best match length; by number of tokens and their texts.

    Reliabilities are kept away from 0 and 1 here, and the greatest of each token is noted.
    """
    longest = 0.0
    own = 0.0
    stored = 0.0
    for row in range(found):
        best = state.scratch.best[row]
        for source in range(N_SOURCES):
            if best[source] > 0.0:
                best[source] = min(_MOST, max(_LEAST, best[source]))
        said = max(best[PROMPT], best[OUTPUT])
        best[V_FIRST] = max(said, best[STORE])
        longest = max(longest, best[V_LENGTH])
        own = max(own, said)
        stored = max(stored, best[STORE])
    kind = 0 if stored == 0.0 else (1 if own == 0.0 else 2)
    crowd = 0 if found == 1 else (1 if found <= 3 else (2 if found <= 8 else 3))
    sets = state.log.depths[state.slots.numbers[slot, N_LOG], depth]
    sets[D_SET] = min(depth, 3)
    sets[D_SET + 1] = _LENGTH_BIN[np.int64(longest)]
    sets[D_SET + 2] = 3 * crowd + kind
    w, weights = state.model.weights[state.slots.numbers[slot, N_MODEL]], state.scratch.weights
    for f in range(N_FEATURES):
        weights[f] = w[0, sets[D_SET], f] + w[1, sets[D_SET + 1], f] + w[2, sets[D_SET + 2], f]


@inlined_kernel
def _look_up(state: State, slot: Index, depth: Index, found: Index, previous: Index) -> None:
    """Note the rows of all ranked tokens in the token tables."""
    which, where = state.slots.numbers[slot, N_MODEL], state.slots.numbers[slot, N_LOG]
    tokens, best = state.log.tokens[where], state.scratch.best
    start = state.log.depths[where, depth, D_TOKEN_START]
    last = token_at(state.slots, slot, state.slots.numbers[slot, N_LENGTH] - 1)
    for row in range(found):
        entry, length = tokens[start + row], np.int64(best[row, V_LENGTH])
        entry[1] = _hash_row(entry[0], length, which)
        entry[2] = _hash_row(previous, length, which)
        entry[3] = _recency_row(state, slot, depth, entry[0], length, last)


@inlined_kernel
def _take_logs(state: State, slot: Index, depth: Index, found: Index) -> None:
    """Logarithms of all odds of the ranked tokens, into ``scratch.above``."""
    model, scratch = state.model, state.scratch
    which, where = state.slots.numbers[slot, N_MODEL], state.slots.numbers[slot, N_LOG]
    tokens = state.log.tokens[where]
    start = state.log.depths[where, depth, D_TOKEN_START]
    above, below = scratch.above, scratch.below
    for row in range(found):
        entry, best = tokens[start + row], scratch.best[row]
        first, at = best[V_FIRST], ODDS * row
        second = min(max(best[PROMPT], best[OUTPUT]), best[STORE])  # whichever says less
        above[at + O_RELIABILITY] = first
        below[at + O_RELIABILITY] = 1.0 - first
        _divide(scratch, at + O_TOKEN, model.by_token[np.uint64(entry[1])], SHRINK_TOKEN, first)
        _divide(scratch, at + O_CONTEXT, model.by_context[np.uint64(entry[2])], SHRINK_TOKEN, first)
        ago = model.by_recency[which, np.uint64(entry[3])]
        _divide(scratch, at + O_RECENCY, ago, SHRINK_RECENCY, first)
        above[at + O_NEAR] = best[V_NEAR]
        below[at + O_NEAR] = 1.0
        above[at + O_AGE] = best[V_AGE]
        below[at + O_AGE] = 1.0
        above[at + O_BOTH] = max(second, _LEAST)
        below[at + O_BOTH] = 1.0 - second
        above[at + ODDS - 1] = 1.0
    for at in range(ODDS * found):
        above[at] = quick_log(above[at] / below[at])


@inlined_kernel
def _weigh_features(state: State, slot: Index, depth: Index, found: Index) -> None:
    """Write the features of the ranked tokens, and their weighted sums to where probabilities will stand."""
    log, scratch, where = state.log, state.scratch, state.slots.numbers[slot, N_LOG]
    start, w = log.depths[where, depth, D_TOKEN_START], scratch.weights
    logs = scratch.above
    for row in range(found):
        x, at = log.features[where, start + row], ODDS * row
        logit = logs[at + O_RELIABILITY]
        token = logs[at + O_TOKEN] - logit
        context = logs[at + O_CONTEXT] - logit
        recency = logs[at + O_RECENCY] - logit
        near, age = logs[at + O_NEAR], logs[at + O_AGE]
        count = _LOG[np.int64(scratch.best[row, V_COUNT])]
        # At the least reliability, and where only one text speaks, this is 0.
        both = min(4.0, max(0.0, logs[at + O_BOTH] + 3.0))
        x[F_RELIABILITY], x[F_COUNT], x[F_ONE] = logit, count, 1.0
        x[F_TOKEN], x[F_CONTEXT], x[F_RECENCY] = token, context, recency
        x[F_NEAR], x[F_AGE], x[F_BOTH] = near, age, both
        early = (w[0] * logit + w[1] * count) + (w[2] + w[3] * token)
        late = (w[4] * context + w[5] * recency) + (w[6] * near + w[7] * age)
        log.probs[where, start + row] = (early + late) + w[8] * both


@lean_kernel
def source_of(state: State, slot: Index, depth: Index, row: Index) -> Index:
    """The source whose candidates for the ranked token in log row ``row`` are most reliable; the first, of equals.

    To be called before the next depth is ranked.
    """
    start = state.log.depths[state.slots.numbers[slot, N_LOG], depth, D_TOKEN_START]
    best = state.scratch.best[row - start]
    found = 0
    for source in range(1, N_SOURCES):
        if best[source] > best[found]:
            found = source
    return found


@lean_kernel
def rank_tokens(state: State, slot: Index, depth: Index, count: Index, previous: Index) -> Index:
    """Probabilities of the next tokens of ``count`` candidates, into the log; returns the row of the best.

    ``previous`` is the token before the guessed one. Ties go to the token found first. The log's row of this depth
    must hold where its tokens and candidates start (D_TOKEN_START, D_CANDIDATE_START).
    """
    log, where = state.log, state.slots.numbers[slot, N_LOG]
    start = log.depths[where, depth, D_TOKEN_START]
    found = _pool_votes(state, slot, depth, count, start)
    log.depths[where, depth, D_TOKENS] = found
    _choose_weights(state, slot, depth, found)
    _look_up(state, slot, depth, found, previous)
    _take_logs(state, slot, depth, found)
    _weigh_features(state, slot, depth, found)
    probs = log.probs[where, start : start + found]
    for row in range(found):
        probs[row] = quick_exp(probs[row])
    total = 1.0  # the weight of "none of them"
    top = 0
    for row in range(found):
        total += probs[row]
        if probs[row] > probs[top]:
            top = row
    for row in range(found):
        probs[row] /= total
    return start + top
