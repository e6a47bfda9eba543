"""From occurrences to a draft: their continuations merged to a chain or a tree, with an estimate for every token.

A node of the tree is what several occurrences say next; its children divide them. The probability of a child, given
that its parent is accepted, is the hit rate of its class so far: the longest match behind it, its share of the
evidence, and how many occurrences agree. Nodes are drafted in order of the probability that they and all before them
are accepted, while that is at least ``threshold``. A chain is a tree of which only the best child of each node counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import inlined_kernel, lean_kernel
from specplug.kernels.datastore_layout import (
    CELL,
    COARSE,
    COUNT_CLASSES,
    DRAFTED,
    LENGTH,
    MASK,
    MAX_DEPTH,
    NODE_DEPTH,
    NODE_PARENT,
    POSITION,
    SHARE_CLASSES,
    TOKEN,
    TOKEN_BITS,
    TOKEN_WORD,
    TOKENS,
    VOCAB,
    Index,
    IntArray,
    LongArray,
    Model,
    Scratch,
    Shelf,
)
from specplug.kernels.lanes import lowest
from specplug.kernels.packed import read_bits

#: Trials that the estimate of a coarser class stands for.
SHRINK = 4.0
#: Trials of a class after which both counts are halved, so that traffic may change.
MEMORY = 1024.0


@lean_kernel
def load_texts(shelf: Shelf, found: LongArray, count: Index, width: Index, texts: IntArray) -> None:
    """The ``width`` tokens from each occurrence on, -1 from its document's end on."""
    meta = shelf.meta
    bits = meta[TOKEN_BITS]
    per_read = 64 // bits
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    for i in range(count):
        position = found[i, POSITION]
        # Behind the last document there is nothing, even if its separator is damaged.
        end = min(width, meta[TOKENS] - position)
        j: Any = 0
        while j < end:
            start = (position + j) * bits
            text = read_bits(shelf.words, meta[TOKEN_WORD], start, per_read * bits)
            stop = min(end, j + per_read)
            while j < stop:
                token = np.int64(text & mask)
                if token >= meta[VOCAB]:
                    end, stop = j, j
                else:
                    texts[i, j] = token
                    text >>= np.uint64(bits)
                    j += 1
        for k in range(j, width):
            texts[i, k] = -1


@inlined_kernel
def length_class(length: Index) -> Any:
    """Class of a match length (at least 1): 1 to 8 by themselves, then 9.., 11.., 14.., 18.., 24.., 32..."""
    if length <= 8:
        return length - 1
    if length <= 10:
        return 8
    if length <= 13:
        return 9
    if length <= 17:
        return 10
    if length <= 23:
        return 11
    return 12 if length < 32 else 13


@inlined_kernel
def share_class(share: Any) -> Any:
    """Class of a share of the evidence (above 0, at most 1); all of it is a class of its own."""
    if share >= 1.0:
        return 7
    if share >= 0.8:
        return 6 if share >= 0.95 else 5
    if share >= 0.4:
        return 4 if share >= 0.6 else 3
    if share >= 0.1:
        return 2 if share >= 0.25 else 1
    return 0


@inlined_kernel
def count_class(count: Index) -> Any:
    """Class of a number of occurrences: 1, 2 or 3, up to 8, more."""
    if count <= 1:
        return 0
    if count <= 3:
        return 1
    return 2 if count <= 8 else 3


@inlined_kernel
def hit_rate(model: Model, cell: Index, coarse: Index) -> Any:
    """Estimated probability that a guess of this class is right."""
    parent = model.coarse[coarse, 0] / model.coarse[coarse, 1]
    return (model.cells[cell, 0] + SHRINK * parent) / (model.cells[cell, 1] + SHRINK)


@inlined_kernel
def _bits(mask: Any) -> Any:
    count = 0
    while mask != 0:
        mask &= mask - 1
        count += 1
    return count


@inlined_kernel
def _agree(scratch: Scratch, mask: Any, depth: Index) -> Any:
    """The token that all occurrences say; -1 if they differ, or if one of them has none."""
    token = scratch.texts[lowest(np.uint64(mask)), depth]
    rest = mask & (mask - 1)
    while rest != 0:
        if scratch.texts[lowest(np.uint64(rest)), depth] != token:
            return np.int64(-1)
        rest &= rest - 1
    return np.int64(token)


@inlined_kernel
def _divide(scratch: Scratch, model: Model, mask: Any, depth: Index) -> Any:
    """Children of a node into ``scratch.children``; returns how many, and the evidence for all together."""
    children, evidence = scratch.children, scratch.evidence
    if mask == 0:
        return 0, 0.0
    agreed = _agree(scratch, mask, depth)
    if agreed >= 0:  # as mostly, and all of the evidence is all of it, however much that is
        longest = scratch.found[lowest(np.uint64(mask)), LENGTH]
        children[0, TOKEN], children[0, 1] = agreed, mask
        children[0, 2] = min(longest + depth, MAX_DEPTH)
        evidence[0] = 1.0
        return 1, 1.0
    count, k = 0, -1
    total = 0.0
    # Child ``k``, to which the last occurrence went: at hand and not in memory, because the next one mostly follows.
    current, members, longest, support = np.int64(-1), np.int64(0), np.int64(0), 0.0
    rest = mask
    while rest != 0:
        i = lowest(np.uint64(rest))
        rest &= rest - 1
        length = np.int64(min(scratch.found[i, LENGTH] + depth, MAX_DEPTH))
        weight = model.weights[length]
        total += weight
        token = np.int64(scratch.texts[i, depth])
        if token < 0:
            continue
        if token != current:
            if k >= 0:
                children[k, 1], children[k, 2], evidence[k] = members, longest, support
            k = 0
            while k < count and children[k, TOKEN] != token:
                k += 1
            if k == count:
                children[k, TOKEN] = token
                members, longest, support = np.int64(0), np.int64(0), 0.0
                count += 1
            else:
                members, longest, support = children[k, 1], children[k, 2], evidence[k]
            current = token
        members |= np.int64(1) << i
        longest = max(longest, length)
        support += weight
    if k >= 0:
        children[k, 1], children[k, 2], evidence[k] = members, longest, support
    return count, total


