"""Acceptance of sampled chains; layout and rules stand in :mod:`specplug.reference.accept_sampled`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import kernel
from specplug.kernels.accept import emit
from specplug.kernels.draw import draw, draw_residual, residual_mass, total


@kernel
def _last_token(
    target_probs: NDArray[np.float64],
    draft_probs: NDArray[np.float64],
    kept: int,
    length: int,
    weight: float,
    coin: float,
) -> int:
    """Of one row: from the residual after ``kept`` drafts, or from the target after all of them."""
    target = target_probs[kept]
    choice = -1
    if kept < length:
        draft = draft_probs[kept]
        choice = draw_residual(target, draft, weight / total(target), 1.0 / total(draft), coin)
    if choice < 0:
        choice = draw(target, coin)
    return choice


@kernel
def accept_sampled(
    target_probs: NDArray[np.float64],
    draft_probs: NDArray[np.float64],
    tokens: NDArray[np.int32],
    lengths: NDArray[np.int32],
    uniforms: NDArray[np.float64],
    accepted: NDArray[np.int32],
    emitted: NDArray[np.int32],
) -> None:
    """Keep each draft with the probability min(1, target / draft)."""
    for row in range(lengths.shape[0]):
        kept = 0
        while kept < lengths[row]:
            token = tokens[row, kept]
            target = target_probs[row, kept, token] * (1.0 / total(target_probs[row, kept]))
            draft = draft_probs[row, kept, token] * (1.0 / total(draft_probs[row, kept]))
            if not uniforms[row, kept] * draft < target:
                break
            kept += 1
        coin = uniforms[row, uniforms.shape[1] - 1]
        choice = _last_token(target_probs[row], draft_probs[row], kept, lengths[row], 1.0, coin)
        emit(row, kept, choice, tokens, accepted, emitted)


@kernel
def accept_block(
    target_probs: NDArray[np.float64],
    draft_probs: NDArray[np.float64],
    tokens: NDArray[np.int32],
    lengths: NDArray[np.int32],
    uniforms: NDArray[np.float64],
    accepted: NDArray[np.int32],
    emitted: NDArray[np.int32],
) -> None:
    """Keep the longest prefix whose coin agrees, judged jointly."""
    for row in range(lengths.shape[0]):
        length = lengths[row]
        kept, kept_weight, weight = 0, 1.0, 1.0
        for position in range(length):
            token = tokens[row, position]
            target = target_probs[row, position, token] * (1.0 / total(target_probs[row, position]))
            draft = draft_probs[row, position, token] * (1.0 / total(draft_probs[row, position]))
            weight = min(1.0, weight * (target / draft))
            chance = weight
            if position + 1 < length:
                following = target_probs[row, position + 1]
                drafted = draft_probs[row, position + 1]
                scales = weight / total(following), 1.0 / total(drafted)
                mass = residual_mass(following, drafted, scales[0], scales[1])
                rest = mass + (1.0 - weight)
                chance = mass / rest if rest > 0.0 else 1.0
            if uniforms[row, position] < chance:
                kept, kept_weight = position + 1, weight
        coin = uniforms[row, uniforms.shape[1] - 1]
        choice = _last_token(target_probs[row], draft_probs[row], kept, length, kept_weight, coin)
        emit(row, kept, choice, tokens, accepted, emitted)
