"""One step of the simulated server's rows; the rules stand in :mod:`specplug.reference.serving`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import lean_kernel

Wide = NDArray[np.int64]
Ints = NDArray[np.int32]

#: Rows of the table of running requests: its slot, the next position of its response and the first and the last, tokens
#: of its prompt, and tokens that were offered and that are verified.
SLOT, POSITION, START, END, PROMPT, OFFERED, LENGTH = range(7)
FIELDS = 7

#: Columns of what is told to a controller.
COMPARED_SLOT, TESTED, AGREED, OBSERVED_SLOT, DRAFTED, ACCEPTED = range(6)

#: What a step came to.
TOKENS, RIGHT, VERIFIED, OVER, COMPARED, OBSERVED = range(6)


@lean_kernel
def verify(running: Wide, count: int, right: NDArray[np.int16], told: Ints, totals: Wide) -> None:
    """See the twin."""
    for k in range(totals.shape[0]):
        totals[k] = 0
    for i in range(count):
        offered = running[OFFERED, i]
        length = running[LENGTH, i]
        correct = min(np.int64(right[running[POSITION, i]]), offered)
        accepted = min(correct, length)
        if offered > 0:
            reach = min(offered, accepted + 1)
            agreed = min(correct, reach)
            at = totals[COMPARED]
            told[COMPARED_SLOT, at] = running[SLOT, i]
            told[TESTED, at] = min(agreed + 1, reach)
            told[AGREED, at] = agreed
            totals[COMPARED] += 1
        if length > 0:
            at = totals[OBSERVED]
            told[OBSERVED_SLOT, at] = running[SLOT, i]
            told[DRAFTED, at] = length
            told[ACCEPTED, at] = accepted
            totals[OBSERVED] += 1
        emitted = min(accepted + 1, running[END, i] - running[POSITION, i])
        running[POSITION, i] += emitted
        totals[TOKENS] += emitted
        totals[RIGHT] += accepted
        totals[VERIFIED] += length
        if running[POSITION, i] >= running[END, i]:
            totals[OVER] += 1


@lean_kernel
def ask(running: Wide, count: int, width: int, slots: Ints, limits: Ints) -> None:
    """See the twin."""
    for i in range(count):
        slots[i] = running[SLOT, i]
        limits[i] = min(width, max(0, running[END, i] - running[POSITION, i] - 1))


@lean_kernel
def offer(
    running: Wide,
    count: int,
    offered: Ints,
    claims: NDArray[np.float32],
    ceilings: Ints,
    lengths: Ints,
    survival: NDArray[np.float64],
) -> None:
    """See the twin."""
    for i in range(count):
        position = running[POSITION, i]
        lengths[i] = min(offered[position], ceilings[i])
        running[OFFERED, i] = lengths[i]
        for d in range(survival.shape[1]):
            survival[i, d] = claims[position, d]


@lean_kernel
def settle(running: Wide, count: int, lengths: Ints) -> tuple[int, int]:
    """See the twin."""
    drafts = 0
    context = 0
    for i in range(count):
        running[LENGTH, i] = min(np.int64(lengths[i]), running[OFFERED, i])
        lengths[i] = running[LENGTH, i]
        drafts += running[LENGTH, i]
        context += running[PROMPT, i] + running[POSITION, i] - running[START, i]
    return drafts, context
