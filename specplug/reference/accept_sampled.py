"""Acceptance of chains whose tokens were drawn: slow twin of :mod:`specplug.kernels.accept_sampled`.

Layout as in :mod:`specplug.reference.accept`, and ``draft_probs`` (float64 ``[B, K, V]``), where
position ``j`` is the law that draft ``j`` was drawn from. Both laws are normalised by their own
sums. Coin ``j < K`` judges draft ``j``, coin ``K`` draws the last token. Where rounding leaves no
residual mass although a draft was rejected (both laws are equal, but for their last bits), the
last token is drawn from the target itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.reference.accept import emit
from specplug.reference.draw import draw, draw_residual, residual_mass, total
from specplug.types import IntArray, ProbArray, TokenArray


def accept_sampled(
    target_probs: ProbArray,
    draft_probs: ProbArray,
    tokens: TokenArray,
    lengths: IntArray,
    uniforms: ProbArray,
    accepted: IntArray,
    emitted: TokenArray,
) -> None:
    """Speculative sampling (Leviathan et al. 2023, arXiv:2211.17192, algorithm 1; Chen et al. 2023, arXiv:2302.01318).

    Draft ``x`` is kept if ``coin * draft(x) < target(x)``, which has the probability ``min(1,
    target(x) / draft(x))``. After the first rejection the token comes from ``max(0, target -
    draft)``.
    """
    for row, length in enumerate(lengths.tolist()):
        kept = 0
        while kept < length:
            token = tokens[row, kept]
            target, draft = _normal(target_probs[row, kept]), _normal(draft_probs[row, kept])
            if not uniforms[row, kept] * draft[token] < target[token]:
                break
            kept += 1
        choice = _last_token(row, kept, length, 1.0, target_probs, draft_probs, uniforms[row, -1])
        emit(row, kept, choice, tokens, accepted, emitted)


def accept_block(
    target_probs: ProbArray,
    draft_probs: ProbArray,
    tokens: TokenArray,
    lengths: IntArray,
    uniforms: ProbArray,
    accepted: IntArray,
    emitted: TokenArray,
) -> None:
    """Block verification (Sun et al. 2024, arXiv:2403.10444, algorithm 2).

    The same law as :func:`accept_sampled`, and on average at least as many drafts kept.

    With ``weight[0] = 1`` and ``weight[i] = min(1, weight[i - 1] * target(x_i) / draft(x_i))``,
    the draft is cut after the last ``i`` whose coin is below ``h[i]``: the whole draft has ``h =
    weight``, a proper prefix has ``mass / (mass + 1 - weight[i])`` with ``mass`` the sum of
    ``max(0, weight[i] * target - draft)`` at the next position. The last token of a proper prefix
    is drawn from that residual. Where ``mass`` is 0 and ``weight`` 1, the next draft is certain to
    be kept, and ``h`` may be anything: 1.
    """
    for row, length in enumerate(lengths.tolist()):
        kept, kept_weight, weight = 0, 1.0, 1.0
        for position in range(length):
            token = tokens[row, position]
            target = _normal(target_probs[row, position])
            draft = _normal(draft_probs[row, position])
            weight = min(1.0, weight * (target[token] / draft[token]))
            chance = weight
            if position + 1 < length:
                target = target_probs[row, position + 1]
                draft = draft_probs[row, position + 1]
                mass = residual_mass(target, draft, weight / total(target), 1.0 / total(draft))
                rest = mass + (1.0 - weight)
                chance = mass / rest if rest > 0.0 else 1.0
            if uniforms[row, position] < chance:
                kept, kept_weight = position + 1, weight
        coin = uniforms[row, -1]
        choice = _last_token(row, kept, length, kept_weight, target_probs, draft_probs, coin)
        emit(row, kept, choice, tokens, accepted, emitted)


def _last_token(
    row: int,
    kept: int,
    length: int,
    weight: float,
    target_probs: ProbArray,
    draft_probs: ProbArray,
    coin: float,
) -> int:
    target = target_probs[row, kept]
    if kept == length:
        return draw(target, coin)
    draft = draft_probs[row, kept]
    choice = draw_residual(target, draft, weight / total(target), 1.0 / total(draft), coin)
    return choice if choice >= 0 else draw(target, coin)


def _normal(law: NDArray[np.float64]) -> NDArray[np.float64]:
    return law * (1.0 / total(law))
