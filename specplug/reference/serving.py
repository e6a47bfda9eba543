"""Slow twin of :mod:`specplug.kernels.serving`: what the rows of a simulated server do in one step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.int64]
Ints = NDArray[np.int32]


def verify(running: Wide, count: int, right: NDArray[np.int16], told: Ints, totals: Wide) -> None:
    """Drafts are verified, and positions move by what is emitted.

    Args:
        running: int64 ``[7, capacity]``: slot, position, start, end, prompt tokens, offered and verified tokens.
        count: running requests.
        right: int16 ``[N]``, at each position how many tokens of the offer are right.
        told: int32 ``[6, capacity]``, written: slot, tested and agreed of requests with an offer; slot, drafted and
            accepted of those with a draft.
        totals: int64 ``[6]``, written: tokens, accepted, drafted, requests at their end, entries of both kinds.
    """
    slot, position, _, end, _, offered, length = running[:, :count]
    correct = np.minimum(right[position], offered)
    accepted = np.minimum(correct, length)
    asked, drafted = np.flatnonzero(offered), np.flatnonzero(length)
    reach = np.minimum(offered, accepted + 1)[asked]
    agreed = np.minimum(correct[asked], reach)
    told[:3, : len(asked)] = slot[asked], np.minimum(agreed + 1, reach), agreed
    told[3:, : len(drafted)] = slot[drafted], length[drafted], accepted[drafted]
    emitted = np.minimum(accepted + 1, end - position)
    position += emitted
    sums = emitted.sum(), accepted.sum(), length.sum(), (position >= end).sum()
    totals[:] = (*sums, len(asked), len(drafted))


def ask(running: Wide, count: int, width: int, slots: Ints, limits: Ints) -> None:
    """Who may have drafts, and how long: ``slots`` and ``limits``, int32 ``[count]``, are written.

    The last token of a response needs no draft: the step emits it anyway.
    """
    slots[:] = running[0, :count]
    limits[:] = np.clip(running[3, :count] - running[1, :count] - 1, 0, width)


def offer(
    running: Wide,
    count: int,
    offered: Ints,
    claims: NDArray[np.float32],
    ceilings: Ints,
    lengths: Ints,
    survival: NDArray[np.float64],
) -> None:
    """What the proposer has to say, up to ``ceilings``: ``lengths`` and ``survival`` are written.

    Args:
        running, count: as for :func:`verify`.
        offered: int32 ``[N]``, at each position the length of the offer.
        claims: float32 ``[N, K]``, at each position the estimates.
        ceilings, lengths: int32 ``[count]``.
        survival: float64 ``[count, K]``, or ``[count, 0]`` where nobody asks for it.
    """
    position = running[1, :count]
    lengths[:] = np.minimum(offered[position], ceilings)
    running[5, :count] = lengths
    survival[:] = claims[position, : survival.shape[1]]


def settle(running: Wide, count: int, lengths: Ints) -> tuple[int, int]:
    """What the next step verifies, at most the offer; returns its drafts and the tokens in the cache."""
    _, position, start, _, prompt, offered, length = running[:, :count]
    length[:] = np.minimum(lengths, offered)
    lengths[:] = length
    return int(length.sum()), int((prompt + position - start).sum())
