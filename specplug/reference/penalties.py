"""Penalties at every draft position: slow twin of :mod:`specplug.kernels.penalties`.

``scores`` (float64 ``[B, K + 1, V]``) are logits, changed in place. Position 0 has the row's own
past, ``flat[offsets[i] : offsets[i + 1]]`` (int32, int64 ``[B + 1]``); position ``j + 1`` has in
addition the draft tokens from the root to node ``j``, which ``tokens`` and ``parents`` (int32
``[B, K]``) say; a chain has the parents ``-1, 0, 1, ...``. Positions behind ``lengths[i]`` (int32
``[B]``) are left alone, and so are ids outside the vocabulary. ``penalty`` is float64 ``[B]``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from specplug.types import IntArray, ProbArray, TokenArray


def apply_repetition(
    scores: ProbArray,
    flat: TokenArray,
    offsets: NDArray[np.int64],
    tokens: TokenArray,
    parents: IntArray,
    lengths: IntArray,
    penalty: NDArray[np.float64],
) -> None:
    """Divide the positive scores of tokens that occurred, multiply the others.

    Keskar et al. 2019, arXiv:1909.05858, section 4.1, with the sign handled as engines do.
    """
    for row, position, counts in _positions(scores, flat, offsets, tokens, parents, lengths):
        for token in counts:
            score, factor = scores[row, position, token], penalty[row]
            scores[row, position, token] = score / factor if score > 0.0 else score * factor


def apply_frequency(
    scores: ProbArray,
    flat: TokenArray,
    offsets: NDArray[np.int64],
    tokens: TokenArray,
    parents: IntArray,
    lengths: IntArray,
    penalty: NDArray[np.float64],
) -> None:
    """Subtract the penalty times the number of occurrences."""
    for row, position, counts in _positions(scores, flat, offsets, tokens, parents, lengths):
        for token, count in counts.items():
            scores[row, position, token] -= penalty[row] * count


def apply_presence(
    scores: ProbArray,
    flat: TokenArray,
    offsets: NDArray[np.int64],
    tokens: TokenArray,
    parents: IntArray,
    lengths: IntArray,
    penalty: NDArray[np.float64],
) -> None:
    """Subtract the penalty once from every token that occurred."""
    for row, position, counts in _positions(scores, flat, offsets, tokens, parents, lengths):
        for token in counts:
            scores[row, position, token] -= penalty[row]


def _positions(
    scores: ProbArray,
    flat: TokenArray,
    offsets: NDArray[np.int64],
    tokens: TokenArray,
    parents: IntArray,
    lengths: IntArray,
) -> Iterator[tuple[int, int, Counter[int]]]:
    """Every position in use, with how often each token of the vocabulary occurred before it."""
    for row, length in enumerate(lengths.tolist()):
        past = flat[offsets[row] : offsets[row + 1]].tolist()
        for position in range(length + 1):
            branch = []
            node = position - 1
            while node >= 0:
                branch.append(int(tokens[row, node]))
                node = int(parents[row, node])
            seen = [token for token in past + branch if 0 <= token < scores.shape[2]]
            yield row, position, Counter(seen)
