"""Layer skipping by hidden states; the rules stand in :mod:`specplug.reference.layers`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import kernel


@kernel
def cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Of the angle between two vectors."""
    product = 0.0
    squares_one = 0.0
    squares_other = 0.0
    for i in range(one.shape[0]):
        product += one[i] * other[i]
        squares_one += one[i] * one[i]
        squares_other += other[i] * other[i]
    lengths = math.sqrt(squares_one) * math.sqrt(squares_other)
    return product / lengths if lengths > 0.0 else 0.0


@kernel
def advance(
    ran: NDArray[np.float64],
    before: NDArray[np.float64],
    count: int,
    target: NDArray[np.float64],
    may_skip: bool,
    after: NDArray[np.float64],
    skipped: NDArray[np.uint8],
) -> int:
    """One layer of the dynamic programme; returns the number of states after it."""
    width = after.shape[0]
    following = min(count + 1, width) if may_skip else count
    for skips in range(following):
        runs = skips < count
        similarity = cosine(ran[skips], target) if runs else 0.0
        skip = False
        if may_skip and skips > 0:
            skip = not runs or cosine(before[skips - 1], target) > similarity
        skipped[skips] = 1 if skip else 0
        source = before[skips - 1] if skip else ran[skips]
        for i in range(source.shape[0]):
            after[skips, i] = source[i]
    return following


@kernel
def backtrack(choices: NDArray[np.uint8], skips: int, mask: NDArray[np.uint8]) -> None:
    """Marks the layers that the path to ``skips`` leaves out."""
    left = skips
    for layer in range(choices.shape[0] - 1, -1, -1):
        mask[layer] = choices[layer, left]
        if mask[layer]:
            left -= 1


@kernel
def confidence(outputs: NDArray[np.float64]) -> float:
    """One minus the mean normalised entropy of the rows."""
    rows, size = outputs.shape
    if rows == 0 or size < 2:
        return 0.0
    entropies = 0.0
    for row in range(rows):
        top = outputs[row, 0]
        for i in range(1, size):
            top = max(top, outputs[row, i])
        mass = 0.0
        moment = 0.0
        for i in range(size):
            shifted = outputs[row, i] - top
            weight = math.exp(shifted)
            mass += weight
            moment += weight * shifted
        entropies += math.log(mass) - moment / mass
    found: float = 1.0 - entropies / rows / math.log(size)
    return found


@kernel
def below_neighbours(
    confidences: NDArray[np.float64],
    half_windows: NDArray[np.int64],
    spread: float,
    mask: NDArray[np.uint8],
) -> int:
    """Marks the layers that are less confident than those around them; returns how many."""
    layers = confidences.shape[0]
    marked = 0
    for layer in range(layers):
        first = max(0, layer - half_windows[layer])
        last = min(layers - 1, layer + half_windows[layer])
        number = last - first
        total = 0.0
        for other in range(first, last + 1):
            if other != layer:
                total += confidences[other]
        mask[layer] = 0
        if number > 0:
            mean = total / number
            squares = 0.0
            for other in range(first, last + 1):
                if other != layer:
                    squares += (confidences[other] - mean) * (confidences[other] - mean)
            if confidences[layer] < mean - spread * math.sqrt(squares / number):
                mask[layer] = 1
                marked += 1
    return marked
