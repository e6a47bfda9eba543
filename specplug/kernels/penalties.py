"""Penalties at every draft position; the rules stand in :mod:`specplug.reference.penalties`.

Only tokens that occurred are touched: a position costs O(length of its past), not O(V). ``counts``
is cleared on the way, so that one array of ``V`` counters serves all positions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import kernel


@kernel
def _count(
    counts: NDArray[np.int32],
    past: NDArray[np.int32],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    node: int,
    distinct: NDArray[np.int32],
) -> int:
    """Count the tokens before one position; returns how many ``distinct`` ones were written."""
    found = 0
    for token in past:
        if 0 <= token < counts.shape[0]:
            if counts[token] == 0:
                distinct[found] = token
                found += 1
            counts[token] += 1
    while node >= 0:
        token = tokens[node]
        if 0 <= token < counts.shape[0]:
            if counts[token] == 0:
                distinct[found] = token
                found += 1
            counts[token] += 1
        node = parents[node]
    return found


@kernel
def apply_repetition(
    scores: NDArray[np.float64],
    flat: NDArray[np.int32],
    offsets: NDArray[np.int64],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    lengths: NDArray[np.int32],
    penalty: NDArray[np.float64],
) -> None:
    """Divide positive scores of tokens that occurred, multiply the others."""
    counts = np.zeros(scores.shape[2], np.int32)
    distinct = np.empty(scores.shape[2], np.int32)
    for row in range(lengths.shape[0]):
        past = flat[offsets[row] : offsets[row + 1]]
        for position in range(lengths[row] + 1):
            line = scores[row, position]
            for index in range(
                _count(counts, past, tokens[row], parents[row], position - 1, distinct)
            ):
                token = distinct[index]
                counts[token] = 0
                if line[token] > 0.0:
                    line[token] /= penalty[row]
                else:
                    line[token] *= penalty[row]


@kernel
def apply_frequency(
    scores: NDArray[np.float64],
    flat: NDArray[np.int32],
    offsets: NDArray[np.int64],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    lengths: NDArray[np.int32],
    penalty: NDArray[np.float64],
) -> None:
    """Subtract the penalty times the number of occurrences."""
    counts = np.zeros(scores.shape[2], np.int32)
    distinct = np.empty(scores.shape[2], np.int32)
    for row in range(lengths.shape[0]):
        past = flat[offsets[row] : offsets[row + 1]]
        for position in range(lengths[row] + 1):
            line = scores[row, position]
            for index in range(
                _count(counts, past, tokens[row], parents[row], position - 1, distinct)
            ):
                token = distinct[index]
                line[token] -= penalty[row] * counts[token]
                counts[token] = 0


@kernel
def apply_presence(
    scores: NDArray[np.float64],
    flat: NDArray[np.int32],
    offsets: NDArray[np.int64],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    lengths: NDArray[np.int32],
    penalty: NDArray[np.float64],
) -> None:
    """Subtract the penalty once from every token that occurred."""
    counts = np.zeros(scores.shape[2], np.int32)
    distinct = np.empty(scores.shape[2], np.int32)
    for row in range(lengths.shape[0]):
        past = flat[offsets[row] : offsets[row + 1]]
        for position in range(lengths[row] + 1):
            line = scores[row, position]
            for index in range(
                _count(counts, past, tokens[row], parents[row], position - 1, distinct)
            ):
                token = distinct[index]
                counts[token] = 0
                line[token] -= penalty[row]
