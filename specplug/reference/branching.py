"""Slow twin of :mod:`specplug.kernels.branching`.

No chain: no tree, since what was less probable than its first token is not worth it either. Equal survival: the node
that was offered first.
"""

from __future__ import annotations

from dataclasses import dataclass

from specplug.reference.live import live_token
from specplug.reference.ranking import class_rate
from specplug.reference.suffix_state import LIVE, STORE, Candidate, SuffixState


@dataclass
class _Node:
    """A node that may be taken: ``depth`` is that of the chain's tokens and their siblings, -1 in a branch."""

    token: int
    parent: int
    survival: float
    depth: int
    on_chain: bool
    source: int = 0
    support: Candidate | None = None


def next_token(
    state: SuffixState, slot: int, drafted: list[int], source: int, position: int
) -> int:
    """What follows at ``position``, -1 if nothing does; own text goes on with ``drafted``."""
    if position >= LIVE:
        return live_token(state, position)
    text = state.store.tokens if source == STORE else state.streams[slot].tokens + drafted
    return text[position] if position < len(text) else -1


def floor_of(state: SuffixState, slot: int, cost: float) -> float:
    """The survival below which verifying a token costs more than it brings."""
    model = state.models[state.streams[slot].model]
    return cost * model.tokens / model.cost


def branch_row(
    state: SuffixState,
    slot: int,
    chain: list[int],
    survival: list[float],
    ceiling: int,
    cost: float,
) -> tuple[list[int], list[float], list[int]]:
    """Tokens, survival and parents of the tree that is made of a chain."""
    stream = state.streams[slot]
    floor = floor_of(state, slot, cost)
    sources, stream.sources = stream.sources, []
    offered: list[_Node] = []
    taken: list[_Node] = []

    def offer_children(depth: int, parent: int) -> None:
        if depth < len(chain):
            node = _Node(chain[depth], parent, survival[depth], depth, True, sources[depth])
            offered.append(node)
        if depth < len(stream.depths) and stream.depths[depth].ranked:
            ranked, above = stream.depths[depth].ranked, survival[depth - 1] if depth else 1.0
            top = max(ranked, key=lambda entry: entry.probability)
            for entry in ranked:
                if entry is not top:
                    worth = above * entry.probability
                    offered.append(_Node(entry.token, parent, worth, depth, False))

    offer_children(0, -1)
    while offered and len(taken) < ceiling:
        best = max(offered, key=lambda node: node.survival)
        if best.survival < floor or best.survival <= 0.0:
            break
        offered.remove(best)
        place = len(taken)
        taken.append(best)
        if best.on_chain:
            offer_children(best.depth + 1, place)
        else:
            _find_support(state, slot, best)
            offered += _copy(state, slot, best, place)
        stream.sources.append(best.source)
    stream.drafted = len(taken)
    return (
        [node.token for node in taken],
        [node.survival for node in taken],
        [node.parent for node in taken],
    )


def _find_support(state: SuffixState, slot: int, node: _Node) -> None:
    """The longest match that speaks for a node that starts a branch; the first one, of equals."""
    if node.support is None:
        candidates = state.streams[slot].depths[node.depth].candidates
        own = [candidate for candidate in candidates if candidate.token == node.token]
        node.support = max(own, key=lambda candidate: candidate.length)
        node.source = node.support.source


def _copy(state: SuffixState, slot: int, node: _Node, place: int) -> list[_Node]:
    """What follows a node of a branch where it is copied from."""
    support = node.support
    assert support is not None
    token = next_token(state, slot, [], support.source, support.position + 1)
    if token < 0:
        return []
    length = min(63, support.length + 1)
    moved = Candidate(support.position + 1, length, support.kind, support.source)
    rate = class_rate(state, state.streams[slot].model, moved.source, length, moved.kind)
    return [_Node(token, place, node.survival * rate, -1, False, moved.source, moved)]
