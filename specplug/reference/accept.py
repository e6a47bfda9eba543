"""Acceptance of chains that are deterministic: slow twin of :mod:`specplug.kernels.accept`.

Layout: ``B`` rows, ``K`` draft positions, ``V`` tokens. Position ``j`` of the target stands
*after* ``j`` draft tokens, so a row with ``lengths[i]`` drafts has ``lengths[i] + 1`` positions in
use; what lies behind is never read. Every function writes ``accepted`` (int32 ``[B]``) and
``emitted`` (int32 ``[B, K + 1]``): the accepted drafts, then one token of the target's own, then
``-1``. An empty draft is plain decoding: nothing accepted, one token emitted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.reference.draw import draw, draw_without, total
from specplug.types import SEPARATOR, IntArray, ProbArray, TokenArray


def first_maximum(scores: NDArray[np.float64]) -> int:
    """The smallest token id among those of the highest score (float64 ``[V]``): the tie rule of greedy decoding."""
    values: list[float] = scores.tolist()
    return values.index(max(values))


def accept_greedy(
    target_scores: ProbArray,
    tokens: TokenArray,
    lengths: IntArray,
    accepted: IntArray,
    emitted: TokenArray,
) -> None:
    """Keep drafts while they equal the target's first maximum; emit the first maximum that differs.

    Args:
        target_scores: float64 ``[B, K + 1, V]``, logits or probabilities; ``-inf`` is allowed.
        tokens: int32 ``[B, K]``.
        lengths: int32 ``[B]``.
        accepted: int32 ``[B]``, written.
        emitted: int32 ``[B, K + 1]``, written.
    """
    for row, length in enumerate(lengths.tolist()):
        kept = 0
        while True:
            choice = first_maximum(target_scores[row, kept])
            if kept == length or choice != tokens[row, kept]:
                break
            kept += 1
        emit(row, kept, choice, tokens, accepted, emitted)


def accept_by_comparison(
    target_probs: ProbArray,
    tokens: TokenArray,
    lengths: IntArray,
    uniforms: ProbArray,
    accepted: IntArray,
    emitted: TokenArray,
) -> None:
    """Sample every position from the target; keep drafts while they equal the sample, emit the one that differs.

    The sample is plain sampling's own, so the output is not only equal in law: with the same coin
    per position it is the same output.

    Args:
        target_probs: float64 ``[B, K + 1, V]``, weights that each position's own sum normalises.
        tokens: int32 ``[B, K]``.
        lengths: int32 ``[B]``.
        uniforms: float64 ``[B, K + 1]`` in ``[0, 1)``; coin ``j`` draws position ``j``.
        accepted: int32 ``[B]``, written.
        emitted: int32 ``[B, K + 1]``, written.
    """
    for row, length in enumerate(lengths.tolist()):
        kept = 0
        while True:
            choice = draw(target_probs[row, kept], uniforms[row, kept])
            if kept == length or choice != tokens[row, kept]:
                break
            kept += 1
        emit(row, kept, choice, tokens, accepted, emitted)


def accept_one_hot(
    target_probs: ProbArray,
    tokens: TokenArray,
    lengths: IntArray,
    uniforms: ProbArray,
    accepted: IntArray,
    emitted: TokenArray,
) -> None:
    """Rejection sampling of deterministic drafts (Leviathan et al. 2023 with a one-hot draft distribution).

    Draft ``j`` is kept if ``coin * sum < weight``: strictly, so weight zero is never kept, and a
    draft that holds all mass always is. After the first rejection the token comes from the target
    without the rejected draft; after the last acceptance, from the target itself. A rejected draft
    leaves mass behind, except for rounding: then ``draw`` says ``-1`` and the draft itself, which
    is the whole distribution, is emitted as the target's token.

    Args:
        target_probs: float64 ``[B, K + 1, V]``, weights that each position's own sum normalises.
        tokens: int32 ``[B, K]``.
        lengths: int32 ``[B]``.
        uniforms: float64 ``[B, K + 1]`` in ``[0, 1)``; coin ``j < K`` judges draft ``j``, coin
            ``K`` draws the last token.
        accepted: int32 ``[B]``, written.
        emitted: int32 ``[B, K + 1]``, written.
    """
    for row, length in enumerate(lengths.tolist()):
        kept = 0
        while kept < length:
            weights = target_probs[row, kept]
            if not uniforms[row, kept] * total(weights) < weights[tokens[row, kept]]:
                break
            kept += 1
        coin = uniforms[row, -1]
        if kept == length:
            choice = draw(target_probs[row, kept], coin)
        else:
            choice = draw_without(target_probs[row, kept], tokens[row, kept], coin)
            if choice < 0:
                choice = int(tokens[row, kept])
        emit(row, kept, choice, tokens, accepted, emitted)


def emit(
    row: int, kept: int, choice: int, tokens: TokenArray, accepted: IntArray, emitted: TokenArray
) -> None:
    """Write one row of ``accepted`` and ``emitted``: its ``kept`` drafts, then the token ``choice``, then -1."""
    accepted[row] = kept
    emitted[row] = SEPARATOR
    emitted[row, :kept] = tokens[row, :kept]
    emitted[row, kept] = choice
