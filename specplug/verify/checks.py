"""What the wrappers refuse before a kernel runs: kernels compute blindly.

Every message names the argument, the position and the value, what was expected and what to do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.errors import InvalidDistributionError, InvalidRequestError
from specplug.types import LENGTH_DTYPE, PROB_DTYPE, TOKEN_DTYPE, IntArray, ProbArray, TokenArray

#: How far from 1 a distribution may sum, by dtype: the error of a sum over a large vocabulary,
#: with room to spare. Within it, each position is normalised by its own sum, so the law is exact
#: all the same.
SUM_TOLERANCE = {np.dtype(np.float64): 1e-9, np.dtype(np.float32): 1e-4}

_Mask = NDArray[np.bool_]


def lengths_of(lengths: Any, rows: int, width: int) -> IntArray:
    """``lengths`` as int32 ``[rows]``, each between 0 and ``width``."""
    array = integers_of("lengths", lengths, (rows,))
    bad = np.flatnonzero((array < 0) | (array > width))
    if len(bad):
        raise InvalidRequestError(
            f"lengths[{bad[0]}] is {array[bad[0]]}, but tokens holds 0 to {width} drafts per row; "
            "pass the number of drafts in that row"
        )
    return np.ascontiguousarray(array, LENGTH_DTYPE)


def drafts_of(tokens: Any, lengths: Any, vocab_size: int) -> tuple[TokenArray, IntArray]:
    """``tokens`` as int32 ``[B, K]`` with ids of the vocabulary in use, and ``lengths`` as int32 ``[B]``."""
    array = integers_of("tokens", tokens, None)
    if array.ndim != 2:
        raise InvalidRequestError(
            f"tokens must have the shape [rows, positions], got {array.shape}; "
            "a single row needs a leading axis: tokens[None]"
        )
    counts = lengths_of(lengths, *array.shape)
    used = np.arange(array.shape[1]) < counts[:, None]
    bad = np.argwhere(used & ((array < 0) | (array >= vocab_size)))
    if len(bad):
        row, position = bad[0].tolist()
        raise InvalidRequestError(
            f"tokens[{row}, {position}] is {array[row, position]}, but the target has the ids 0 to {vocab_size - 1}; "
            "cut the draft before an id outside the vocabulary"
        )
    return np.ascontiguousarray(array, TOKEN_DTYPE), counts


def distributions_of(name: str, probs: Any, used: _Mask, positions: str) -> ProbArray:
    """``probs`` as float64 ``[B, positions, V]``, each distribution in use finite, not negative, of sum 1.

    Args:
        name: what messages call it.
        probs: float64 or float32 ``[B, J, V]``.
        used: bool ``[B, J]``; positions outside it are not looked at.
        positions: what messages call ``J``.

    Raises:
        InvalidDistributionError: with the position and the value.
    """
    array = _floats(name, probs, positions)
    if array.shape[:2] != used.shape:
        raise InvalidDistributionError(
            f"{name} must have the shape [{used.shape[0]}, {used.shape[1]}, vocabulary], got {array.shape}; "
            f"it needs one distribution for each of the {positions}"
        )
    where = np.argwhere(used)
    chosen = array[where[:, 0], where[:, 1]]
    _refuse_values(name, chosen, where)
    sums = chosen.sum(axis=1, dtype=np.float64)
    off = np.flatnonzero(np.abs(sums - 1.0) > SUM_TOLERANCE[array.dtype])
    if len(off):
        row, position = where[off[0]].tolist()
        raise InvalidDistributionError(
            f"{name}[{row}, {position}] sums to {sums[off[0]]:.12g}, expected 1 within "
            f"{SUM_TOLERANCE[array.dtype]:g} ({array.dtype}); pass probabilities, not logits, and normalise them"
        )
    return np.ascontiguousarray(array, PROB_DTYPE)


def scores_of(name: str, scores: Any, used: _Mask) -> NDArray[Any]:
    """``scores``, logits or probabilities, as an array of float64 or float32 ``[B, K + 1, V]``.

    Positions in use have no NaN or ``inf``, and somewhere more than ``-inf``.
    """
    array = _floats(name, scores)
    if array.shape[:2] != used.shape:
        raise InvalidDistributionError(
            f"{name} must have the shape [{used.shape[0]}, {used.shape[1]}, vocabulary], got {array.shape}; "
            "it needs one position more than there are draft positions"
        )
    where = np.argwhere(used)
    chosen = array[where[:, 0], where[:, 1]]
    bad = np.argwhere(np.isnan(chosen) | np.isposinf(chosen))
    if len(bad):
        index, token = bad[0].tolist()
        row, position = where[index].tolist()
        raise InvalidDistributionError(
            f"{name}[{row}, {position}, {token}] is {chosen[index, token]}, expected a finite number or -inf"
        )
    empty = np.flatnonzero(np.isneginf(chosen).all(axis=1))
    if len(empty):
        row, position = where[empty[0]].tolist()
        raise InvalidDistributionError(
            f"{name}[{row}, {position}] is -inf everywhere: no token is allowed there; leave at least one"
        )
    return array


def uniforms_of(uniforms: Any, rows: int, coins: int) -> ProbArray:
    """``uniforms`` as float64 ``[rows, coins]``, each in ``[0, 1)``."""
    array = np.asarray(uniforms)
    if array.dtype.kind != "f" or array.shape != (rows, coins):
        raise InvalidRequestError(
            f"uniforms must be a float array of shape ({rows}, {coins}), got {array.dtype} {array.shape}; "
            "draw it afresh for every step"
        )
    bad = np.argwhere(~((array >= 0.0) & (array < 1.0)))
    if len(bad):
        row, coin = bad[0].tolist()
        raise InvalidRequestError(
            f"uniforms[{row}, {coin}] is {array[row, coin]}, expected a number in [0, 1)"
        )
    return np.ascontiguousarray(array, PROB_DTYPE)


def vocabulary_of(name: str, values: Any) -> int:
    """How many tokens an array of laws or scores is about.

    Raises:
        InvalidDistributionError: it is no array ``[rows, positions, vocabulary]`` of floats.
    """
    return int(_floats(name, values).shape[2])


def _floats(name: str, values: Any, positions: str = "positions") -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype not in SUM_TOLERANCE:
        raise InvalidDistributionError(
            f"{name} must be float64 or float32, got {array.dtype}; convert it before the call"
        )
    if array.ndim != 3 or array.shape[2] == 0:
        raise InvalidDistributionError(
            f"{name} must have the shape [rows, {positions}, vocabulary], got {array.shape}"
        )
    return array


def integers_of(name: str, values: Any, shape: tuple[int, ...] | None) -> NDArray[Any]:
    """``values`` as an array of integers of ``shape`` (None: of any shape)."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise InvalidRequestError(f"{name} must be an integer array, got {array.dtype}")
    if shape is not None and array.shape != shape:
        raise InvalidRequestError(f"{name} must have the shape {shape}, got {array.shape}")
    return array


def _refuse_values(name: str, chosen: NDArray[Any], where: NDArray[np.int64]) -> None:
    bad = np.argwhere(~((chosen >= 0.0) & (chosen < np.inf)))
    if len(bad):
        index, token = bad[0].tolist()
        row, position = where[index].tolist()
        raise InvalidDistributionError(
            f"{name}[{row}, {position}, {token}] is {chosen[index, token]}, expected a probability "
            "(finite and not negative)"
        )
