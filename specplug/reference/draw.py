"""Inverse-CDF draws from unnormalised weights: slow twin of :mod:`specplug.kernels.draw`.

Rules shared by every function here, and by the kernels:

* weights need not sum to 1: the coin is stretched to their own sum, taken in the order of the
token ids; * the token drawn is the first whose running sum *exceeds* the stretched coin, so a
token of weight zero is never drawn, not even by the coin 0;
* if rounding leaves no such token, it is the last one of positive weight; if there is none at all,
it is ``-1``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def total(weights: NDArray[np.float64]) -> float:
    """Sum of ``weights`` (float64 ``[V]``) from left to right, each step rounded once."""
    running = 0.0
    for weight in weights.tolist():
        running += weight
    return running


def draw(weights: NDArray[np.float64], coin: float) -> int:
    """A token from ``weights`` (float64 ``[V]``, not negative) by the uniform ``coin`` in ``[0, 1)``."""
    return _first_above(weights.tolist(), coin)


def draw_without(weights: NDArray[np.float64], banned: int, coin: float) -> int:
    """As :func:`draw`, with the weight of the token ``banned`` set to zero."""
    return _first_above([0.0 if t == banned else w for t, w in enumerate(weights.tolist())], coin)


def draw_residual(
    target: NDArray[np.float64],
    draft: NDArray[np.float64],
    target_scale: float,
    draft_scale: float,
    coin: float,
) -> int:
    """As :func:`draw`, from ``max(0, target * target_scale - draft * draft_scale)``, both float64 ``[V]``."""
    pairs = zip(target.tolist(), draft.tolist(), strict=True)
    return _first_above([max(0.0, p * target_scale - q * draft_scale) for p, q in pairs], coin)


def residual_mass(
    target: NDArray[np.float64],
    draft: NDArray[np.float64],
    target_scale: float,
    draft_scale: float,
) -> float:
    """The sum of ``max(0, target * target_scale - draft * draft_scale)``, from left to right."""
    running = 0.0
    for p, q in zip(target.tolist(), draft.tolist(), strict=True):
        running += max(0.0, p * target_scale - q * draft_scale)
    return running


def _first_above(weights: Sequence[float], coin: float) -> int:
    stretched = coin * total(np.array(weights, np.float64))
    running = 0.0
    last = -1
    for token, weight in enumerate(weights):
        running += weight
        if weight > 0.0:
            last = token
            if running > stretched:
                return token
    return last
