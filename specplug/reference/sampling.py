"""Sampling transformations on logits, in place: slow twin of :mod:`specplug.kernels.sampling`.

Every function changes ``scores`` (float64 ``[R, V]``, logits; ``-inf`` forbids a token), one
parameter per row. A parameter value that switches the transformation off leaves the row untouched,
bit for bit.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specplug.types import IntArray, ProbArray


def softmax(scores: ProbArray, probs: ProbArray) -> None:
    """Write the distribution of each row of ``scores`` into ``probs`` (float64 ``[R, V]``).

    The maximum is subtracted first; the sum runs from left to right. A row needs one finite score.
    """
    for row in range(len(scores)):
        weights = _weights(scores[row])
        whole = _sum(weights)
        probs[row] = [weight / whole for weight in weights]


def apply_temperature(scores: ProbArray, temperature: NDArray[np.float64]) -> None:
    """Divide by ``temperature`` (float64 ``[R]``); 0 leaves only the first maximum, which is greedy decoding."""
    for row, value in enumerate(temperature.tolist()):
        if value == 0.0:
            line = scores[row].tolist()
            best = line.index(max(line))
            scores[row] = [s if t == best else -math.inf for t, s in enumerate(line)]
        elif value != 1.0:
            scores[row] = [s / value for s in scores[row].tolist()]


def keep_top_k(scores: ProbArray, top_k: IntArray) -> None:
    """Forbid what scores below the ``top_k``-th best (int32 ``[R]``; 0 is off). Ties with that score all stay."""
    for row, k in enumerate(top_k.tolist()):
        line = scores[row].tolist()
        if 0 < k < len(line):
            bound = sorted(line, reverse=True)[k - 1]
            scores[row] = [s if s >= bound else -math.inf for s in line]


def keep_top_p(scores: ProbArray, top_p: NDArray[np.float64]) -> None:
    """Keep the fewest most likely tokens whose mass reaches ``top_p`` (float64 ``[R]``; 1 is off), one at least.

    Tokens are taken by falling probability, ties by rising id; one is kept while the mass before
    it is below ``top_p`` times the whole. A tie at the edge is thus cut at an id, not kept whole.
    """
    for row, p in enumerate(top_p.tolist()):
        if p >= 1.0:
            continue
        weights = _weights(scores[row])
        bound = p * _sum(weights)
        before = 0.0
        for token in sorted(range(len(weights)), key=lambda t: (-weights[t], t)):
            if before >= bound:
                scores[row, token] = -math.inf
            before += weights[token]


def keep_min_p(scores: ProbArray, min_p: NDArray[np.float64]) -> None:
    """Forbid what is less likely than ``min_p`` (float64 ``[R]``; 0 is off) times the most likely token."""
    for row, p in enumerate(min_p.tolist()):
        if p > 0.0:
            weights = _weights(scores[row])
            pairs = zip(scores[row].tolist(), weights, strict=True)
            scores[row] = [s if w >= p else -math.inf for s, w in pairs]


def _weights(line: NDArray[np.float64]) -> list[float]:
    """Probabilities relative to the most likely token, which has 1."""
    values = line.tolist()
    best = max(values)
    return [math.exp(s - best) for s in values]


def _sum(weights: list[float]) -> float:
    # Not sum(): newer Pythons compensate its rounding, and then twins differ in the last bit.
    running = 0.0
    for weight in weights:
        running += weight
    return running
