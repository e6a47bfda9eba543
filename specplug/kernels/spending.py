"""How many draft tokens of each row a step verifies; the rules stand in :mod:`specplug.reference.spending`.

Gains are put into buckets, and a bucket is sorted when the walk over the totals comes to it. The walk ends where no
longer plan can be better, so most buckets are never sorted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import lean_kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Wide = NDArray[np.int64]

#: Buckets over 0 to 1: the room for their ends that the caller brings, filled with 0.
BUCKETS = 2048


@lean_kernel
def _sort_falling(values: Floats, first: int, last: int) -> None:
    """Shell's sort: short slices are sorted by insertion, and long ones take no more than n to the power 1.5."""
    gap = 1
    while 3 * gap + 1 < last - first:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(first + gap, last):
            value = values[i]
            j = i
            while j - gap >= first and values[j - gap] < value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 3


@lean_kernel
def _bucket(gain: float) -> int:
    return min(max(int((1.0 - gain) * BUCKETS), 0), BUCKETS - 1)


@lean_kernel
def _fill(gains: Floats, ends: Wide, order: Floats) -> int:
    """Gains above 0 by falling buckets, of which ``ends`` become the ends; returns how many."""
    for row in range(gains.shape[0]):
        for d in range(gains.shape[1]):
            if not gains[row, d] > 0.0:
                break
            ends[_bucket(gains[row, d])] += 1
    total = 0
    for bucket in range(BUCKETS):
        count = ends[bucket]
        ends[bucket] = total
        total += count
    for row in range(gains.shape[0]):
        for d in range(gains.shape[1]):
            if not gains[row, d] > 0.0:
                break
            bucket = _bucket(gains[row, d])
            order[ends[bucket]] = gains[row, d]
            ends[bucket] += 1
    return total


@lean_kernel
def _count(gains: Floats, least: float, total: int, lengths: Ints) -> None:
    """Per row how many of the ``total`` greatest gains it holds; ties go to earlier rows."""
    width = gains.shape[1]
    missing = total
    for row in range(gains.shape[0]):
        length = 0
        while length < width and gains[row, length] > least:
            length += 1
        lengths[row] = length
        missing -= length
    row = 0
    while missing > 0 and row < gains.shape[0]:
        while missing > 0 and lengths[row] < width and gains[row, lengths[row]] >= least:
            lengths[row] += 1
            missing -= 1
        row += 1


@lean_kernel
def latency_gains(survival: Floats, gains: Floats) -> None:
    """See the twin."""
    for row in range(survival.shape[0]):
        tokens = 0.0
        before = 1.0
        least = np.inf
        for d in range(survival.shape[1]):
            tokens += survival[row, d]
            after = 1.0 + tokens
            # They fall by themselves, except for the rounding of tiny ones.
            least = min(least, 1.0 / before - 1.0 / after)
            gains[row, d] = least
            before = after


@lean_kernel
def _ratio(
    value: float, spent: float, plain: float, rows: int, latency: bool, most_cost: float
) -> float:
    if spent > most_cost:
        return 0.0
    if latency:
        return (rows * plain) / (spent * max(rows - value, 1e-12))
    return (rows + value) * (plain / (rows * spent))


@lean_kernel
def _hopeful(
    value: float,
    gain: float,
    count: int,
    costs: Floats,
    rows: int,
    latency: bool,
    most_cost: float,
    least: float,
) -> bool:
    """Whether a plan longer than ``count`` could be better than ``least``, if each further token gained ``gain``."""
    for more in range(1, costs.shape[0] - count):
        dreamt = value + gain * more
        if _ratio(dreamt, costs[count + more], costs[0], rows, latency, most_cost) > least:
            return True
    return False


@lean_kernel
def _next_bucket(ends: Wide, bucket: int, ready: int) -> int:
    """The first bucket behind ``bucket`` that holds gains, of which ``ready`` stand before it."""
    bucket += 1
    while ends[bucket] == ready:
        bucket += 1
    return bucket


@lean_kernel
def spend(
    gains: Floats,
    costs: Floats,
    margin: float,
    latency: bool,
    most_cost: float,
    lengths: Ints,
    order: Floats,
    ends: Wide,
) -> tuple[int, float, float]:
    """See the twin: fills ``lengths``; returns their sum, the sum of their gains and the ratio."""
    rows = gains.shape[0]
    found = min(costs.shape[0] - 1, _fill(gains, ends, order))
    ready = 0
    bucket = -1
    look = 32
    value = 0.0
    best = 0
    best_value = 0.0
    best_ratio = 0.0
    for count in range(found):
        if count == ready:
            bucket = _next_bucket(ends, bucket, ready)
            size = ends[bucket] - ready
            if size > 64 and 16 * size > costs.shape[0] - count and bucket > 0:
                # Many alike, as where every chance is at its floor: sorting them is dearer than to ask whether to.
                edge = 1.0 - bucket / BUCKETS
                least = max(best_ratio, 1.0 + margin)
                if not _hopeful(value, edge, count, costs, rows, latency, most_cost, least):
                    break
            _sort_falling(order, ready, ends[bucket])
            ready = ends[bucket]
        value += order[count]
        ratio = _ratio(value, costs[count + 1], costs[0], rows, latency, most_cost)
        if ratio > best_ratio:
            best, best_value, best_ratio = count + 1, value, ratio
        if count >= look:
            look = count + count // 2
            least = max(best_ratio, 1.0 + margin)
            gain = order[count]
            if not _hopeful(value, gain, count + 1, costs, rows, latency, most_cost, least):
                break
    if best == 0 or best_ratio < 1.0 + margin:
        _count(gains, np.inf, 0, lengths)
        return 0, 0.0, 1.0
    _count(gains, order[best - 1], best, lengths)
    return best, best_value, best_ratio


@lean_kernel
def spend_at_rate(
    gains: Floats, costs: Floats, rate: float, lengths: Ints, order: Floats, ends: Wide
) -> tuple[int, float, float]:
    """See the twin: fills ``lengths``; returns their sum, the sum of their gains and the ratio."""
    found = min(costs.shape[0] - 1, _fill(gains, ends, order))
    ready = 0
    bucket = -1
    value = 0.0
    best = 0
    best_value = 0.0
    best_worth = 0.0
    for count in range(found):
        if count == ready:
            bucket = _next_bucket(ends, bucket, ready)
            _sort_falling(order, ready, ends[bucket])
            ready = ends[bucket]
        value += order[count]
        worth = value - rate * (costs[count + 1] - costs[0])
        if worth > best_worth:
            best, best_value, best_worth = count + 1, value, worth
    if best == 0:
        _count(gains, np.inf, 0, lengths)
        return 0, 0.0, 1.0
    _count(gains, order[best - 1], best, lengths)
    return best, best_value, 1.0 + best_worth / gains.shape[0]
