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

from specplug.kernels import spending as kernel
from specplug.kernels.forms import as_kernel_array
from specplug.types import IntArray

FloatArray = NDArray[np.float64]


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


def spend(
    survival: FloatArray,
    costs: FloatArray,
    *,
    margin: float = 0.0,
    latency: bool = False,
    most_cost: float = np.inf,
) -> Plan:
    """The best lengths for one step.

    Args:
        survival: float64 ``[B, K]``, not rising along rows; 0 behind the end of a row's draft.
        costs: float64 ``[N + 1]``, cost of the step with 0, 1, ... N draft tokens; N caps the total.
        margin: how much better than no drafts the plan must be, as a fraction, lest nothing be drafted.
        latency: minimise the mean time per output token instead of maximising tokens per time.
        most_cost: steps that cost more are not considered, except without drafts.

    Complexity: O(M + N log N) for M positions and at most N draft tokens.
    """
    survival = as_kernel_array(survival, np.float64)
    gains = survival
    if latency:
        gains = np.empty_like(survival)
        kernel.latency_gains(survival, gains)
    lengths, order, ends = _room(gains)
    total, expected, ratio = kernel.spend(
        gains, as_kernel_array(costs, np.float64), margin, latency, most_cost, lengths, order, ends
    )
    if latency and total:
        expected = float(survival[np.arange(survival.shape[1]) < lengths[:, None]].sum())
    return Plan(lengths, total, expected, ratio)


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
    survival = as_kernel_array(survival, np.float64)
    lengths, order, ends = _room(survival)
    found = kernel.spend_at_rate(
        survival, as_kernel_array(costs, np.float64), rate, lengths, order, ends
    )
    return Plan(lengths, *found)


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


def _room(gains: FloatArray) -> tuple[IntArray, FloatArray, NDArray[np.int64]]:
    """For the lengths, and for what the kernels need."""
    return (
        np.empty(len(gains), np.int32),
        np.empty(gains.size),
        np.zeros(kernel.BUCKETS, np.int64),
    )
