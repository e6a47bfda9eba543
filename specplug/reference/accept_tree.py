"""Acceptance of draft trees: slow twin of :mod:`specplug.kernels.accept_tree`.

Trees as in :mod:`specplug.reference.topology`: ``tokens`` and ``parents`` int32 ``[B, N]``,
``lengths`` int32 ``[B]``. The target has ``N + 1`` positions: position 0 stands after the last
committed token, position ``j + 1`` after node ``j``. The children of a node are judged in the
order of their index. Every function writes ``emitted`` (int32 ``[B, N + 1]``), the kept tokens
from the root on and then one of the target's own, and ``path`` (int32 ``[B, N]``), the kept nodes;
both are padded with ``-1``. Coin ``j < N`` judges node ``j``, coin ``N`` draws the last token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.reference.accept import first_maximum
from specplug.reference.draw import draw, residual_mass, total
from specplug.types import ROOT, SEPARATOR, IntArray, ProbArray, TokenArray


def accept_tree_greedy(
    target_scores: ProbArray,
    tokens: TokenArray,
    parents: IntArray,
    lengths: IntArray,
    emitted: TokenArray,
    path: IntArray,
) -> None:
    """Follow the target's first maximum down the tree; of siblings with the same token, the first is followed."""
    for row, length in enumerate(lengths.tolist()):
        kept: list[int] = []
        while True:
            node = kept[-1] if kept else ROOT
            choice = first_maximum(target_scores[row, node + 1])
            children = _children(parents[row], length, node)
            matching = [child for child in children if tokens[row, child] == choice]
            if not matching:
                break
            kept.append(matching[0])
        _emit(row, kept, choice, tokens, emitted, path)


def accept_tree_one_hot(
    target_probs: ProbArray,
    tokens: TokenArray,
    parents: IntArray,
    lengths: IntArray,
    uniforms: ProbArray,
    emitted: TokenArray,
    path: IntArray,
) -> None:
    """Multi-candidate rejection for nodes that are a function of the past.

    The rule of SpecInfer (Miao et al. 2023, arXiv:2305.09781) with one-hot laws.
    A child is kept with its share of the mass that its rejected elder siblings left; a rejected
    child's mass is taken away. Where no child is kept, the last token is drawn from the mass that
    is left. A token that siblings repeat has no mass the second time. Where rounding leaves no
    mass at all, the last token is drawn from the target.
    """
    for row, length in enumerate(lengths.tolist()):
        kept: list[int] = []
        while True:
            node = kept[-1] if kept else ROOT
            left = target_probs[row, node + 1].copy()
            chosen = None
            for child in _children(parents[row], length, node):
                token = tokens[row, child]
                if uniforms[row, child] * total(left) < left[token]:
                    chosen = child
                    break
                left[token] = 0.0
            if chosen is None:
                break
            kept.append(chosen)
        choice = _draw_left(left, target_probs[row, node + 1], uniforms[row, -1])
        _emit(row, kept, choice, tokens, emitted, path)


def accept_tree_sampled(
    target_probs: ProbArray,
    draft_probs: ProbArray,
    tokens: TokenArray,
    parents: IntArray,
    lengths: IntArray,
    uniforms: ProbArray,
    emitted: TokenArray,
    path: IntArray,
) -> None:
    """Recursive rejection for drawn nodes (Jeon et al. 2024, arXiv:2402.14160; with replacement it is SpecInfer's).

    ``draft_probs`` (float64 ``[B, N, V]``) is the law that each node was drawn from *given its
    elder siblings*: drawn without replacement, that is the model's law without their tokens. With
    ``left`` the target's law at first, a child ``x`` is kept if ``coin * draft(x) < left(x)``;
    else ``left`` becomes ``max(0, left - draft)``, normalised. Where no child is kept, the last
    token is drawn from ``left``. Where rounding leaves no mass, ``left`` is the target's law again.
    """
    for row, length in enumerate(lengths.tolist()):
        kept: list[int] = []
        while True:
            node = kept[-1] if kept else ROOT
            target = target_probs[row, node + 1]
            left = target * (1.0 / total(target))
            chosen = None
            for child in _children(parents[row], length, node):
                token = tokens[row, child]
                law = draft_probs[row, child]
                scale = 1.0 / total(law)
                if uniforms[row, child] * (law[token] * scale) < left[token]:
                    chosen = child
                    break
                mass = residual_mass(left, law, 1.0, scale)
                if mass > 0.0:
                    left = np.maximum(0.0, left - law * scale) * (1.0 / mass)
                else:
                    left = target * (1.0 / total(target))
            if chosen is None:
                break
            kept.append(chosen)
        _emit(row, kept, draw(left, uniforms[row, -1]), tokens, emitted, path)


def _children(parents: IntArray, length: int, node: int) -> list[int]:
    return [child for child in range(length) if parents[child] == node]


def _draw_left(left: NDArray[np.float64], target: NDArray[np.float64], coin: float) -> int:
    choice = draw(left, coin)
    return choice if choice >= 0 else draw(target, coin)


def _emit(
    row: int,
    kept: list[int],
    choice: int,
    tokens: TokenArray,
    emitted: TokenArray,
    path: IntArray,
) -> None:
    emitted[row] = SEPARATOR
    path[row] = SEPARATOR
    path[row, : len(kept)] = kept
    emitted[row, : len(kept)] = tokens[row, kept]
    emitted[row, len(kept)] = choice
