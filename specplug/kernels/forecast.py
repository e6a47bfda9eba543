"""How likely draft tokens are to be accepted, and what outcomes teach.

The rules stand in :mod:`specplug.reference.forecast`.

All that is believed lies in one array, so that entering compiled code costs little: a row per slot, then per group, per
bucket of depths and per source. These kernels check slots themselves (it costs nothing here, and microseconds in
numpy): a slot out of range ends them with a negative number, before anything is changed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import lean_kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Marks = NDArray[np.int64]
Bytes = NDArray[np.uint8]

#: Columns of a row of beliefs. Of a slot, the third is the number of its group and the fourth how many offered tokens
#: were right lately; of the others, the third is the exponential of the bias, and the rest are sums of one call.
BIAS, VARIANCE, FACTOR, RESIDUAL, INFORMATION, TESTED = range(6)
GROUP, USEFUL, COLUMNS = 2, 3, 6

#: What ``marks`` holds: first rows of groups, depths and sources, and whether the proposer gives estimates.
GROUPS_AT, DEPTHS_AT, SOURCES_AT, INFORMED = range(4)

#: First depth of each bucket.
BUCKET_STARTS = (0, 1, 2, 3, 4, 6, 9, 13, 20)
BUCKETS = 9

#: Estimates are believed only between these two: odds of 0 or infinity could never be corrected.
LOWEST, HIGHEST = 1e-3, 0.999

#: Chance of a position where the proposer gives none: at the first position, and behind accepted ones.
BLIND_FIRST, BLIND_LATER = 0.5, 0.8

# Variance of a fresh bias (also the most it can grow back to), growth per step, bound of the bias, longest move.
OF_REQUEST = (1.0, 0.005, 4.0, 2.0)
OF_GROUP = (0.30, 0.002, 3.0, 1.0)
OF_DEPTH = (0.10, 0.0005, 2.0, 0.5)
OF_SOURCE = (0.15, 0.001, 2.0, 0.5)
# Without estimates the rate of each position has to be learned from nothing, and behind the first may be close to 0 or
# 1. What is then not tried any more would never be seen to change, so such a bias rises by this much per step.
OF_BLIND_DEPTH, BLIND_LATER_BOUND, FORGOTTEN = (1.0, 0.0005, 2.0, 0.5), 6.0, 0.02


@lean_kernel
def read_chances(survival: Floats, slots: Ints, offered: Ints, chances: Floats) -> tuple[int, int]:
    """See the twin: ``chances`` of the slots become what ``survival`` says; returns tokens and the longest offer."""
    total = 0
    longest = 0
    for i in range(slots.shape[0]):
        if slots[i] < 0 or slots[i] >= chances.shape[0]:
            return -1, i
    for i in range(slots.shape[0]):
        length = min(offered[i], min(survival.shape[1], chances.shape[1]))
        total += length
        longest = max(longest, length)
        silent = length > 0 and not survival[i, 0] > 0.0
        before = 1.0
        for d in range(length):
            if silent:
                chance = BLIND_FIRST if d == 0 else BLIND_LATER
            else:
                chance = survival[i, d] / before
                before = survival[i, d]
                # Written so that NaN becomes the lowest chance.
                if not chance > LOWEST:
                    chance = LOWEST
                chance = min(chance, HIGHEST)
            chances[slots[i], d] = chance
    return total, longest


@lean_kernel
def _row_factor(beliefs: Floats, marks: Marks, slot: int) -> float:
    group = marks[GROUPS_AT] + int(beliefs[slot, GROUP])
    return math.exp(beliefs[slot, BIAS] + beliefs[group, BIAS])


@lean_kernel
def _source_row(marks: Marks, sources: Bytes, slot: int, depth: int, end: int) -> int:
    """The row of the source of a position; a number without a name stands for the last."""
    return min(int(marks[SOURCES_AT]) + int(sources[slot, depth]), end - 1)


@lean_kernel
def _corrected(factor: float, chance: float) -> float:
    odds = factor * chance
    return odds / (1.0 - chance + odds)


@lean_kernel
def forecast(
    beliefs: Floats,
    marks: Marks,
    sources: Bytes,
    slots: Ints,
    offered: Ints,
    chances: Floats,
    survival: Floats,
) -> int:
    """See the twin: corrected survival of each draft, 0 behind its end."""
    for i in range(slots.shape[0]):
        if slots[i] < 0 or slots[i] >= chances.shape[0]:
            return -1 - i
    width = survival.shape[1]
    known = sources.shape[0] > 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        length = min(offered[i], width)
        row = _row_factor(beliefs, marks, slot)
        bucket = -1
        product = 1.0
        for d in range(length):
            if bucket + 1 < BUCKETS and d == BUCKET_STARTS[bucket + 1]:
                bucket += 1
            factor = beliefs[marks[DEPTHS_AT] + bucket, FACTOR] * row
            if known:
                which = _source_row(marks, sources, slot, d, beliefs.shape[0])
                factor *= beliefs[which, FACTOR]
            product *= _corrected(factor, chances[slot, d])
            survival[i, d] = product
        for d in range(max(0, length), width):
            survival[i, d] = 0.0
    return 0


@lean_kernel
def _note(beliefs: Floats, row: int, residual: float, information: float, tested: float) -> None:
    beliefs[row, RESIDUAL] += residual
    beliefs[row, INFORMATION] += information
    beliefs[row, TESTED] += tested


@lean_kernel
def _aged(own: float, information: float, kind: tuple[float, float, float, float]) -> float:
    """The variance after an observation took its share, grown back a little."""
    shrunk = own / (1.0 + information * own) * information
    return min(own * (1.0 - min(shrunk, 1.0)) + kind[1], kind[0])


@lean_kernel
def _move(beliefs: Floats, row: int, kind: tuple[float, float, float, float], bound: float) -> None:
    """Move a belief by the sums of this call, and clear them."""
    own = beliefs[row, VARIANCE]
    gain = own / (1.0 + 0.25 * beliefs[row, TESTED] * (own + OF_REQUEST[0]))
    step = min(max(gain * beliefs[row, RESIDUAL], -kind[3]), kind[3])
    beliefs[row, BIAS] = min(max(beliefs[row, BIAS] + step, -bound), bound)
    beliefs[row, VARIANCE] = _aged(own, beliefs[row, INFORMATION], kind)
    beliefs[row, FACTOR] = math.exp(beliefs[row, BIAS])
    beliefs[row, RESIDUAL] = 0.0
    beliefs[row, INFORMATION] = 0.0
    beliefs[row, TESTED] = 0.0


@lean_kernel
def _learn_row(
    beliefs: Floats,
    marks: Marks,
    sources: Bytes,
    slot: int,
    chances: Floats,
    tested: int,
    agreed: int,
) -> None:
    """One request moves its own bias; what it says about the others is added up."""
    row = _row_factor(beliefs, marks, slot)
    known = sources.shape[0] > 0
    bucket = -1
    r = 0.0
    h = 0.0
    for d in range(tested):
        if bucket + 1 < BUCKETS and d == BUCKET_STARTS[bucket + 1]:
            bucket += 1
        depth = marks[DEPTHS_AT] + bucket
        factor = beliefs[depth, FACTOR] * row
        which = 0
        if known:
            which = _source_row(marks, sources, slot, d, beliefs.shape[0])
            factor *= beliefs[which, FACTOR]
        q = _corrected(factor, chances[slot, d])
        residual = (1.0 if d < agreed else 0.0) - q
        information = q * (1.0 - q)
        r += residual
        h += information
        _note(beliefs, depth, residual, information, 1.0)
        if known:
            _note(beliefs, which, residual, information, 1.0)
    group = marks[GROUPS_AT] + int(beliefs[slot, GROUP])
    own = beliefs[slot, VARIANCE]
    variance = own + beliefs[group, VARIANCE] + beliefs[marks[DEPTHS_AT], VARIANCE]
    step = own / (1.0 + 0.25 * variance) * r
    step = min(max(step, -OF_REQUEST[3]), OF_REQUEST[3])
    beliefs[slot, BIAS] = min(max(beliefs[slot, BIAS] + step, -OF_REQUEST[2]), OF_REQUEST[2])
    beliefs[slot, VARIANCE] = _aged(own, h, OF_REQUEST)
    _note(beliefs, group, r, h, 1.0)


@lean_kernel
def _learn_depths(beliefs: Floats, marks: Marks) -> None:
    informed = marks[INFORMED] > 0
    for bucket in range(BUCKETS):
        row = marks[DEPTHS_AT] + bucket
        tested = beliefs[row, INFORMATION] > 0.0
        if informed:
            _move(beliefs, row, OF_DEPTH, OF_DEPTH[2])
            continue
        bound = OF_BLIND_DEPTH[2] if bucket == 0 else BLIND_LATER_BOUND
        _move(beliefs, row, OF_BLIND_DEPTH, bound)
        if not tested and beliefs[row, BIAS] < -OF_BLIND_DEPTH[2]:
            beliefs[row, BIAS] += FORGOTTEN
            beliefs[row, FACTOR] = math.exp(beliefs[row, BIAS])


@lean_kernel
def learn_outcomes(
    beliefs: Floats,
    marks: Marks,
    sources: Bytes,
    slots: Ints,
    chances: Floats,
    tested: Ints,
    agreed: Ints,
) -> int:
    """See the twin: every belief moves by what was seen of it."""
    longest = 0
    for i in range(slots.shape[0]):
        if slots[i] < 0 or slots[i] >= chances.shape[0] or tested[i] > chances.shape[1]:
            return -1 - i
        longest = max(longest, tested[i])
    for i in range(slots.shape[0]):
        useful = beliefs[slots[i], USEFUL]
        beliefs[slots[i], USEFUL] = useful + 0.2 * (min(agreed[i], 4) - useful)
    if longest == 0:
        return 0
    for i in range(slots.shape[0]):
        _learn_row(beliefs, marks, sources, slots[i], chances, tested[i], agreed[i])
    for i in range(slots.shape[0]):
        group = marks[GROUPS_AT] + int(beliefs[slots[i], GROUP])
        if beliefs[group, TESTED] > 0.0:
            _move(beliefs, group, OF_GROUP, OF_GROUP[2])
    _learn_depths(beliefs, marks)
    if sources.shape[0] > 0:
        for row in range(marks[SOURCES_AT], beliefs.shape[0]):
            if beliefs[row, TESTED] > 0.0:
                _move(beliefs, row, OF_SOURCE, OF_SOURCE[2])
    return 0
