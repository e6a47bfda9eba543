"""What all searches for candidates share: the hashes that lead to chains, and how a candidate is written down."""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import lean_kernel
from specplug.kernels.layout import (
    CLASS,
    CONTEXT,
    LENGTH,
    LONGEST,
    N_ORDERS,
    ORDERS,
    POSITION,
    SOURCE,
    Index,
    IntArray,
    LongArray,
    State,
)
from specplug.kernels.streams import mix


@lean_kernel
def hash_context(context: IntArray, seed: Any, hashes: LongArray) -> None:
    """Hash the last ``ORDERS[i]`` tokens of ``context`` into ``hashes[i]``; -1 where there are not so many."""
    for order in range(N_ORDERS):
        hashes[order] = -1
    hashed = seed
    order = 0
    for back in range(1, LONGEST + 1):
        token = context[CONTEXT - back]
        if token < 0:
            break
        hashed = mix(hashed, token)
        if back == ORDERS[order]:
            hashes[order] = np.int64(hashed)
            order += 1


@lean_kernel
def class_of(edit: Index, rank: Index) -> Index:
    """The class of a candidate by its edit extension and its rank in the chain."""
    edits = 0 if edit < 3 else (1 if edit < 7 else 2)
    ranks = 0 if rank == 0 else (1 if rank <= 3 else 2)
    return 3 * edits + ranks


@lean_kernel
def take(state: State, row: Index, found: Any, length: Index, kind: Index) -> None:
    """Write a candidate: where it was ``found`` (position and source), length and class."""
    candidate = state.scratch.candidates[row]
    candidate[POSITION], candidate[SOURCE] = found
    candidate[LENGTH] = length
    candidate[CLASS] = kind
