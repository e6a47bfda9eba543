"""The package's own verifications, made drivable for the enumeration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.testing.cells import Batch, Verifier
from specplug.testing.targets import DraftRow
from specplug.types import ProbArray
from specplug.verify import chain, sampled
from specplug.verify.verdict import Verdict


def cdf(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The coins at which an inverse-CDF draw from ``weights`` goes over to the next token; none if there is no mass."""
    sums = np.cumsum(weights)
    edges: NDArray[np.float64] = sums / sums[-1] if sums[-1] > 0.0 else np.zeros(0)
    return edges


def _no_edges(target: ProbArray, draft: DraftRow) -> list[NDArray[np.float64]]:
    return []


def _comparison_edges(target: ProbArray, draft: DraftRow) -> list[NDArray[np.float64]]:
    return [cdf(law) for law in target]


def _one_hot_edges(target: ProbArray, draft: DraftRow) -> list[NDArray[np.float64]]:
    judged, drawn = [], [cdf(target[len(draft.tokens)])]
    for position, token in enumerate(draft.tokens.tolist()):
        law = target[position]
        judged.append(np.array([law[token] / law.sum()]))
        drawn.append(cdf(np.where(np.arange(len(law)) == token, 0.0, law)))
    return [*judged, np.concatenate(drawn)]


def _sampled_edges(target: ProbArray, draft: DraftRow) -> list[NDArray[np.float64]]:
    laws = _laws(draft)
    judged, drawn = [], [cdf(target[len(draft.tokens)])]
    for position, token in enumerate(draft.tokens.tolist()):
        judged.append(np.array([target[position, token] / laws[position, token]]))
        drawn.append(cdf(np.maximum(0.0, target[position] - laws[position])))
    return [*judged, np.concatenate(drawn)]


def _block_edges(target: ProbArray, draft: DraftRow) -> list[NDArray[np.float64]]:
    laws, length = _laws(draft), len(draft.tokens)
    weights = [1.0]
    for position, token in enumerate(draft.tokens.tolist()):
        weights.append(min(1.0, weights[-1] * target[position, token] / laws[position, token]))
    judged, drawn = [], [cdf(target[length])]
    for position, weight in enumerate(weights[:-1]):
        residual = np.maximum(0.0, weight * target[position] - laws[position])
        drawn.append(cdf(residual))
        if position:
            rest = residual.sum() + 1.0 - weight
            judged.append(np.array([residual.sum() / rest if rest > 0.0 else 1.0]))
    if length:
        judged.append(np.array(weights[-1:]))
    return [*judged, np.concatenate(drawn)]


def _laws(draft: DraftRow) -> ProbArray:
    if draft.draft_probs is None:
        raise ValueError("this verifier needs sampled drafts: draft_probs is None")
    return draft.draft_probs


def _chain_with_laws(
    function: Callable[[Any, Any, Any, Any, Any], Verdict],
) -> Callable[[Batch, ProbArray], NDArray[np.int32]]:
    def run(batch: Batch, uniforms: ProbArray) -> NDArray[np.int32]:
        return function(
            batch.target, batch.draft_probs, batch.tokens, batch.lengths, uniforms
        ).tokens

    return run


def _chain(
    function: Callable[[Any, Any, Any, Any], Verdict],
) -> Callable[[Batch, ProbArray], NDArray[np.int32]]:
    def run(batch: Batch, uniforms: ProbArray) -> NDArray[np.int32]:
        return function(batch.target, batch.tokens, batch.lengths, uniforms).tokens

    return run


def _greedy(batch: Batch, uniforms: ProbArray) -> NDArray[np.int32]:
    return chain.greedy(batch.target, batch.tokens, batch.lengths).tokens


def one_per_position(drafts: int) -> int:
    """Coins of the chain verifications: one for each target position."""
    return drafts + 1


def no_coins(drafts: int) -> int:
    """Coins of the greedy verifications."""
    return 0


GREEDY = Verifier("greedy", _greedy, _no_edges, no_coins, greedy=True)
COMPARE = Verifier(
    "sample_and_compare", _chain(chain.sample_and_compare), _comparison_edges, one_per_position
)
ONE_HOT = Verifier("reject_one_hot", _chain(chain.reject_one_hot), _one_hot_edges, one_per_position)

SAMPLED = Verifier(
    "reject_sampled", _chain_with_laws(sampled.reject_sampled), _sampled_edges, one_per_position
)
BLOCK = Verifier(
    "verify_block", _chain_with_laws(sampled.verify_block), _block_edges, one_per_position
)

#: Everything that can verify a chain of deterministic drafts, by name.
DETERMINISTIC = {verifier.name: verifier for verifier in (COMPARE, ONE_HOT)}

#: Everything that can verify a chain of drawn drafts, by name.
SAMPLED_CHAINS = {verifier.name: verifier for verifier in (SAMPLED, BLOCK)}
