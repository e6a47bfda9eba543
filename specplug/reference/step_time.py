"""Slow twin of :mod:`specplug.kernels.step_time`; the mathematics stands in :mod:`specplug.control.cost`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def expect(
    tokens: float, inner: Floats, theta: Floats, covariance: Floats, x: Floats
) -> tuple[float, float]:
    """What a step is expected to cost.

    Args:
        tokens: of the step, after padding.
        inner: knots but for the first and the last.
        theta, covariance: of the weights.
        x: features; those that depend on tokens are written: 1, tokens, and how far tokens exceed each inner knot.

    Returns:
        The expectation, and the variance of it that comes from the weights.
    """
    x[0], x[1] = 1.0, tokens - 1.0
    x[2 : 2 + len(inner)] = np.maximum(0.0, tokens - inner)
    return float(x @ theta), float(x @ covariance @ x)


def absorb(a: Floats, b: Floats, x: Floats, y: float, weight: float, memory: float) -> None:
    """Discounted sums of ``weight x x'`` and ``weight y x`` take in one step."""
    a[:] = memory * a + weight * np.outer(x, x)
    b[:] = memory * b + weight * y * x
