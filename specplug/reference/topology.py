"""The arrays that describe draft trees: slow twin of :mod:`specplug.kernels.topology`.

A row of ``parents`` (int32 ``[B, N]``) holds a forest of ``lengths[i]`` nodes: ``parents[i, j]``
is the index of a node before ``j``, or ``-1`` if node ``j`` hangs on the last committed token, the
*root*. Where the root has a place of its own it comes first, and node ``j`` is then number ``j +
1``. Siblings are ordered by their index. What lies behind ``lengths[i]`` is empty.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from specplug.types import IntArray


def link_children(
    parents: IntArray, lengths: IntArray, first_child: IntArray, next_sibling: IntArray
) -> None:
    """First child of the root and of every node, and the next sibling of every node; ``-1`` is none.

    Args:
        parents: int32 ``[B, N]``.
        lengths: int32 ``[B]``.
        first_child: int32 ``[B, N + 1]``, written; index 0 is the root.
        next_sibling: int32 ``[B, N]``, written.
    """
    first_child[:] = -1
    next_sibling[:] = -1
    for row, length in enumerate(lengths.tolist()):
        for node in range(-1, length):
            children = [child for child in range(length) if parents[row, child] == node]
            if children:
                first_child[row, node + 1] = children[0]
            for child, sibling in pairwise(children):
                next_sibling[row, child] = sibling


def node_depths(parents: IntArray, lengths: IntArray, depths: IntArray) -> None:
    """Distance from the root (int32 ``[B, N]``, written): 1 for its children; 0 for what is no node."""
    depths[:] = 0
    for row, length in enumerate(lengths.tolist()):
        for node in range(length):
            depths[row, node] = len(_path(parents[row], node))


def ancestor_mask(parents: IntArray, lengths: IntArray, mask: NDArray[np.bool_]) -> None:
    """What each node may attend to: the root, its ancestors and itself (bool ``[B, N + 1, N + 1]``, written).

    This is the tree attention of SpecInfer (Miao et al. 2023, arXiv:2305.09781) and Medusa (Cai et
    al. 2024, arXiv:2401.10774). Rows of what is no node are false.
    """
    mask[:] = False
    for row, length in enumerate(lengths.tolist()):
        mask[row, 0, 0] = True
        for node in range(length):
            mask[row, node + 1, [0, *(step + 1 for step in _path(parents[row], node))]] = True


def _path(parents: IntArray, node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = int(parents[node])
    return path
