"""Slow twin of :mod:`specplug.kernels.forecast`; the mathematics stands in :mod:`specplug.control.acceptance`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Marks = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Kind = tuple[float, float, float, float]

BUCKET_STARTS = (0, 1, 2, 3, 4, 6, 9, 13, 20)
LOWEST, HIGHEST = 1e-3, 0.999
BLIND_FIRST, BLIND_LATER = 0.5, 0.8

# Most variance, growth per step, bound of the bias, longest move.
OF_REQUEST: Kind = (1.0, 0.005, 4.0, 2.0)
OF_GROUP: Kind = (0.30, 0.002, 3.0, 1.0)
OF_DEPTH: Kind = (0.10, 0.0005, 2.0, 0.5)
OF_BLIND_DEPTH: Kind = (1.0, 0.0005, 2.0, 0.5)
OF_SOURCE: Kind = (0.15, 0.001, 2.0, 0.5)


def read_chances(survival: Floats, slots: Ints, offered: Ints, chances: Floats) -> tuple[int, int]:
    """Per position the proposer's chance given all before it, made safe.

    Args:
        survival: float64 ``[B, K]``, the proposer's estimates; anything may stand in it.
        slots, offered: int32 ``[B]``, of each draft; lengths beyond a table end with it.
        chances: float64 ``[slots, K]``, written for what is offered.

    Returns:
        Tokens and the length of the longest offer; or -1 and the place of a slot that does not exist.
    """
    for place, slot in enumerate(slots):
        if not 0 <= slot < len(chances):
            return -1, place
    lengths = np.minimum(offered, min(survival.shape[1], chances.shape[1]))
    for row, slot, length in zip(survival, slots, lengths, strict=True):
        if length <= 0:
            continue
        with np.errstate(all="ignore"):
            found = row[:length] / np.append(1.0, row[: length - 1])
        found = np.fmin(np.fmax(found, LOWEST), HIGHEST)  # NaN becomes the lowest
        if not row[0] > 0.0:  # a proposer that writes no estimates, or nonsense
            found = np.array([BLIND_FIRST] + [BLIND_LATER] * (length - 1))
        chances[slot, :length] = found
    return int(lengths.sum()), int(lengths.max(initial=0))


def _buckets(width: int) -> NDArray[np.intp]:
    return np.searchsorted(BUCKET_STARTS, np.arange(width), side="right") - 1


def _corrected(
    beliefs: Floats, marks: Marks, sources: Bytes, slot: int, chances: Floats
) -> tuple[Floats, NDArray[np.int64]]:
    """The corrected chances of a draft, and the row of each position's source."""
    bias = beliefs[slot, 0] + beliefs[marks[0] + int(beliefs[slot, 2]), 0]
    odds: Floats = np.exp(beliefs[marks[1] + _buckets(len(chances)), 0]) * np.exp(bias)
    rows = np.zeros(0, np.int64)
    if len(sources):
        named = sources[slot, : len(chances)].astype(np.int64)
        rows = np.minimum(marks[2] + named, len(beliefs) - 1)
        odds = odds * np.exp(beliefs[rows, 0])
    odds = odds * chances
    return odds / (1.0 - chances + odds), rows


def forecast(
    beliefs: Floats,
    marks: Marks,
    sources: Bytes,
    slots: Ints,
    offered: Ints,
    chances: Floats,
    survival: Floats,
) -> int:
    """The chance of each position that it and all before it are accepted, by all that is believed.

    Args:
        beliefs, marks: see :mod:`specplug.kernels.forecast`.
        sources: uint8 ``[slots, K]``, of each position; without rows: none are told apart.
        slots, offered: int32 ``[B]``.
        chances: float64 ``[slots, K]``, uncorrected.
        survival: float64 ``[B, W]``, written; 0 behind the end of a draft.

    Returns:
        0, or less if a slot does not exist.
    """
    for place, slot in enumerate(slots):
        if not 0 <= slot < len(chances):
            return -1 - place
    survival[:] = 0.0
    for row, slot, length in zip(
        survival, slots, np.clip(offered, 0, len(survival[0])), strict=True
    ):
        found, _ = _corrected(beliefs, marks, sources, slot, chances[slot, :length])
        row[:length] = np.cumprod(found)
    return 0


