"""How the drafts of a step are spent: pure functions of chances and costs.

Throughput: maximise goodput, the expected tokens per expected second (Liu et al. 2024, "Optimizing speculative
decoding for serving large language models using goodput", arXiv 2406.14066), over the number of draft tokens of each
row. For a given total the best choice is the tokens of greatest survival, since survival never rises along a draft;
so one sort and a look at every total gives the exact optimum for *any* cost that depends on the total, convex,
concave or in steps.

Latency: minimise the mean expected time per output token of the requests, ``cost * mean(1 / expected tokens)``. The
gain of a row's next token in that mean never rises either, so the same holds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.types import IntArray

FloatArray = NDArray[np.float64]

#: One gain in so many is sampled; no power of two, lest all of one depth be.
_SAMPLE = 7


class Plan(NamedTuple):
    """What was decided for one step.

    Attributes:
        lengths: int32 ``[B]``, draft tokens of each row.
        total: their sum.
        expected: tokens that the drafts are expected to add.
        ratio: expected goodput (or speed) against no drafts.
    """

    lengths: IntArray
    total: int
    expected: float
    ratio: float


def gains_for_throughput(survival: FloatArray) -> FloatArray:
    """What each token adds to the number of tokens of the step: its survival."""
    return survival


def gains_for_latency(survival: FloatArray) -> FloatArray:
    """What each token takes from the sum over rows of ``1 / expected tokens``: float64 ``[B, K]``."""
    tokens = 1.0 + np.cumsum(survival, axis=1)
    before = np.empty_like(tokens)
    before[:, 0] = 1.0
    before[:, 1:] = tokens[:, :-1]
    # They fall by themselves, except for the rounding of tiny ones.
    return np.minimum.accumulate(1.0 / before - 1.0 / tokens, axis=1)


def spend(
    survival: FloatArray,
    costs: FloatArray,
    *,
    margin: float = 0.0,
    latency: bool = False,
    most_cost: float = np.inf,
    likely: int | None = None,
) -> Plan:
    """The best lengths for one step.

    Args:
        survival: float64 ``[B, K]``, not rising along rows; 0 behind the end of a row's draft.
        costs: float64 ``[N + 1]``, cost of the step with 0, 1, ... N draft tokens; N caps the total.
        margin: how much better than no drafts the plan must be, as a fraction, lest nothing be drafted.
        latency: minimise the mean time per output token instead of maximising tokens per time.
        most_cost: steps that cost more are not considered, except without drafts.
        likely: about how many tokens the plan will have; the plan is the same, it may only be found sooner.

    Complexity: O(M + N log N) for M positions and at most N draft tokens.
    """
    rows, most = len(survival), len(costs) - 1
    gains = gains_for_latency(survival) if latency else survival
    few = most if likely is None else min(most, likely + likely // 4 + 32)
    order = _greatest(gains, few)
    if len(order) == 0 or rows == 0:
        return Plan(np.zeros(rows, np.int32), 0, 0.0, 1.0)
    value = np.cumsum(order)
    ratio = _ratios(value, costs[1 : len(order) + 1], costs[0], rows, latency, most_cost)
    best = int(np.argmax(ratio))
    if few < most and len(order) == few:
        # Each further token gains no more than the last of these: can any longer plan be better?
        dreamt = value[-1] + order[-1] * np.arange(1, most - few + 1)
        hope = _ratios(dreamt, costs[few + 1 :], costs[0], rows, latency, most_cost)
        if hope.max() > max(ratio[best], 1.0 + margin):
            return spend(survival, costs, margin=margin, latency=latency, most_cost=most_cost)
    if ratio[best] < 1.0 + margin:
        return Plan(np.zeros(rows, np.int32), 0, 0.0, 1.0)
    lengths = _first(gains, order[best], best + 1)
    expected = value[best]
    if latency:
        expected = survival[np.arange(survival.shape[1]) < lengths[:, None]].sum()
    return Plan(lengths, best + 1, float(expected), float(ratio[best]))


def _ratios(
    value: FloatArray,
    spent: FloatArray,
    plain: float,
    rows: int,
    latency: bool,
    most_cost: float,
) -> FloatArray:
    """Expected goodput (or speed) against no drafts, of steps with these sums of gains and these costs."""
    if latency:
        ratio = (rows * plain) / (spent * np.maximum(rows - value, 1e-12))
    else:
        ratio = (rows + value) * (plain / (rows * spent))
    if np.isfinite(most_cost):
        ratio[spent > most_cost] = 0.0
    return ratio


def spend_at_rate(survival: FloatArray, costs: FloatArray, rate: float) -> Plan:
    """The best lengths where part of the step is work that brings no token now, such as prefill.

    A ratio would see a long step with few tokens, in which anything pays. But that work is owed anyway, whatever is
    drafted; what a draft token really competes with is time at ``rate``, in which plain or drafted steps without such
    work bring tokens. So ``expected - rate * (cost - cost without drafts)`` is maximised (one step of Dinkelbach,
    "On nonlinear fractional programming", Management Science 1967, with the rate of the steps that follow).

    Args:
        survival, costs: as for :func:`spend`, the other work included in ``costs``.
        rate: tokens per unit of cost of a step without the other work.
    """
    rows = len(survival)
    order = _greatest(survival, len(costs) - 1)
    count = len(order)
    if count == 0 or rows == 0:
        return Plan(np.zeros(rows, np.int32), 0, 0.0, 1.0)
    value = np.cumsum(order)
    worth = value - rate * (costs[1 : count + 1] - costs[0])
    best = int(np.argmax(worth))
    if worth[best] <= 0.0:
        return Plan(np.zeros(rows, np.int32), 0, 0.0, 1.0)
    lengths = _first(survival, order[best], best + 1)
    return Plan(lengths, best + 1, float(value[best]), 1.0 + float(worth[best]) / rows)


def spend_uniform(
    survival: FloatArray, costs: FloatArray, actions: tuple[int, ...], *, margin: float = 0.0
) -> Plan:
    """The best *common* length out of ``actions``, for engines that verify the same number for every row.

    Args:
        survival: float64 ``[B, K]``.
        costs: float64 ``[N + 1]``, as for :func:`spend`; rows are padded, so a length costs it for every row.
        actions: lengths, 0 among them or not; 0 is always allowed.
        margin: as for :func:`spend`.
    """
    rows, width = survival.shape
    best = Plan(np.zeros(rows, np.int32), 0, 0.0, 1.0)
    for length in sorted(set(actions)):
        total = length * rows
        if not 0 < length <= width or total >= len(costs) or rows == 0:
            continue
        expected = float(survival[:, :length].sum())
        ratio = (rows + expected) / rows * costs[0] / costs[total]
        if ratio > max(best.ratio, 1.0 + margin):
            best = Plan(np.full(rows, length, np.int32), total, expected, float(ratio))
    return best


def _greatest(gains: FloatArray, most: int) -> FloatArray:
    """The ``most`` greatest gains above 0, falling: float64 ``[N]``.

    Where few of many are wanted, a sorted sample says how great they are at least, and the others need not be sorted.
    """
    flat = gains.ravel()
    wanted = most + most // 3 + 64
    if flat.size > 2 * wanted:
        sample = np.sort(flat[::_SAMPLE])
        # Some more than are wanted, by the sample; should these be too few, all are sorted.
        kept = flat[flat >= sample[-(wanted // _SAMPLE) - 1]]
        if len(kept) >= most:
            flat = kept
    return np.sort(flat[flat > 0.0])[::-1][:most]


def _first(gains: FloatArray, least: float, total: int) -> IntArray:
    """Per row how many of the ``total`` greatest gains it holds; ties go to earlier rows."""
    lengths = _leading(gains > least)
    missing = total - int(lengths.sum())
    if missing:
        equal = _leading(gains >= least) - lengths
        lengths += np.minimum(equal, np.maximum(0, missing - (np.cumsum(equal) - equal)))
    return lengths.astype(np.int32)


def _leading(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Per row the number of true values before the first false one, of which all true values are."""
    found: NDArray[np.int64] = mask.argmin(axis=1)
    found[mask[:, -1]] = mask.shape[1]
    return found
