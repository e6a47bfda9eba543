"""The package's tree verifications, made drivable for the enumeration."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.testing.cells import Batch, Verifier
from specplug.testing.targets import DraftRow
from specplug.testing.verifiers import cdf, no_coins, one_per_position
from specplug.types import ROOT, ProbArray
from specplug.verify import tree


def _edges(target: ProbArray, draft: DraftRow, laws: ProbArray) -> list[NDArray[np.float64]]:
    """One threshold per node; the cut points of what is left at every node after all its children."""
    parents = _parents(draft)
    judged = [np.zeros(0) for _ in draft.tokens]
    drawn = []
    for node in range(ROOT, len(draft.tokens)):
        left = target[node + 1]
        for child in np.flatnonzero(parents == node).tolist():
            token = draft.tokens[child]
            judged[child] = np.array([left[token] / laws[child, token]])
            rest = np.maximum(0.0, left - laws[child])
            left = rest / rest.sum() if rest.sum() > 0.0 else target[node + 1]
        drawn.append(cdf(left))
    return [*judged, np.concatenate(drawn)]


def _parents(draft: DraftRow) -> NDArray[np.int32]:
    if draft.parents is None:
        raise ValueError("this verifier needs trees: parents is None")
    return draft.parents


def _one_hot_edges(target: ProbArray, draft: DraftRow) -> list[NDArray[np.float64]]:
    return _edges(target, draft, np.eye(target.shape[1])[draft.tokens])


def _sampled_edges(target: ProbArray, draft: DraftRow) -> list[NDArray[np.float64]]:
    if draft.draft_probs is None:
        raise ValueError("this verifier needs sampled drafts: draft_probs is None")
    return _edges(target, draft, draft.draft_probs)


def _no_edges(target: ProbArray, draft: DraftRow) -> list[NDArray[np.float64]]:
    return []


def _greedy(batch: Batch, uniforms: ProbArray) -> NDArray[np.int32]:
    return tree.greedy_tree(batch.target, batch.tokens, batch.parents, batch.lengths).tokens


def _one_hot(batch: Batch, uniforms: ProbArray) -> NDArray[np.int32]:
    verdict = tree.reject_tree_one_hot(
        batch.target, batch.tokens, batch.parents, batch.lengths, uniforms
    )
    return verdict.tokens


def _sampled(batch: Batch, uniforms: ProbArray) -> NDArray[np.int32]:
    verdict = tree.reject_tree_sampled(
        batch.target, batch.draft_probs, batch.tokens, batch.parents, batch.lengths, uniforms
    )
    return verdict.tokens


GREEDY_TREE = Verifier("greedy_tree", _greedy, _no_edges, no_coins, greedy=True)
ONE_HOT_TREE = Verifier("reject_tree_one_hot", _one_hot, _one_hot_edges, one_per_position)
SAMPLED_TREE = Verifier("reject_tree_sampled", _sampled, _sampled_edges, one_per_position)
