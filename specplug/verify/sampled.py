"""Verification of draft chains that were drawn at random from known laws.

The law of losslessness for these: whether position ``j`` is drafted at all may depend on the past,
on drafts before ``j`` and on the law that draft ``j`` is drawn from, but never on the token that
came out. Layout as in :mod:`specplug.verify.chain`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from specplug.errors import InvalidDistributionError
from specplug.kernels.accept_sampled import accept_block, accept_sampled
from specplug.types import IntArray, ProbArray, TokenArray
from specplug.verify.chain import sampled_inputs
from specplug.verify.checks import distributions_of
from specplug.verify.verdict import Verdict, blank_verdict


def reject_sampled(
    target_probs: Any, draft_probs: Any, tokens: Any, lengths: Any, uniforms: Any
) -> Verdict:
    """Keep draft ``x`` with probability ``min(1, target(x) / draft(x))``, else draw from ``max(0, target - draft)``.

    Speculative sampling: Leviathan et al. 2023 (arXiv:2211.17192), Chen et al. 2023
    (arXiv:2302.01318). O(B * K * V).

    Args:
        target_probs: float64 or float32 ``[B, K + 1, V]``, the target's law after all sampling
            transformations.
        draft_probs: float64 or float32 ``[B, K, V]``, the law that each draft was drawn from.
        tokens: integers ``[B, K]``, the drafts.
        lengths: integers ``[B]``, drafts per row.
        uniforms: floats ``[B, K + 1]`` in ``[0, 1)``, fresh and independent of those that drew the
            drafts; coin ``j < K`` judges draft ``j``, coin ``K`` draws the row's last token.

    Raises:
        InvalidDistributionError, InvalidRequestError: malformed input, with position and value.
    """
    return _verify(accept_sampled, target_probs, draft_probs, tokens, lengths, uniforms)


def verify_block(
    target_probs: Any, draft_probs: Any, tokens: Any, lengths: Any, uniforms: Any
) -> Verdict:
    """Judge the draft as a whole: the same law of the output, and never fewer accepted drafts on average.

    Block verification: Sun et al. 2024 (arXiv:2403.10444). Arguments and errors as for
    :func:`reject_sampled`.
    """
    return _verify(accept_block, target_probs, draft_probs, tokens, lengths, uniforms)


def refuse_impossible(draft_probs: ProbArray, tokens: TokenArray, lengths: IntArray) -> None:
    """Raise unless every draft could have been drawn from its law."""
    used = np.arange(tokens.shape[1]) < lengths[:, None]
    safe = np.where(used, tokens, 0)
    chances = np.take_along_axis(draft_probs, safe[:, :, None], axis=2)[:, :, 0]
    bad = np.argwhere(used & (chances == 0.0))
    if len(bad):
        row, position = bad[0].tolist()
        raise InvalidDistributionError(
            f"draft_probs[{row}, {position}, {tokens[row, position]}] is 0, but "
            f"tokens[{row}, {position}] is that very token; "
            "pass the law that the draft was drawn from, after its own sampling transformations"
        )


def _verify(
    kernel: Callable[..., None],
    target_probs: Any,
    draft_probs: Any,
    tokens: Any,
    lengths: Any,
    uniforms: Any,
) -> Verdict:
    probs, drafts, counts, coins = sampled_inputs(target_probs, tokens, lengths, uniforms)
    used = np.arange(drafts.shape[1]) < counts[:, None]
    laws = distributions_of("draft_probs", draft_probs, used, "positions (drafts)")
    if laws.shape[2] != probs.shape[2]:
        raise InvalidDistributionError(
            f"draft_probs has {laws.shape[2]} tokens and target_probs {probs.shape[2]}; both need the same vocabulary"
        )
    refuse_impossible(laws, drafts, counts)
    verdict = blank_verdict(*drafts.shape)
    kernel(probs, laws, drafts, counts, coins, verdict.accepted, verdict.tokens)
    return verdict
