"""The arrays that describe draft trees; conventions stand in :mod:`specplug.reference.topology`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import kernel


@kernel
def link_children(
    parents: NDArray[np.int32],
    lengths: NDArray[np.int32],
    first_child: NDArray[np.int32],
    next_sibling: NDArray[np.int32],
) -> None:
    """First children and next siblings, siblings in order of their index."""
    first_child[:] = -1
    next_sibling[:] = -1
    for row in range(parents.shape[0]):
        # Backwards, so that each node is put in front of the siblings behind it.
        for node in range(lengths[row] - 1, -1, -1):
            parent = parents[row, node] + 1
            next_sibling[row, node] = first_child[row, parent]
            first_child[row, parent] = node


@kernel
def node_depths(
    parents: NDArray[np.int32], lengths: NDArray[np.int32], depths: NDArray[np.int32]
) -> None:
    """Distance from the root."""
    depths[:] = 0
    for row in range(parents.shape[0]):
        for node in range(lengths[row]):
            parent = parents[row, node]
            depths[row, node] = 1 if parent < 0 else depths[row, parent] + 1


@kernel
def ancestor_mask(
    parents: NDArray[np.int32], lengths: NDArray[np.int32], mask: NDArray[np.bool_]
) -> None:
    """Root, ancestors and self."""
    mask[:] = False
    for row in range(parents.shape[0]):
        mask[row, 0, 0] = True
        for node in range(lengths[row]):
            parent = parents[row, node] + 1
            for ancestor in range(parent + 1):
                mask[row, node + 1, ancestor] = mask[row, parent, ancestor]
            mask[row, node + 1, node + 1] = True
