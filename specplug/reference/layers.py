"""Layer skipping by hidden states: slow twin of :mod:`specplug.kernels.layers`.

All sums run from left to right. ``d`` is the hidden size, ``L`` the number of layers, ``J`` one more than the most
layers that may be skipped.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Of the angle between two vectors (float64 ``[d]``); 0 if one of them is zero."""
    a, b = one.tolist(), other.tolist()
    product = _sum([x * y for x, y in zip(a, b, strict=True)])
    lengths = math.sqrt(_sum([x * x for x in a])) * math.sqrt(_sum([y * y for y in b]))
    return product / lengths if lengths > 0.0 else 0.0


def advance(
    ran: NDArray[np.float64],
    before: NDArray[np.float64],
    count: int,
    target: NDArray[np.float64],
    may_skip: bool,
    after: NDArray[np.float64],
    skipped: NDArray[np.uint8],
) -> int:
    """One layer of the dynamic programme of CLaSp (Chen et al. 2025, arXiv:2505.24196).

    State ``j`` has ``j`` layers skipped so far. After this layer it is either what the layer made of state ``j`` or,
    if the layer is skipped, state ``j - 1`` as it was: whichever is closer (by cosine) to what the whole model has
    here. On a tie the layer runs.

    Args:
        ran: float64 ``[J, d]``, what the layer makes of the states; rows from ``count`` on mean nothing.
        before: float64 ``[J, d]``, the states.
        count: how many there are.
        target: float64 ``[d]``, the hidden state of the whole model after this layer.
        may_skip: whether the layer may be skipped at all.
        after: float64 ``[J, d]``, is written.
        skipped: uint8 ``[J]``, is written: whether the state comes from skipping the layer.

    Returns:
        The number of states after the layer: one more, up to ``J``, if it may be skipped.
    """
    following = min(count + 1, len(after)) if may_skip else count
    for skips in range(following):
        options = []
        if skips < count:
            options.append((cosine(ran[skips], target), 0, ran[skips]))
        if may_skip and skips > 0:
            options.append((cosine(before[skips - 1], target), 1, before[skips - 1]))
        _, skipped[skips], state = max(options, key=lambda option: (option[0], -option[1]))
        after[skips] = state
    return following


def backtrack(choices: NDArray[np.uint8], skips: int, mask: NDArray[np.uint8]) -> None:
    """Mark in ``mask`` (uint8 ``[L]``) the layers that were skipped on the way to state ``skips``.

    ``choices`` is uint8 ``[L, J]``: what :func:`advance` wrote to ``skipped``, layer by layer.
    """
    for layer in reversed(range(len(choices))):
        mask[layer] = choices[layer, skips]
        skips -= int(mask[layer])


def confidence(outputs: NDArray[np.float64]) -> float:
    """How peaked the outputs of a sublayer are (ConfLayers, Amer et al. 2026, arXiv:2604.14612).

    One minus the mean entropy of the softmax over each row of ``outputs`` (float64 ``[n, d]``), as a share of the
    largest possible entropy. Between 0 and 1; 0 without rows or with ``d`` below 2.
    """
    rows, size = outputs.shape
    if rows == 0 or size < 2:
        return 0.0
    entropies = 0.0
    for row in outputs.tolist():
        shifted = [value - max(row) for value in row]
        weights = [math.exp(value) for value in shifted]
        mass = _sum(weights)
        moment = _sum([w * s for w, s in zip(weights, shifted, strict=True)])
        entropies += math.log(mass) - moment / mass
    found: float = 1.0 - entropies / rows / math.log(size)
    return found


def below_neighbours(
    confidences: NDArray[np.float64],
    half_windows: NDArray[np.int64],
    spread: float,
    mask: NDArray[np.uint8],
) -> int:
    """Mark the layers whose confidence lies under the threshold of their neighbourhood; returns how many.

    The threshold is the mean minus ``spread`` standard deviations over the layers at most ``half_windows[i]`` away,
    the layer itself left out. A layer without neighbours is never marked.

    Args:
        confidences: float64 ``[L]``.
        half_windows: int64 ``[L]``.
        spread: larger marks fewer layers; may be negative.
        mask: uint8 ``[L]``, is written.
    """
    values = confidences.tolist()
    for layer, value in enumerate(values):
        reach = int(half_windows[layer])
        near = [v for i, v in enumerate(values) if i != layer and abs(i - layer) <= reach]
        mask[layer] = 0
        if near:
            mean = _sum(near) / len(near)
            deviation = math.sqrt(_sum([(v - mean) * (v - mean) for v in near]) / len(near))
            mask[layer] = value < mean - spread * deviation
    return int(mask.sum())


def _sum(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total
