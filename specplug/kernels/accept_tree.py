"""Acceptance of draft trees; layout and rules stand in :mod:`specplug.reference.accept_tree`.

Parents come before their children, so one pass over the nodes of a row walks down the tree: a node
is looked at when its parent is the node kept last, and the siblings behind a kept node are passed
over because their parent is not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import kernel
from specplug.kernels.accept import first_maximum
from specplug.kernels.draw import draw, residual_mass, total


@kernel
def _clear(row: int, emitted: NDArray[np.int32], path: NDArray[np.int32]) -> None:
    for position in range(emitted.shape[1]):
        emitted[row, position] = -1
    for position in range(path.shape[1]):
        path[row, position] = -1


@kernel
def accept_tree_greedy(
    target_scores: NDArray[np.float64],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    lengths: NDArray[np.int32],
    emitted: NDArray[np.int32],
    path: NDArray[np.int32],
) -> None:
    """Follow the target's first maximum down the tree."""
    for row in range(lengths.shape[0]):
        _clear(row, emitted, path)
        kept, last = 0, -1
        choice = first_maximum(target_scores[row, 0])
        for node in range(lengths[row]):
            if parents[row, node] == last and tokens[row, node] == choice:
                emitted[row, kept] = choice
                path[row, kept] = node
                kept, last = kept + 1, node
                choice = first_maximum(target_scores[row, node + 1])
        emitted[row, kept] = choice


@kernel
def accept_tree_one_hot(
    target_probs: NDArray[np.float64],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    lengths: NDArray[np.int32],
    uniforms: NDArray[np.float64],
    emitted: NDArray[np.int32],
    path: NDArray[np.int32],
) -> None:
    """Keep children with their share of the mass that is left."""
    left = np.empty(target_probs.shape[2], np.float64)
    for row in range(lengths.shape[0]):
        _clear(row, emitted, path)
        kept, last = 0, -1
        left[:] = target_probs[row, 0]
        for node in range(lengths[row]):
            if parents[row, node] != last:
                continue
            token = tokens[row, node]
            if uniforms[row, node] * total(left) < left[token]:
                emitted[row, kept] = token
                path[row, kept] = node
                kept, last = kept + 1, node
                left[:] = target_probs[row, node + 1]
            else:
                left[token] = 0.0
        coin = uniforms[row, uniforms.shape[1] - 1]
        choice = draw(left, coin)
        if choice < 0:
            choice = draw(target_probs[row, last + 1], coin)
        emitted[row, kept] = choice


@kernel
def _normalise(law: NDArray[np.float64], left: NDArray[np.float64]) -> None:
    scale = 1.0 / total(law)
    for token in range(law.shape[0]):
        left[token] = law[token] * scale


@kernel
def _take_away(
    law: NDArray[np.float64], target: NDArray[np.float64], left: NDArray[np.float64]
) -> None:
    """What is left after a rejection of a token drawn from ``law``."""
    scale = 1.0 / total(law)
    mass = residual_mass(left, law, 1.0, scale)
    if mass > 0.0:
        for token in range(law.shape[0]):
            left[token] = max(0.0, left[token] - law[token] * scale) * (1.0 / mass)
    else:
        _normalise(target, left)


@kernel
def accept_tree_sampled(
    target_probs: NDArray[np.float64],
    draft_probs: NDArray[np.float64],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    lengths: NDArray[np.int32],
    uniforms: NDArray[np.float64],
    emitted: NDArray[np.int32],
    path: NDArray[np.int32],
) -> None:
    """Keep each child with the probability min(1, left / draft)."""
    left = np.empty(target_probs.shape[2], np.float64)
    for row in range(lengths.shape[0]):
        _clear(row, emitted, path)
        kept, last = 0, -1
        _normalise(target_probs[row, 0], left)
        for node in range(lengths[row]):
            if parents[row, node] != last:
                continue
            token = tokens[row, node]
            law = draft_probs[row, node]
            if uniforms[row, node] * (law[token] * (1.0 / total(law))) < left[token]:
                emitted[row, kept] = token
                path[row, kept] = node
                kept, last = kept + 1, node
                _normalise(target_probs[row, node + 1], left)
            else:
                _take_away(law, target_probs[row, last + 1], left)
        emitted[row, kept] = draw(left, uniforms[row, uniforms.shape[1] - 1])
