"""The arithmetic of the cost model for one step; the rules stand in :mod:`specplug.reference.step_time`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import lean_kernel

Floats = NDArray[np.float64]


@lean_kernel
def expect(
    tokens: float, inner: Floats, theta: Floats, covariance: Floats, x: Floats
) -> tuple[float, float]:
    """See the twin: completes the features ``x``; returns what is expected and the variance of that."""
    x[0] = 1.0
    x[1] = tokens - 1.0
    for k in range(inner.shape[0]):
        x[2 + k] = max(0.0, tokens - inner[k])
    expected = 0.0
    variance = 0.0
    for i in range(x.shape[0]):
        if x[i] == 0.0:
            continue
        expected += x[i] * theta[i]
        part = 0.0
        for j in range(x.shape[0]):
            part += covariance[i, j] * x[j]
        variance += x[i] * part
    return expected, variance


@lean_kernel
def absorb(a: Floats, b: Floats, x: Floats, y: float, weight: float, memory: float) -> None:
    """See the twin: the discounted sums take in one step."""
    for i in range(x.shape[0]):
        for j in range(x.shape[0]):
            a[i, j] = memory * a[i, j] + weight * (x[i] * x[j])
        b[i] = memory * b[i] + weight * y * x[i]
