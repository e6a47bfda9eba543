"""Inverse-CDF draws from unnormalised weights; the rules stand in :mod:`specplug.reference.draw`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import kernel


@kernel
def total(weights: NDArray[np.float64]) -> float:
    """Sum from left to right."""
    running = 0.0
    for token in range(weights.shape[0]):
        running += weights[token]
    return running


@kernel
def draw(weights: NDArray[np.float64], coin: float) -> int:
    """A token from ``weights`` by ``coin``."""
    stretched = coin * total(weights)
    running = 0.0
    last = -1
    for token in range(weights.shape[0]):
        weight = weights[token]
        running += weight
        if weight > 0.0:
            last = token
            if running > stretched:
                break
    return last


@kernel
def draw_without(weights: NDArray[np.float64], banned: int, coin: float) -> int:
    """A token other than ``banned``; -1 if no other has weight."""
    mass = 0.0
    for token in range(weights.shape[0]):
        if token != banned:
            mass += weights[token]
    stretched = coin * mass
    running = 0.0
    last = -1
    for token in range(weights.shape[0]):
        weight = weights[token]
        if token != banned and weight > 0.0:
            running += weight
            last = token
            if running > stretched:
                break
    return last


@kernel
def residual_mass(
    target: NDArray[np.float64],
    draft: NDArray[np.float64],
    target_scale: float,
    draft_scale: float,
) -> float:
    """Sum of the positive part of the difference."""
    running = 0.0
    for token in range(target.shape[0]):
        running += max(0.0, target[token] * target_scale - draft[token] * draft_scale)
    return running


@kernel
def draw_residual(
    target: NDArray[np.float64],
    draft: NDArray[np.float64],
    target_scale: float,
    draft_scale: float,
    coin: float,
) -> int:
    """A token from the positive part of the difference; -1 if there is none."""
    stretched = coin * residual_mass(target, draft, target_scale, draft_scale)
    running = 0.0
    last = -1
    for token in range(target.shape[0]):
        weight = target[token] * target_scale - draft[token] * draft_scale
        if weight > 0.0:
            running += weight
            last = token
            if running > stretched:
                break
    return last
