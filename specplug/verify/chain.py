"""Verification of deterministic draft chains: greedy, and two equivalent ways of sampling.

``B`` rows, ``K`` draft positions, ``V`` tokens. Position ``j`` of the target stands after ``j``
drafts, so a row with ``n`` drafts needs ``n + 1`` positions; what lies behind is not looked at.
Costs O(B * K * V).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels.accept import accept_by_comparison, accept_greedy, accept_one_hot
from specplug.types import PROB_DTYPE, IntArray, ProbArray, TokenArray
from specplug.verify.checks import (
    distributions_of,
    drafts_of,
    scores_of,
    uniforms_of,
    vocabulary_of,
)
from specplug.verify.verdict import Verdict, blank_verdict


def greedy(target_scores: Any, tokens: Any, lengths: Any) -> Verdict:
    """Keep drafts while they equal the target's most likely token.

    Ties go to the smallest token id, as in plain greedy decoding with ``argmax``.

    Args:
        target_scores: float64 or float32 ``[B, K + 1, V]``, logits or probabilities; ``-inf``
            forbids a token.
        tokens: integers ``[B, K]``, the drafts.
        lengths: integers ``[B]``, drafts per row; 0 is plain decoding.

    Raises:
        InvalidDistributionError, InvalidRequestError: malformed input, with position and value.
    """
    drafts, counts = drafts_of(tokens, lengths, vocabulary_of("target_scores", target_scores))
    checked = scores_of("target_scores", target_scores, used_positions(drafts, counts))
    scores = np.ascontiguousarray(checked, PROB_DTYPE)
    verdict = blank_verdict(*drafts.shape)
    accept_greedy(scores, drafts, counts, verdict.accepted, verdict.tokens)
    return verdict


def sample_and_compare(target_probs: Any, tokens: Any, lengths: Any, uniforms: Any) -> Verdict:
    """Sample each position from the target and keep drafts while they equal the sample.

    With the same coin for a position, the output is the very output of plain sampling.

    Args:
        target_probs: float64 or float32 ``[B, K + 1, V]``, the target's law after all sampling
            transformations.
        tokens: integers ``[B, K]``, drafts that are a function of the past (never drawn at random
            from the target).
        lengths: integers ``[B]``, drafts per row.
        uniforms: floats ``[B, K + 1]`` in ``[0, 1)``, fresh and independent; coin ``j`` draws
            position ``j``.

    Raises:
        InvalidDistributionError, InvalidRequestError: malformed input, with position and value.
    """
    probs, drafts, counts, coins = sampled_inputs(target_probs, tokens, lengths, uniforms)
    verdict = blank_verdict(*drafts.shape)
    accept_by_comparison(probs, drafts, counts, coins, verdict.accepted, verdict.tokens)
    return verdict


def reject_one_hot(target_probs: Any, tokens: Any, lengths: Any, uniforms: Any) -> Verdict:
    """Keep draft ``x`` with probability ``target(x)``, else draw from the target without ``x``.

    The rejection sampling of Leviathan et al. 2023 (arXiv:2211.17192) for a draft distribution
    that is one-hot. Equal in law to :func:`sample_and_compare`, but the coins mean something else.

    Args:
        target_probs: float64 or float32 ``[B, K + 1, V]``, the target's law after all sampling
            transformations.
        tokens: integers ``[B, K]``, drafts that are a function of the past.
        lengths: integers ``[B]``, drafts per row.
        uniforms: floats ``[B, K + 1]`` in ``[0, 1)``, fresh and independent; coin ``j < K`` judges
            draft ``j``, coin ``K`` draws the row's last token.

    Raises:
        InvalidDistributionError, InvalidRequestError: malformed input, with position and value.
    """
    probs, drafts, counts, coins = sampled_inputs(target_probs, tokens, lengths, uniforms)
    verdict = blank_verdict(*drafts.shape)
    accept_one_hot(probs, drafts, counts, coins, verdict.accepted, verdict.tokens)
    return verdict


def used_positions(tokens: TokenArray, lengths: IntArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Bool ``[B, K + 1]``: the target positions that a verification may read."""
    return np.arange(tokens.shape[1] + 1) <= lengths[:, None]


def sampled_inputs(
    target_probs: Any, tokens: Any, lengths: Any, uniforms: Any
) -> tuple[ProbArray, TokenArray, IntArray, ProbArray]:
    """The checked and normalised arguments that every sampling verification of a chain has."""
    drafts, counts = drafts_of(tokens, lengths, vocabulary_of("target_probs", target_probs))
    probs = distributions_of(
        "target_probs", target_probs, used_positions(drafts, counts), "positions (drafts + 1)"
    )
    coins = uniforms_of(uniforms, drafts.shape[0], drafts.shape[1] + 1)
    return probs, drafts, counts, coins
