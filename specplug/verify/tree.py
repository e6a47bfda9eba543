"""Verification of draft trees, and the arrays with which a target scores all nodes in one pass.

``B`` rows, ``N`` nodes, ``V`` tokens. ``parents[i, j]`` is the index of a node before ``j``, or
``-1`` for a child of the last committed token. The target has ``N + 1`` positions: 0 after the
last committed token, ``j + 1`` after node ``j``. Siblings are judged in the order of their index.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.errors import InvalidDistributionError, InvalidRequestError
from specplug.kernels.accept_tree import (
    accept_tree_greedy,
    accept_tree_one_hot,
    accept_tree_sampled,
)
from specplug.kernels.topology import ancestor_mask, link_children, node_depths
from specplug.types import LENGTH_DTYPE, PROB_DTYPE, ROOT, TOKEN_DTYPE, IntArray, TokenArray
from specplug.verify.chain import sampled_inputs, used_positions
from specplug.verify.checks import (
    distributions_of,
    drafts_of,
    integers_of,
    lengths_of,
    scores_of,
    vocabulary_of,
)
from specplug.verify.sampled import refuse_impossible


class TreeVerdict(NamedTuple):
    """The tokens that a step emits, for every row, and the nodes they stand in.

    Attributes:
        accepted: int32 ``[B]``, how many nodes were kept.
        tokens: int32 ``[B, N + 1]``: the kept tokens from the root on, one of the target's own,
            then ``-1``.
        path: int32 ``[B, N]``: the kept nodes from the root on, then ``-1``; where a host finds
            their keys and values.
    """

    accepted: IntArray
    tokens: TokenArray
    path: IntArray

    def row(self, index: int) -> list[int]:
        """The tokens that row ``index`` emits, without padding."""
        emitted: list[int] = self.tokens[index, : self.accepted[index] + 1].tolist()
        return emitted


class TreeLayout(NamedTuple):
    """How a host lays out the nodes of draft trees; the root comes first where it has a place.

    Attributes:
        depths: int32 ``[B, N]``, distance from the root: 1 for its children, 0 for what is no node.
            The position of a node is that of the last committed token plus its depth.
        mask: bool ``[B, N + 1, N + 1]``: what the root and each node attend to among themselves.
        first_child: int32 ``[B, N + 1]``, -1 for none.
        next_sibling: int32 ``[B, N]``, -1 for none.
    """

    depths: IntArray
    mask: NDArray[np.bool_]
    first_child: IntArray
    next_sibling: IntArray


def lay_out(parents: Any, lengths: Any) -> TreeLayout:
    """The arrays that describe draft trees to a target. O(B * N ** 2), all of it the mask.

    Args:
        parents: integers ``[B, N]``.
        lengths: integers ``[B]``, nodes per row.

    Raises:
        InvalidRequestError: a parent that is not a node before its child, wrong shapes or types.
    """
    shape = np.shape(parents)
    if len(shape) != 2:
        raise InvalidRequestError(f"parents must have the shape [rows, nodes], got {shape}")
    counts = lengths_of(lengths, *shape)
    nodes = parents_of(parents, counts, shape)
    rows, width = shape
    layout = TreeLayout(
        np.empty((rows, width), LENGTH_DTYPE),
        np.empty((rows, width + 1, width + 1), np.bool_),
        np.empty((rows, width + 1), LENGTH_DTYPE),
        np.empty((rows, width), LENGTH_DTYPE),
    )
    node_depths(nodes, counts, layout.depths)
    ancestor_mask(nodes, counts, layout.mask)
    link_children(nodes, counts, layout.first_child, layout.next_sibling)
    return layout


def greedy_tree(target_scores: Any, tokens: Any, parents: Any, lengths: Any) -> TreeVerdict:
    """Follow the target's most likely token down the tree; ties go to the smallest token id.

    Args:
        target_scores: float64 or float32 ``[B, N + 1, V]``, logits or probabilities.
        tokens: integers ``[B, N]``.
        parents: integers ``[B, N]``.
        lengths: integers ``[B]``, nodes per row.

    Raises:
        InvalidDistributionError, InvalidRequestError: malformed input, with position and value.
    """
    drafts, counts = drafts_of(tokens, lengths, vocabulary_of("target_scores", target_scores))
    nodes = parents_of(parents, counts, drafts.shape)
    checked = scores_of("target_scores", target_scores, used_positions(drafts, counts))
    scores = np.ascontiguousarray(checked, PROB_DTYPE)
    emitted, path = _blank(drafts)
    accept_tree_greedy(scores, drafts, nodes, counts, emitted, path)
    return _verdict(emitted, path)


def reject_tree_one_hot(
    target_probs: Any, tokens: Any, parents: Any, lengths: Any, uniforms: Any
) -> TreeVerdict:
    """Keep a child with its share of the mass that its rejected elder siblings left.

    Multi-candidate rejection for nodes that are a function of the past: Miao et al. 2023
    (SpecInfer, arXiv:2305.09781) with one-hot draft laws. Equal in law to sampling from the target
    and following the sample while it is in the tree.

    Args:
        target_probs: float64 or float32 ``[B, N + 1, V]``, the target's law after all sampling
            transformations.
        tokens: integers ``[B, N]``.
        parents: integers ``[B, N]``.
        lengths: integers ``[B]``, nodes per row.
        uniforms: floats ``[B, N + 1]`` in ``[0, 1)``, fresh and independent; coin ``j < N`` judges
            node ``j``, coin ``N`` draws the row's last token.

    Raises:
        InvalidDistributionError, InvalidRequestError: malformed input, with position and value.
    """
    probs, drafts, counts, coins = sampled_inputs(target_probs, tokens, lengths, uniforms)
    nodes = parents_of(parents, counts, drafts.shape)
    emitted, path = _blank(drafts)
    accept_tree_one_hot(probs, drafts, nodes, counts, coins, emitted, path)
    return _verdict(emitted, path)


def reject_tree_sampled(
    target_probs: Any, draft_probs: Any, tokens: Any, parents: Any, lengths: Any, uniforms: Any
) -> TreeVerdict:
    """Keep a child ``x`` with probability ``min(1, left(x) / draft(x))``, ``left`` being what its elder siblings left.

    Recursive rejection sampling: Jeon et al. 2024 (arXiv:2402.14160) for children drawn without
    replacement, Miao et al. 2023 (arXiv:2305.09781) for independent ones. Both are the same rule
    once ``draft_probs`` says what each node was really drawn from.

    Args:
        draft_probs: float64 or float32 ``[B, N, V]``, the law that each node was drawn from given
            its elder siblings (without replacement: the model's law without their tokens,
            renormalised).
        target_probs, tokens, parents, lengths, uniforms: as for :func:`reject_tree_one_hot`.
            Siblings must stand in the order in which they were drawn; whether a node is drafted may
            depend on what was drawn before it, never on its own token.

    Raises:
        InvalidDistributionError, InvalidRequestError: malformed input, with position and value.
    """
    probs, drafts, counts, coins = sampled_inputs(target_probs, tokens, lengths, uniforms)
    nodes = parents_of(parents, counts, drafts.shape)
    used = np.arange(drafts.shape[1]) < counts[:, None]
    laws = distributions_of("draft_probs", draft_probs, used, "nodes")
    if laws.shape[2] != probs.shape[2]:
        raise InvalidDistributionError(
            f"draft_probs has {laws.shape[2]} tokens and target_probs {probs.shape[2]}; both need the same vocabulary"
        )
    refuse_impossible(laws, drafts, counts)
    emitted, path = _blank(drafts)
    accept_tree_sampled(probs, laws, drafts, nodes, counts, coins, emitted, path)
    return _verdict(emitted, path)


def parents_of(parents: Any, lengths: IntArray, shape: tuple[int, ...]) -> IntArray:
    """``parents`` as int32 of ``shape``, each before its child wherever ``lengths`` says that there is a node."""
    array = integers_of("parents", parents, shape)
    places = np.arange(shape[1])
    bad = np.argwhere((places < lengths[:, None]) & ((array < ROOT) | (array >= places)))
    if len(bad):
        row, node = bad[0].tolist()
        raise InvalidRequestError(
            f"parents[{row}, {node}] is {array[row, node]}, expected -1 (the last committed token) or a node before "
            f"{node}; order the nodes so that parents come first"
        )
    return np.ascontiguousarray(array, LENGTH_DTYPE)


def _blank(tokens: TokenArray) -> tuple[TokenArray, IntArray]:
    rows, width = tokens.shape
    return np.empty((rows, width + 1), TOKEN_DTYPE), np.empty((rows, width), LENGTH_DTYPE)


def _verdict(emitted: TokenArray, path: IntArray) -> TreeVerdict:
    return TreeVerdict((path >= 0).sum(axis=1, dtype=LENGTH_DTYPE), emitted, path)
