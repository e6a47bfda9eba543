"""Sampling transformations on logits, in place; the rules stand in :mod:`specplug.reference.sampling`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import kernel
from specplug.kernels.accept import first_maximum
from specplug.kernels.draw import total


@kernel
def _weigh(line: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
    """Probabilities relative to the most likely token, which has 1."""
    best = line[first_maximum(line)]
    for token in range(line.shape[0]):
        weights[token] = math.exp(line[token] - best)


@kernel
def softmax(scores: NDArray[np.float64], probs: NDArray[np.float64]) -> None:
    """The distribution of each row."""
    for row in range(scores.shape[0]):
        _weigh(scores[row], probs[row])
        whole = total(probs[row])
        for token in range(probs.shape[1]):
            probs[row, token] /= whole


@kernel
def apply_temperature(scores: NDArray[np.float64], temperature: NDArray[np.float64]) -> None:
    """Divide by the temperature; 0 leaves only the first maximum."""
    for row in range(scores.shape[0]):
        value = temperature[row]
        if value == 0.0:
            best = first_maximum(scores[row])
            for token in range(scores.shape[1]):
                if token != best:
                    scores[row, token] = -np.inf
        elif value != 1.0:
            for token in range(scores.shape[1]):
                scores[row, token] /= value


@kernel
def keep_top_k(scores: NDArray[np.float64], top_k: NDArray[np.int32]) -> None:
    """Forbid what scores below the k-th best."""
    vocab_size = scores.shape[1]
    for row in range(scores.shape[0]):
        k = top_k[row]
        if 0 < k < vocab_size:
            bound = np.partition(scores[row], vocab_size - k)[vocab_size - k]
            for token in range(vocab_size):
                if scores[row, token] < bound:
                    scores[row, token] = -np.inf


@kernel
def _nucleus(
    weights: NDArray[np.float64], candidates: NDArray[np.int64], bound: float
) -> tuple[float, int]:
    """The last token that is kept of ``candidates``, as its weight and id; the weight is -1 if all of them are too few.

    Tokens rank by falling weight, ties by rising id; a stable sort of candidates in order of their
    ids gives both.
    """
    before = 0.0
    for index in np.argsort(-weights[candidates], kind="mergesort"):
        token = candidates[index]
        before += weights[token]
        if before >= bound:
            return weights[token], token
    return -1.0, -1


@kernel
def keep_top_p(scores: NDArray[np.float64], top_p: NDArray[np.float64]) -> None:
    """Keep the fewest most likely tokens whose mass reaches the bound."""
    vocab_size = scores.shape[1]
    weights = np.empty(vocab_size, np.float64)
    # Nearly always a few hundred tokens hold the mass, and sorting the others costs most of the
    # time.
    few = max(1, min(512, vocab_size // 4))
    for row in range(scores.shape[0]):
        if top_p[row] >= 1.0:
            continue
        _weigh(scores[row], weights)
        bound = top_p[row] * total(weights)
        least = np.partition(weights, vocab_size - few)[vocab_size - few]
        weight, last = _nucleus(weights, np.flatnonzero(weights >= least), bound)
        if weight < 0.0:
            weight, last = _nucleus(weights, np.arange(vocab_size), bound)
        for token in range(vocab_size):
            if weights[token] < weight or (weights[token] == weight and token > last):
                scores[row, token] = -np.inf


@kernel
def keep_min_p(scores: NDArray[np.float64], min_p: NDArray[np.float64]) -> None:
    """Forbid what is less likely than the bound times the most likely token."""
    weights = np.empty(scores.shape[1], np.float64)
    for row in range(scores.shape[0]):
        if min_p[row] > 0.0:
            _weigh(scores[row], weights)
            for token in range(scores.shape[1]):
                if weights[token] < min_p[row]:
                    scores[row, token] = -np.inf
