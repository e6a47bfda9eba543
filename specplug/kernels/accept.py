"""Acceptance of deterministic chains; layout and rules stand in :mod:`specplug.reference.accept`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import kernel
from specplug.kernels.draw import draw, draw_without, total


@kernel
def first_maximum(scores: NDArray[np.float64]) -> int:
    """The smallest token id among those of the highest score."""
    best = 0
    for token in range(1, scores.shape[0]):
        if scores[token] > scores[best]:
            best = token
    return best


@kernel
def emit(
    row: int,
    kept: int,
    choice: int,
    tokens: NDArray[np.int32],
    accepted: NDArray[np.int32],
    emitted: NDArray[np.int32],
) -> None:
    """Write one row: its kept drafts, one token, then -1."""
    accepted[row] = kept
    for position in range(emitted.shape[1]):
        emitted[row, position] = tokens[row, position] if position < kept else -1
    emitted[row, kept] = choice


@kernel
def accept_greedy(
    target_scores: NDArray[np.float64],
    tokens: NDArray[np.int32],
    lengths: NDArray[np.int32],
    accepted: NDArray[np.int32],
    emitted: NDArray[np.int32],
) -> None:
    """Keep drafts while they equal the target's first maximum."""
    for row in range(lengths.shape[0]):
        kept = 0
        choice = first_maximum(target_scores[row, 0])
        while kept < lengths[row] and choice == tokens[row, kept]:
            kept += 1
            choice = first_maximum(target_scores[row, kept])
        emit(row, kept, choice, tokens, accepted, emitted)


@kernel
def accept_by_comparison(
    target_probs: NDArray[np.float64],
    tokens: NDArray[np.int32],
    lengths: NDArray[np.int32],
    uniforms: NDArray[np.float64],
    accepted: NDArray[np.int32],
    emitted: NDArray[np.int32],
) -> None:
    """Keep drafts while they equal a sample of the target."""
    for row in range(lengths.shape[0]):
        kept = 0
        choice = draw(target_probs[row, 0], uniforms[row, 0])
        while kept < lengths[row] and choice == tokens[row, kept]:
            kept += 1
            choice = draw(target_probs[row, kept], uniforms[row, kept])
        emit(row, kept, choice, tokens, accepted, emitted)


@kernel
def accept_one_hot(
    target_probs: NDArray[np.float64],
    tokens: NDArray[np.int32],
    lengths: NDArray[np.int32],
    uniforms: NDArray[np.float64],
    accepted: NDArray[np.int32],
    emitted: NDArray[np.int32],
) -> None:
    """Keep drafts with the target's probability of them; else draw another token."""
    for row in range(lengths.shape[0]):
        kept = 0
        while kept < lengths[row]:
            weights = target_probs[row, kept]
            if not uniforms[row, kept] * total(weights) < weights[tokens[row, kept]]:
                break
            kept += 1
        coin = uniforms[row, uniforms.shape[1] - 1]
        if kept == lengths[row]:
            choice = draw(target_probs[row, kept], coin)
        else:
            choice = draw_without(target_probs[row, kept], tokens[row, kept], coin)
            if choice < 0:
                choice = tokens[row, kept]
        emit(row, kept, choice, tokens, accepted, emitted)
