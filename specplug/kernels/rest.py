"""One step of the datastore drafter for a batch: learn from what the target said, look up, merge, write drafts."""

from __future__ import annotations

from typing import Any

from specplug.kernels._jit import lean_kernel
from specplug.kernels.datastore_layout import (
    DRAFTED,
    EMITTED,
    MAX_DEPTH,
    MAX_FOUND,
    NODE_PARENT,
    SPENT,
    TOKEN,
    Index,
    IntArray,
    LongArray,
    Model,
    Readers,
    Scratch,
    Shelf,
)
from specplug.kernels.lookup import find_occurrences
from specplug.kernels.merging import grow, judge, load_texts

#: Weight that one more step leaves to the steps before it.
DISCOUNT = 0.998


@lean_kernel
def _append(readers: Readers, slot: Index, tokens: IntArray, start: Index, end: Index) -> None:
    """Shift the context of a slot to the left by the new tokens."""
    count = min(end - start, MAX_DEPTH)
    for i in range(MAX_DEPTH - count):
        readers.contexts[slot, i] = readers.contexts[slot, i + count]
    for i in range(count):
        readers.contexts[slot, MAX_DEPTH - count + i] = tokens[end - count + i]
    readers.sizes[slot, 0] = min(MAX_DEPTH, readers.sizes[slot, 0] + count)


@lean_kernel
def begin_reader(readers: Readers, slot: Index, tokens: IntArray) -> None:
    """A request with this history takes ``slot``."""
    readers.sizes[slot, 0] = 0
    readers.sizes[slot, 1] = -1
    _append(readers, slot, tokens, 0, tokens.shape[0])


@lean_kernel
def observe_readers(
    readers: Readers,
    model: Model,
    slots: IntArray,
    offsets: LongArray,
    tokens: IntArray,
    cost: float,
) -> None:
    """Judge the last draft of every slot by its new tokens, then append them. See :class:`specplug.types.Observed`."""
    for i in range(slots.shape[0]):
        slot, start, end = slots[i], offsets[i], offsets[i + 1]
        if end <= start:
            continue
        size = readers.sizes[slot, 1]
        if size >= 0:
            drafted = 0
            for node in range(size):
                drafted += 1 if readers.nodes[slot, node, DRAFTED] >= 0 else 0
            judge(model, readers.nodes, slot, size, (tokens, start, end))
            model.numbers[EMITTED] = DISCOUNT * model.numbers[EMITTED] + (end - start)
            model.numbers[SPENT] = DISCOUNT * model.numbers[SPENT] + 1.0 + cost * drafted
            readers.sizes[slot, 1] = -1
        _append(readers, slot, tokens, start, end)


@lean_kernel
def draft_readers(
    shelf: Shelf,
    readers: Readers,
    model: Model,
    scratch: Scratch,
    slots: IntArray,
    ceilings: IntArray,
    out: Any,
    how: Any,
) -> None:
    """Drafts for a batch.

    Args:
        ceilings: int32 ``[B]``; no draft is longer than ``K``, or than ``scratch`` has room for.
        out: tokens int32 ``[B, K]``, survival float64 ``[B, K]``, lengths int32 ``[B]``, parents int32 ``[B, K]``.
        how: occurrences to merge and how much shorter their matches may be than the longest (see
            :func:`find_occurrences`), children per node (1: chains), cost of a draft token.
    """
    tokens, survival, lengths, parents = out
    most, fold, branches, cost = how
    threshold = cost * model.numbers[EMITTED] / model.numbers[SPENT]
    for i in range(slots.shape[0]):
        slot = slots[i]
        ceiling = min(ceilings[i], tokens.shape[1], scratch.texts.shape[1] - 1)
        lengths[i] = 0
        readers.sizes[slot, 1] = -1
        if ceiling <= 0:
            continue
        size = readers.sizes[slot, 0]
        limits = (min(most, MAX_FOUND), fold)
        count = find_occurrences(
            shelf, readers.contexts, slot, size, limits, scratch.found, scratch.question
        )
        width = min(ceiling + 1, scratch.texts.shape[1])
        load_texts(shelf, scratch.found, count, width, scratch.texts)
        made, drafted = grow(
            scratch, model, readers.nodes, slot, (count, ceiling, branches, width), threshold
        )
        readers.sizes[slot, 1] = made
        lengths[i] = drafted
        for node in range(made):
            place = readers.nodes[slot, node, DRAFTED]
            if place >= 0:
                tokens[i, place] = readers.nodes[slot, node, TOKEN]
                survival[i, place] = scratch.survival[node]
                parent = readers.nodes[slot, node, NODE_PARENT]
                parents[i, place] = readers.nodes[slot, parent, DRAFTED] if parent >= 0 else -1
