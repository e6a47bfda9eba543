"""Which of the candidates' next tokens comes true: an online log-linear model over the distinct tokens and "none".

Each candidate has a reliability, the online hit rate of its class, shrunk towards that of its source and length. Each
distinct token gets features from its supporters and from online count tables; a softmax over the tokens and "none of
them" (logit 0) gives probabilities. Weights follow stochastic gradient descent on the log loss.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specplug.kernels._jit import lean_kernel
from specplug.kernels.layout import (
    BY_AGE,
    BY_NEAR,
    BY_RANK,
    CELL,
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
    MAX_STEPS,
    N_CLASSES,
    N_FEATURES,
    N_INDEXED,
    N_LENGTH,
    N_LOG,
    N_MODEL,
    N_POINTER,
    N_SOURCES,
    OUTPUT,
    PAGE,
    PAGE_BITS,
    POSITION,
    PROMPT,
    S_END,
    SOURCE,
    STORE,
    TABLE_ROWS,
    TOKEN,
    FloatArray,
    Index,
    LongArray,
    Slots,
    State,
)
from specplug.kernels.streams import bucket_of, bucket_page, mix, token_at

#: Pseudo-counts with which a cell is shrunk to its parent: candidate cells, token and context cells, recency cells.
SHRINK_CELL = 4.0
SHRINK_TOKEN = 1.0
SHRINK_RECENCY = 4.0


#: Twelve bins of match lengths: exact up to 4, then coarser.
_LENGTH_BIN: Any = np.searchsorted([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32], np.arange(64))
#: Logarithms of numbers of supporters.
_LOG = np.array([-math.inf, *(math.log(n) for n in range(1, MAX_CANDIDATES + 1))])


@lean_kernel
def class_rate(state: State, which: Index, source: Index, length: Index, kind: Index) -> Any:
    """Hit rate of a class of candidates of model ``which``, shrunk towards that of its source and length."""
    parent = source * LENGTH_BINS + _LENGTH_BIN[length]
    prior = state.model.parents[which, parent, 2]
    cell = state.model.cells[which, BY_RANK, parent * N_CLASSES + kind]
    rate = (cell[0] + SHRINK_CELL * prior) / (cell[1] + SHRINK_CELL)
    return min(0.995, max(0.005, rate))


@lean_kernel
def _log2_bin(value: Index, top: Index) -> Index:
    """Floor of the binary logarithm of ``value`` (0 for values below 2), at most ``top``."""
    if value >> top > 0:
        return top
    result = 0
    while value > 1:
        value >>= 1
        result += 1
    return result


@lean_kernel
def _odds(table: FloatArray, row: Index, strength: float, prior: float) -> Any:
    """Odds of a cell, shrunk likewise."""
    return (table[row, 0] + strength * prior) / (
        table[row, 1] - table[row, 0] + strength * (1.0 - prior)
    )


@lean_kernel
def _hash_row(token: Any, length: Index, model: Index) -> Any:
    """Row of a token at a match length in the hashed tables, for one model."""
    mixed = np.int64(token) * np.int64(2654435769) + np.int64(model) * np.int64(40503)
    return ((mixed >> 7) & (TABLE_ROWS // 8 - 1)) * 8 + min(_LENGTH_BIN[length], 7)


@lean_kernel
def _last_seen(slots: Slots, slot: Index, token: Index) -> Any:
    """Index of the last occurrence of ``token`` in a stream; -1 if it is not found in a bounded number of steps."""
    length = slots.numbers[slot, N_LENGTH]
    if token_at(slots, slot, length - 1) == token:
        return length - 1
    indexed = slots.numbers[slot, N_INDEXED]
    if indexed <= 1:
        return np.int64(-1)
    hashed = np.int64(mix(np.uint64(2166136261), token))
    page = slots.pages[slot, bucket_page(hashed, ((indexed - 1) >> PAGE_BITS) + 1)]
    position = np.int64(slots.heads[page, 0, bucket_of(hashed)])
    for _ in range(MAX_STEPS):
        if position <= 0:
            break
        if token_at(slots, slot, position - 1) == token:
            return position - 1
        here = (slots.pages[slot, position >> PAGE_BITS] << PAGE_BITS) | (position & (PAGE - 1))
        position = np.int64(slots.links[here, 0])
    return np.int64(-1)


@lean_kernel
def _classify(state: State, slot: Index, depth: Index, row: Index) -> Index:
    """Write the table cells of the candidate in log row ``row``, followed for ``depth`` tokens; returns its parent."""
    numbers = state.slots.numbers[slot]
    c = state.log.candidates[numbers[N_LOG], row]
    parent = c[SOURCE] * LENGTH_BINS + _LENGTH_BIN[c[LENGTH]]
    offset = c[POSITION] - depth - numbers[N_POINTER + c[SOURCE]]
    near = 2 if offset == 0 else (1 if -16 < offset < 48 else 0)
    end = state.store.numbers[S_END] if c[SOURCE] == STORE else numbers[N_LENGTH]
    c[CELL + BY_RANK] = parent * N_CLASSES + c[CLASS]
    c[CELL + BY_NEAR] = parent * 3 + near
    c[CELL + BY_AGE] = parent * 12 + _log2_bin(end - c[POSITION] + depth, 11)
    return parent


@lean_kernel
def _gather_token(
    state: State, tokens: LongArray, count: Index, token: Index
) -> tuple[Index, Index]:
    """Row of ``token`` among the ``count`` distinct ones, appended to them if new. Returns (row, new count)."""
    for row in range(count):
        if tokens[row, 0] == token:
            return row, count
    tokens[count, 0] = token
    best = state.scratch.best
    best[count, :] = 0.0
    return count, count + 1


@lean_kernel
def _pool_votes(state: State, slot: Index, depth: Index, count: Index, start: Index) -> Index:
    """Sum up the candidates per distinct token, into the log's rows from ``start`` on; returns how many tokens.

    Their number, and the best odds ratios by nearness and by age, stand in the features for now.
    """
    which, where = state.slots.numbers[slot, N_MODEL], state.slots.numbers[slot, N_LOG]
    parents, cells, best = state.model.parents[which], state.model.cells[which], state.scratch.best
    tokens, features = state.log.tokens[where, start:], state.log.features[where, start:]
    first = state.log.depths[where, depth, D_CANDIDATE_START]
    found = 0
    for row in range(first, first + count):
        parent = _classify(state, slot, depth, row)
        c = state.log.candidates[where, row]
        prior, against = parents[parent, 2], parents[parent, 3]
        cell = c[CELL + BY_RANK]
        r = (cells[BY_RANK, cell, 0] + SHRINK_CELL * prior) / (
            cells[BY_RANK, cell, 1] + SHRINK_CELL
        )
        known = found
        t, found = _gather_token(state, tokens, found, c[TOKEN])
        if found > known:
            features[t, :] = 0.0
        best[t, c[SOURCE]] = max(best[t, c[SOURCE]], min(0.995, max(0.005, r)))
        best[t, N_SOURCES] = max(best[t, N_SOURCES], c[LENGTH])
        near = _odds(cells[BY_NEAR], c[CELL + BY_NEAR], SHRINK_CELL, prior) * against
        age = _odds(cells[BY_AGE], c[CELL + BY_AGE], SHRINK_CELL, prior) * against
        features[t, F_COUNT] += 1.0
        features[t, F_NEAR] = max(features[t, F_NEAR], near)
        features[t, F_AGE] = max(features[t, F_AGE], age)
    return found


@lean_kernel
def _log_odds_ratio(
    table: FloatArray, row: Index, strength: float, prior: float, logit: float
) -> Any:
    """Logarithm of the odds of a cell over those of its prior, whose logarithm is ``logit``."""
    if table[row, 1] == 0.0:  # nothing known yet, as so often, and no logarithm to be taken
        return 0.0
    return math.log(_odds(table, row, strength, prior)) - logit


@lean_kernel
def _recency_row(state: State, slot: Index, depth: Index, token: Any, length: Index) -> Index:
    """Row of the recency table: how long ago ``token`` occurred in the request or in its draft so far."""
    slots = state.slots
    seen = _last_seen(slots, slot, token)
    ago = np.int64(1 << 13)
    if seen >= 0:
        ago = slots.numbers[slot, N_LENGTH] + depth - seen
    for q in range(depth):
        if state.scratch.drafted[q] == token:
            ago = np.int64(depth - q)
    return _log2_bin(ago + 1, 13) * 16 + _LENGTH_BIN[length]


@lean_kernel
def _finish_features(state: State, slot: Index, depth: Index, row: Index, previous: Index) -> None:
    """Turn the raw votes of the ranked token in log row ``row`` into its features."""
    model = state.model
    which, where = state.slots.numbers[slot, N_MODEL], state.slots.numbers[slot, N_LOG]
    x, entry = state.log.features[where, row], state.log.tokens[where, row]
    best = state.scratch.best[row - state.log.depths[where, depth, D_TOKEN_START]]
    length = np.int64(best[N_SOURCES])
    first = max(best[0], max(best[1], best[2]))
    second = min(max(best[0], best[1]), best[2])  # own text and store, whichever says less
    logit = math.log(first / (1.0 - first))
    entry[1] = _hash_row(entry[0], length, which)
    entry[2] = _hash_row(previous, length, which)
    entry[3] = _recency_row(state, slot, depth, entry[0], length)
    x[F_RELIABILITY] = logit
    x[F_COUNT] = _LOG[np.int64(x[F_COUNT])]
    x[F_ONE] = 1.0
    x[F_TOKEN] = _log_odds_ratio(model.by_token, entry[1], SHRINK_TOKEN, first, logit)
    x[F_CONTEXT] = _log_odds_ratio(model.by_context, entry[2], SHRINK_TOKEN, first, logit)
    x[F_RECENCY] = _log_odds_ratio(model.by_recency[which], entry[3], SHRINK_RECENCY, first, logit)
    x[F_NEAR] = math.log(x[F_NEAR])
    x[F_AGE] = math.log(x[F_AGE])
    x[F_BOTH] = 0.0
    if second > 0.0:
        x[F_BOTH] = min(4.0, max(0.0, math.log(second / (1.0 - second)) + 3.0))


@lean_kernel
def _choose_weights(state: State, slot: Index, depth: Index, found: Index) -> None:
    """Which weight sets apply: by depth; by the best match length; by number of tokens and which texts offer them."""
    best = state.scratch.best
    longest = 0.0
    own = 0.0
    stored = 0.0
    for row in range(found):
        longest = max(longest, best[row, N_SOURCES])
        own = max(own, max(best[row, PROMPT], best[row, OUTPUT]))
        stored = max(stored, best[row, STORE])
    kind = 0 if stored == 0.0 else (1 if own == 0.0 else 2)
    crowd = 0 if found == 1 else (1 if found <= 3 else (2 if found <= 8 else 3))
    sets = state.log.depths[state.slots.numbers[slot, N_LOG], depth]
    sets[D_SET] = min(depth, 3)
    sets[D_SET + 1] = _LENGTH_BIN[np.int64(longest)]
    sets[D_SET + 2] = 3 * crowd + kind


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
    sets = log.depths[where, depth, D_SET : D_SET + 3]
    w = state.model.weights[state.slots.numbers[slot, N_MODEL]]
    weights = state.scratch.weights
    for f in range(N_FEATURES):
        weights[f] = w[0, sets[0], f] + w[1, sets[1], f] + w[2, sets[2], f]
    total = 1.0  # the weight of "none of them"
    top = start
    highest = -math.inf
    for row in range(start, start + found):
        _finish_features(state, slot, depth, row, previous)
        z = 0.0
        for f in range(N_FEATURES):
            z += weights[f] * log.features[where, row, f]
        if z > highest:
            highest = z
            top = row
        log.probs[where, row] = math.exp(min(z, 12.0))
        total += log.probs[where, row]
    for row in range(start, start + found):
        log.probs[where, row] /= total
    return top
