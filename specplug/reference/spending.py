"""Slow twin of :mod:`specplug.kernels.spending`: all gains are sorted, and every total is looked at."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


def latency_gains(survival: Floats, gains: Floats) -> None:
    """What each token takes from the sum over rows of ``1 / expected tokens``.

    Args:
        survival: float64 ``[B, K]``.
        gains: float64 ``[B, K]``, written.
    """
    tokens = 1.0 + np.cumsum(survival, axis=1)
    before = np.ones_like(tokens)
    before[:, 1:] = tokens[:, :-1]
    # They fall by themselves, except for the rounding of tiny ones.
    gains[:] = np.minimum.accumulate(1.0 / before - 1.0 / tokens, axis=1)


def _greatest(gains: Floats, most: int) -> Floats:
    """The ``most`` greatest gains above 0, falling."""
    return np.sort(gains[gains > 0.0])[::-1][:most]


def _hand_out(gains: Floats, least: float, total: int, lengths: Ints) -> None:
    """Per row how many of the ``total`` greatest gains it holds; ties go to earlier rows."""
    lengths[:] = (gains > least).sum(axis=1)
    for row in range(len(gains)):
        equal = int((gains[row] == least).sum())
        lengths[row] += min(equal, total - int(lengths.sum()))


def spend(
    gains: Floats,
    costs: Floats,
    margin: float,
    latency: bool,
    most_cost: float,
    lengths: Ints,
    order: Floats,
    ends: NDArray[np.int64],
) -> tuple[int, float, float]:
    """The best lengths for one step; see :func:`specplug.control.plan.spend`.

    Args:
        gains: float64 ``[B, K]``, of each token, not rising along rows: its survival, or :func:`latency_gains`.
        costs, margin, latency, most_cost: as there.
        lengths: int32 ``[B]``, written.
        order, ends: room of the kernel, float64 ``[B * K]`` and int64, not used here.

    Returns:
        Draft tokens, the sum of their gains, and goodput (or speed) against no drafts.
    """
    rows = len(gains)
    lengths[:] = 0
    falling = _greatest(gains, len(costs) - 1)
    if not len(falling):
        return 0, 0.0, 1.0
    value, spent = np.cumsum(falling), costs[1 : len(falling) + 1]
    if latency:
        ratio = (rows * costs[0]) / (spent * np.maximum(rows - value, 1e-12))
    else:
        ratio = (rows + value) * (costs[0] / (rows * spent))
    ratio = np.where(spent > most_cost, 0.0, ratio)
    best = int(np.argmax(ratio))
    if ratio[best] <= 0.0 or ratio[best] < 1.0 + margin:
        return 0, 0.0, 1.0
    _hand_out(gains, falling[best], best + 1, lengths)
    return best + 1, float(value[best]), float(ratio[best])


def spend_at_rate(
    gains: Floats,
    costs: Floats,
    rate: float,
    lengths: Ints,
    order: Floats,
    ends: NDArray[np.int64],
) -> tuple[int, float, float]:
    """The best lengths beside other work; see :func:`specplug.control.plan.spend_at_rate`.

    Arguments and what is returned: as for :func:`spend`.
    """
    lengths[:] = 0
    falling = _greatest(gains, len(costs) - 1)
    if not len(falling):
        return 0, 0.0, 1.0
    value = np.cumsum(falling)
    worth = value - rate * (costs[1 : len(falling) + 1] - costs[0])
    best = int(np.argmax(worth))
    if worth[best] <= 0.0:
        return 0, 0.0, 1.0
    _hand_out(gains, falling[best], best + 1, lengths)
    return best + 1, float(value[best]), 1.0 + float(worth[best]) / len(gains)
