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
from specplug.kernels.lanes import prefetch
from specplug.kernels.layout import (
    AGE,
    BUCKETS,
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
    N_FEATURES,
    N_INDEXED,
    N_LENGTH,
    N_LOG,
    N_MODEL,
    N_ORDERS,
    N_SOURCES,
    NEAR,
    OUTPUT,
    PAGE,
    PAGE_BITS,
    PARENT,
    PROMPT,
    SOURCE,
    STORE,
    TABLE_ROWS,
    TOKEN,
    V_AGE,
    V_COUNT,
    V_LENGTH,
    V_NEAR,
    VOTE_FIELDS,
    CountArray,
    Index,
    LongArray,
    Slots,
    State,
)
from specplug.kernels.quick import floor_log2, quick_exp, quick_log
from specplug.kernels.streams import bucket_of, bucket_page, mix, token_at

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
def _newest(slots: Slots, slot: Index, token: Index, pages: Index) -> Any:
    """Where the newest position behind a token like ``token`` is kept: a place in the flat memory of ``heads``."""
    hashed = np.int64(mix(np.uint64(2166136261), token))
    page = np.int64(slots.pages[slot, bucket_page(hashed, pages)])
    return page * (N_ORDERS * BUCKETS) + bucket_of(hashed)


@lean_kernel
def _last_seen(slots: Slots, slot: Index, token: Index, newest: Index) -> Any:
    """Index of the last occurrence of ``token`` in a stream; -1 if it is not found in a bounded number of steps.

    ``newest``: see :func:`_newest`; negative if nothing is linked yet.
    """
    length = slots.numbers[slot, N_LENGTH]
    if token_at(slots, slot, length - 1) == token:
        return length - 1
    if newest < 0:
        return np.int64(-1)
    per_page = N_ORDERS * BUCKETS
    position = np.int64(slots.heads[newest // per_page, 0, newest % per_page])
    for _ in range(MAX_STEPS):
        if position <= 0:
            break
        if token_at(slots, slot, position - 1) == token:
            return position - 1
        here = (slots.pages[slot, position >> PAGE_BITS] << PAGE_BITS) | (position & (PAGE - 1))
        position = np.int64(slots.links[here, 0])
    return np.int64(-1)


@inlined_kernel
def _expect_token(state: State, slot: Index, entry: LongArray, length: Index) -> None:
    """Ask for the memory that the features of a token will be made of, and note where the newest place is kept."""
    slots, model = state.slots, state.model
    row = _hash_row(entry[0], length, slots.numbers[slot, N_MODEL])
    prefetch(model.by_token, 2 * row)
    indexed = slots.numbers[slot, N_INDEXED]
    entry[3] = -1
    if indexed > 1:
        entry[3] = _newest(slots, slot, entry[0], ((indexed - 1) >> PAGE_BITS) + 1)
        prefetch(slots.heads, entry[3])


@inlined_kernel
def _gather_token(state: State, slot: Index, start: Index, count: Index, c: LongArray) -> Index:
    """Row of a candidate's token among the ``count`` distinct ones; ``count`` if it is new, and is then added."""
    tokens = state.log.tokens[state.slots.numbers[slot, N_LOG]]
    for row in range(count):
        if tokens[start + row, 0] == c[TOKEN]:
            return row
    tokens[start + count, 0] = c[TOKEN]
    _expect_token(state, slot, tokens[start + count], c[LENGTH])
    best = state.scratch.best[count]
    for field in range(VOTE_FIELDS):
        best[field] = 0.0
    return count


@lean_kernel
def _pool_votes(state: State, slot: Index, depth: Index, count: Index, start: Index) -> Index:
    """Sum up the candidates per distinct token, into the log's rows from ``start`` on; returns how many tokens."""
    which, where = state.slots.numbers[slot, N_MODEL], state.slots.numbers[slot, N_LOG]
    parents, cells = state.model.parents[which], state.model.cells[which]
    candidates = state.log.candidates[where]
    first = state.log.depths[where, depth, D_CANDIDATE_START]
    found = 0
    for row in range(first, first + count):
        c = candidates[row]
        parent = c[SOURCE] * LENGTH_BINS + _LENGTH_BIN[c[LENGTH]]
        c[PARENT] = parent
        prior, against = parents[parent, 2], parents[parent, 3]
        hopes, doubts = SHRINK_CELL * prior, SHRINK_CELL * (1.0 - prior)
        own, near, age = cells[parent, c[CLASS]], cells[parent, c[NEAR]], cells[parent, c[AGE]]
        t = _gather_token(state, slot, start, found, c)
        found = max(found, t + 1)
        best = state.scratch.best[t]
        rate = (own[0] + hopes) / (own[1] + SHRINK_CELL)
        best[c[SOURCE]] = max(best[c[SOURCE]], rate)
        best[V_LENGTH] = max(best[V_LENGTH], c[LENGTH])
        best[V_NEAR] = max(best[V_NEAR], (near[0] + hopes) / (near[1] - near[0] + doubts) * against)
        best[V_AGE] = max(best[V_AGE], (age[0] + hopes) / (age[1] - age[0] + doubts) * against)
        best[V_COUNT] += 1.0
    return found


@inlined_kernel
def _log_odds_ratio(cell: CountArray, strength: float, prior: float, logit: float) -> Any:
    """Logarithm of the odds of a cell over those of its prior, whose logarithm is ``logit``; 0 if nothing is known."""
    hits, misses = cell[0] + strength * prior, cell[1] - cell[0] + strength * (1.0 - prior)
    return quick_log(hits / misses) - logit


@lean_kernel
def _recency_row(
    state: State, slot: Index, depth: Index, token: Any, length: Index, newest: Index
) -> Index:
    """Row of the recency table: how long ago ``token`` occurred in the request or in its draft so far."""
    drafted = state.scratch.drafted
    ago = np.int64(-1)
    for q in range(depth):
        if drafted[q] == token:
            ago = np.int64(depth - q)
    if ago < 0:
        seen = _last_seen(state.slots, slot, token, newest)
        ago = np.int64(1 << 13)
        if seen >= 0:
            ago = state.slots.numbers[slot, N_LENGTH] + depth - seen
    return _log2_bin(ago + 1, 13) * 16 + _LENGTH_BIN[length]


@lean_kernel
def _finish_features(state: State, slot: Index, depth: Index, row: Index, previous: Index) -> None:
    """Turn the votes for the ranked token in log row ``row`` into its features."""
    model = state.model
    which, where = state.slots.numbers[slot, N_MODEL], state.slots.numbers[slot, N_LOG]
    x, entry = state.log.features[where, row], state.log.tokens[where, row]
    best = state.scratch.best[row - state.log.depths[where, depth, D_TOKEN_START]]
    for source in range(N_SOURCES):
        if best[source] > 0.0:
            best[source] = min(_MOST, max(_LEAST, best[source]))
    length = np.int64(best[V_LENGTH])
    first = max(best[0], max(best[1], best[2]))
    second = min(max(best[0], best[1]), best[2])  # own text and store, whichever says less
    logit = quick_log(first / (1.0 - first))
    entry[1] = _hash_row(entry[0], length, which)
    entry[2] = _hash_row(previous, length, which)
    entry[3] = _recency_row(state, slot, depth, entry[0], length, entry[3])
    x[F_RELIABILITY] = logit
    x[F_COUNT] = _LOG[np.int64(best[V_COUNT])]
    x[F_ONE] = 1.0
    x[F_TOKEN] = _log_odds_ratio(model.by_token[entry[1]], SHRINK_TOKEN, first, logit)
    x[F_CONTEXT] = _log_odds_ratio(model.by_context[entry[2]], SHRINK_TOKEN, first, logit)
    x[F_RECENCY] = _log_odds_ratio(model.by_recency[which, entry[3]], SHRINK_RECENCY, first, logit)
    x[F_NEAR] = quick_log(best[V_NEAR])
    x[F_AGE] = quick_log(best[V_AGE])
    x[F_BOTH] = 0.0
    if second > 0.0:
        x[F_BOTH] = min(4.0, max(0.0, quick_log(second / (1.0 - second)) + 3.0))


@lean_kernel
def _choose_weights(state: State, slot: Index, depth: Index, found: Index) -> None:
    """Which weight sets apply: by depth; by the best match length; by number of tokens and which texts offer them."""
    best = state.scratch.best
    longest = 0.0
    own = 0.0
    stored = 0.0
    for row in range(found):
        longest = max(longest, best[row, V_LENGTH])
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
    highest = 0.0
    for row in range(start, start + found):
        _finish_features(state, slot, depth, row, previous)
        z = 0.0
        for f in range(N_FEATURES):
            z += weights[f] * log.features[where, row, f]
        weight = quick_exp(z)
        if weight > highest:
            highest = weight
            top = row
        log.probs[where, row] = weight
        total += weight
    for row in range(start, start + found):
        log.probs[where, row] /= total
    return top
