"""Drafts that branch, where chains are all that can be verified."""

from __future__ import annotations

import numpy as np

from specplug.types import LENGTH_DTYPE, IntArray


def first_branch(parents: IntArray) -> IntArray:
    """Indices of the nodes from the first child of the root down along first children, int32 ``[depth]``."""
    path: list[int] = []
    node = -1
    while True:
        children = np.flatnonzero(parents == node)
        if not len(children):
            return np.array(path, LENGTH_DTYPE)
        node = int(children[0])
        path.append(node)
