"""Penalties at every draft position; the rules stand in :mod:`specplug.reference.penalties`.

Only tokens that occurred are touched: a position costs O(length of its past), not O(V). ``counts``
is cleared on the way, so that one array of ``V`` counters serves all positions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import kernel

_REPETITION, _FREQUENCY, _PRESENCE = 0, 1, 2


@kernel
def _note(counts: NDArray[np.int32], token: int, distinct: NDArray[np.int32], found: int) -> int:
    """Count one token of the past; returns how many ``distinct`` ones there are now."""
    if not 0 <= token < counts.shape[0]:
        return found
    if counts[token] == 0:
        distinct[found] = token
        found += 1
    counts[token] += 1
    return found


@kernel
def _penalise(
    scores: NDArray[np.float64],
    flat: NDArray[np.int32],
    offsets: NDArray[np.int64],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    lengths: NDArray[np.int32],
    penalty: NDArray[np.float64],
    rule: int,
) -> None:
    """Go through the distinct tokens before every position, and change their scores by one rule."""
    counts = np.zeros(scores.shape[2], np.int32)
    distinct = np.empty(scores.shape[2], np.int32)
    for row in range(lengths.shape[0]):
        for position in range(lengths[row] + 1):
            found = 0
            for token in flat[offsets[row] : offsets[row + 1]]:
                found = _note(counts, token, distinct, found)
            node = position - 1
            while node >= 0:
                found = _note(counts, tokens[row, node], distinct, found)
                node = parents[row, node]
            line = scores[row, position]
            for token in distinct[:found]:
                if rule == _FREQUENCY:
                    line[token] -= penalty[row] * counts[token]
                elif rule == _PRESENCE:
                    line[token] -= penalty[row]
                elif line[token] > 0.0:
                    line[token] /= penalty[row]
                else:
                    line[token] *= penalty[row]
                counts[token] = 0


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
    _penalise(scores, flat, offsets, tokens, parents, lengths, penalty, _REPETITION)


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
    _penalise(scores, flat, offsets, tokens, parents, lengths, penalty, _FREQUENCY)


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
    _penalise(scores, flat, offsets, tokens, parents, lengths, penalty, _PRESENCE)