def _aged(own: float, information: float, kind: Kind) -> float:
    shrunk = own / (1.0 + information * own) * information
    return min(own * (1.0 - min(shrunk, 1.0)) + kind[1], kind[0])


def _step(gain: float, residual: float, kind: Kind) -> float:
    return float(np.clip(gain * residual, -kind[3], kind[3]))


def _move(beliefs: Floats, row: int, seen: Floats, kind: Kind, bound: float) -> None:
    """``seen``: sum of residuals, information and number of what was tested."""
    own = beliefs[row, 1]
    gain = own / (1.0 + 0.25 * seen[2] * (own + OF_REQUEST[0]))
    bias = beliefs[row, 0] + _step(gain, seen[0], kind)
    beliefs[row, 0] = np.clip(bias, -bound, bound)
    beliefs[row, 1] = _aged(own, seen[1], kind)
    beliefs[row, 2] = np.exp(beliefs[row, 0])


def learn_outcomes(
    beliefs: Floats,
    marks: Marks,
    sources: Bytes,
    slots: Ints,
    chances: Floats,
    tested: Ints,
    agreed: Ints,
) -> int:
    """What happened to the drafts of some slots moves the beliefs about them.

    Args:
        beliefs, marks, sources, chances: as for :func:`forecast`.
        slots: int32 ``[B]``, each at most once.
        tested: int32 ``[B]``, positions about which the truth is known.
        agreed: int32 ``[B]``, the first so many of them were accepted, the next (if tested) was not.

    Returns:
        0, or less if a slot does not exist or more was tested than a draft can hold.
    """
    for place, (slot, count) in enumerate(zip(slots, tested, strict=True)):
        if not 0 <= slot < len(chances) or count > chances.shape[1]:
            return -1 - place
    for slot, count in zip(slots, agreed, strict=True):
        beliefs[slot, 3] += 0.2 * (min(count, 4) - beliefs[slot, 3])
    if tested.max(initial=0) <= 0:
        return 0
    seen = np.zeros((len(beliefs), 3))
    moved = beliefs.copy()
    for slot, count, right in zip(slots, tested, agreed, strict=True):
        q, of_source = _corrected(beliefs, marks, sources, slot, chances[slot, :count])
        each = np.stack([(np.arange(count) < right) - q, q * (1.0 - q), np.ones(count)], axis=1)
        np.add.at(seen, marks[1] + _buckets(count), each)
        if len(of_source):
            np.add.at(seen, of_source, each)
        r, h, _ = each.sum(axis=0)
        group = marks[0] + int(beliefs[slot, 2])
        seen[group] += (r, h, 1.0)
        own = beliefs[slot, 1]
        gain = own / (1.0 + 0.25 * (own + beliefs[group, 1] + beliefs[marks[1], 1]))
        bias = beliefs[slot, 0] + _step(gain, r, OF_REQUEST)
        moved[slot, 0] = np.clip(bias, -OF_REQUEST[2], OF_REQUEST[2])
        moved[slot, 1] = _aged(own, h, OF_REQUEST)
    for row in range(marks[0], len(beliefs)):
        if marks[1] <= row < marks[2]:
            _move_depth(moved, row, seen[row], bool(marks[3]), first=row == marks[1])
        elif seen[row, 2]:
            kind = OF_GROUP if row < marks[1] else OF_SOURCE
            _move(moved, row, seen[row], kind, kind[2])
    beliefs[:] = moved
    return 0


def _move_depth(beliefs: Floats, row: int, seen: Floats, informed: bool, first: bool) -> None:
    if informed:
        _move(beliefs, row, seen, OF_DEPTH, OF_DEPTH[2])
        return
    _move(beliefs, row, seen, OF_BLIND_DEPTH, OF_BLIND_DEPTH[2] if first else 6.0)
    if not seen[1] > 0.0 and beliefs[row, 0] < -OF_BLIND_DEPTH[2]:
        beliefs[row, 0] += 0.02  # what is not tried any more would never be seen to change
        beliefs[row, 2] = np.exp(beliefs[row, 0])