@inlined_kernel
def _branch(
    scratch: Scratch, model: Model, nodes: Any, row: Index, size: Index, origin: Any, most: Index
) -> Any:
    """Append the ``most`` likeliest children of a node as nodes; returns the new number of nodes.

    ``origin``: the node, the occurrences behind it, the depth and the survival that its children start from.
    Ties go to the child that an earlier occurrence supports.
    """
    parent, mask, depth, survival = origin
    count, total = _divide(scratch, model, mask, depth)
    for _ in range(min(most, count)):
        best = 0
        for k in range(1, count):
            if scratch.evidence[k] > scratch.evidence[best]:
                best = k
        if scratch.evidence[best] < 0.0 or size >= nodes.shape[1]:
            break
        share = share_class(scratch.evidence[best] / total)
        coarse = length_class(scratch.children[best, 2]) * SHARE_CLASSES + share
        cell = coarse * COUNT_CLASSES + count_class(_bits(scratch.children[best, 1]))
        nodes[row, size, TOKEN] = scratch.children[best, TOKEN]
        nodes[row, size, NODE_PARENT] = parent
        nodes[row, size, NODE_DEPTH] = depth
        nodes[row, size, MASK] = scratch.children[best, 1]
        nodes[row, size, CELL], nodes[row, size, COARSE] = cell, coarse
        nodes[row, size, DRAFTED] = -1
        scratch.survival[size] = survival * hit_rate(model, cell, coarse)
        scratch.evidence[best] = -1.0
        size += 1
    return size


@lean_kernel
def grow(
    scratch: Scratch, model: Model, nodes: LongArray, row: Index, limits: Any, threshold: Any
) -> Any:
    """Grow the draft of a row from the occurrences in ``scratch``.

    Args:
        nodes: int64 ``[B, N, NODE_FIELDS]``; row ``row`` is filled. ``DRAFTED`` is the place of a node in the draft, or
            -1 for guesses that were considered only.
        limits: occurrences, most draft tokens, children per node, tokens loaded of each occurrence.
        threshold: least survival of a draft token.

    Returns:
        Number of nodes, and how many of them are drafted.
    """
    count, ceiling, branches, width = limits
    everything = (np.int64(1) << np.int64(count)) - np.int64(1)
    size = _branch(scratch, model, nodes, row, 0, (-1, everything, np.int64(0), 1.0), branches)
    drafted, low = 0, 0
    while True:
        while low < size and nodes[row, low, DRAFTED] >= 0:
            low += 1
        best = -1
        for i in range(low, size):
            if nodes[row, i, DRAFTED] < 0 and (
                best < 0 or scratch.survival[i] > scratch.survival[best]
            ):
                best = i
        if best < 0 or drafted >= ceiling or scratch.survival[best] < threshold:
            return size, drafted
        nodes[row, best, DRAFTED] = drafted
        drafted += 1
        if nodes[row, best, NODE_DEPTH] + 1 < width:
            depth = nodes[row, best, NODE_DEPTH] + 1
            origin = (best, nodes[row, best, MASK], depth, scratch.survival[best])
            size = _branch(scratch, model, nodes, row, size, origin, branches)


@lean_kernel
def _count(table: Any, place: Index, hit: bool) -> None:
    """Count a trial; what is long past is forgotten by half."""
    table[place, 0] += 1.0 if hit else 0.0
    table[place, 1] += 1.0
    if table[place, 1] > MEMORY:
        table[place, 0] *= 0.5
        table[place, 1] *= 0.5


@lean_kernel
def judge(model: Model, nodes: LongArray, row: Index, size: Index, tokens: Any) -> None:
    """Learn from what the target said: ``tokens`` is an array, and where its row's tokens begin and end.

    Every node whose parent turned out true is a trial, drafted or not.
    """
    said, start, end = tokens
    for i in range(size):
        parent, depth = nodes[row, i, NODE_PARENT], nodes[row, i, NODE_DEPTH]
        known = start + depth < end and (parent < 0 or nodes[row, parent, MASK] == -1)
        if not known:
            continue
        hit = said[start + depth] == nodes[row, i, TOKEN]
        _count(model.cells, nodes[row, i, CELL], hit)
        _count(model.coarse, nodes[row, i, COARSE], hit)
        if hit:
            nodes[row, i, MASK] = -1  # true, and judged: its children are trials too
