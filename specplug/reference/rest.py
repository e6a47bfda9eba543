"""Slow twin of :mod:`specplug.kernels.rest`."""

from __future__ import annotations

from typing import Any

from specplug.reference.lookup import find_occurrences
from specplug.reference.merging import (
    DRAFTED,
    MAX_DEPTH,
    NODE_PARENT,
    TOKEN,
    grow,
    judge,
    load_texts,
)

DISCOUNT = 0.998


def _append(readers: Any, slot: int, tokens: Any) -> None:
    size = int(readers.sizes[slot, 0])
    known = readers.contexts[slot, MAX_DEPTH - size :].tolist()
    known = (known + [int(token) for token in tokens])[-MAX_DEPTH:]
    readers.sizes[slot, 0] = len(known)
    readers.contexts[slot, MAX_DEPTH - len(known) :] = known


def begin_reader(readers: Any, slot: int, tokens: Any) -> None:
    """A request with this history takes ``slot``."""
    readers.sizes[slot] = (0, -1)
    _append(readers, slot, tokens)


def observe_readers(
    readers: Any, model: Any, slots: Any, offsets: Any, tokens: Any, cost: float
) -> None:
    """Judge the last draft of every slot by its new tokens, then append them."""
    for i, slot in enumerate(slots.tolist()):
        start, end = int(offsets[i]), int(offsets[i + 1])
        if end <= start:
            continue
        size = int(readers.sizes[slot, 1])
        if size >= 0:
            drafted = int((readers.nodes[slot, :size, DRAFTED] >= 0).sum())
            judge(model, readers.nodes, slot, size, (tokens, start, end))
            model.numbers[0] = DISCOUNT * model.numbers[0] + (end - start)
            model.numbers[1] = DISCOUNT * model.numbers[1] + 1.0 + cost * drafted
            readers.sizes[slot, 1] = -1
        _append(readers, slot, tokens[start:end])


def draft_readers(
    shelf: Any,
    readers: Any,
    model: Any,
    scratch: Any,
    slots: Any,
    ceilings: Any,
    out: Any,
    how: Any,
) -> None:
    """Drafts for a batch."""
    tokens, survival, lengths, parents = out
    most, fold, branches, cost = how
    threshold = cost * model.numbers[0] / model.numbers[1]
    for i, slot in enumerate(slots.tolist()):
        ceiling = min(int(ceilings[i]), tokens.shape[1], scratch.texts.shape[1] - 1)
        lengths[i] = 0
        readers.sizes[slot, 1] = -1
        if ceiling <= 0:
            continue
        size = int(readers.sizes[slot, 0])
        most_long = (min(most, len(scratch.found)), fold)
        count = find_occurrences(
            shelf, readers.contexts, slot, size, most_long, scratch.found, scratch.question
        )
        width = min(ceiling + 1, scratch.texts.shape[1])
        load_texts(shelf, scratch.found, count, width, scratch.texts)
        limits = (count, ceiling, branches, width)
        made, lengths[i] = grow(scratch, model, readers.nodes, slot, limits, threshold)
        readers.sizes[slot, 1] = made
        places = readers.nodes[slot, :made, DRAFTED].tolist()
        for node, place in enumerate(places):
            if place >= 0:
                tokens[i, place] = readers.nodes[slot, node, TOKEN]
                survival[i, place] = scratch.survival[node]
                parent = int(readers.nodes[slot, node, NODE_PARENT])
                parents[i, place] = places[parent] if parent >= 0 else -1
