"""Draft trees: beside the chain of the most probable tokens, what else may come, each as far as it is worth it.

At each depth of the chain the other ranked tokens are siblings of its token. Such a branch goes on as a copy of the
longest match that speaks for it, with the hit rate of that match's class as its estimate. Of all nodes the most
probable ones are taken, parents first, while verifying one more pays; where few are allowed, the end of a chain gives
way to branches nearer to the root.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import lean_kernel
from specplug.kernels.layout import (
    CLASS,
    D_CANDIDATE_START,
    D_CANDIDATES,
    D_TOKEN_START,
    D_TOKENS,
    D_TOP,
    LENGTH,
    LIVE,
    M_COST,
    M_TOKENS,
    N_DEPTHS,
    N_DRAFTED,
    N_LENGTH,
    N_LOG,
    N_MODEL,
    POSITION,
    S_END,
    SOURCE,
    STORE,
    T_CHAIN,
    T_CLASS,
    T_DEPTH,
    T_LENGTH,
    T_PARENT,
    T_POSITION,
    T_SOURCE,
    T_TOKEN,
    TOKEN,
    Index,
    State,
)
from specplug.kernels.live import live_token
from specplug.kernels.ranking import class_rate
from specplug.kernels.store import physical
from specplug.kernels.streams import token_at


@lean_kernel
def next_token(state: State, slot: Index, depth: Index, source: Index, position: Index) -> Index:
    """What follows at ``position``, -1 if nothing does. Own text goes on with ``depth`` tokens of the chain."""
    if source == STORE:
        if position >= LIVE:
            return live_token(state.slots, position)
        if position < state.store.numbers[S_END]:
            return state.store.tokens[physical(state.store, position)]
        return np.int32(-1)
    length = state.slots.numbers[slot, N_LENGTH]
    if position < length:
        return token_at(state.slots, slot, position)
    if position - length < depth:
        return state.scratch.drafted[position - length]
    return np.int32(-1)


@lean_kernel
def floor_of(state: State, slot: Index, cost: float) -> Any:
    """The survival below which verifying a token costs more than it brings: its cost times the goodput."""
    learned = state.model.numbers[state.slots.numbers[slot, N_MODEL]]
    return cost * learned[M_TOKENS] / learned[M_COST]


@lean_kernel
def _push_chain(state: State, count: Index, depth: Index, parent: Index) -> Index:
    """Offer the chain's token at ``depth``; returns the new count."""
    scratch = state.scratch
    node = scratch.nodes[count]
    node[T_TOKEN] = scratch.drafted[depth]
    node[T_PARENT] = parent
    node[T_DEPTH] = depth
    node[T_CHAIN] = 1
    node[T_SOURCE] = np.int64(scratch.chain[depth, 1])
    scratch.worth[count] = scratch.chain[depth, 0]
    return count + 1


@lean_kernel
def _push_others(state: State, slot: Index, count: Index, depth: Index, parent: Index) -> Index:
    """Offer the ranked tokens at ``depth`` but the best one; returns the new count."""
    scratch, log = state.scratch, state.log
    where = state.slots.numbers[slot, N_LOG]
    depths = log.depths[where, depth]
    above = scratch.chain[depth - 1, 0] if depth > 0 else 1.0
    start = depths[D_TOKEN_START]
    for row in range(start, start + depths[D_TOKENS]):
        if row == depths[D_TOP]:
            continue
        node = scratch.nodes[count]
        node[T_TOKEN] = log.tokens[where, row, 0]
        node[T_PARENT] = parent
        node[T_DEPTH] = depth
        node[T_CHAIN] = 0
        scratch.worth[count] = above * log.probs[where, row]
        count += 1
    return count


@lean_kernel
def _find_support(state: State, slot: Index, which: Index) -> None:
    """Note the longest match that speaks for a node that starts a branch; the first one, of equals."""
    log, node = state.log, state.scratch.nodes[which]
    where = state.slots.numbers[slot, N_LOG]
    depths = log.depths[where, node[T_DEPTH]]
    start = depths[D_CANDIDATE_START]
    node[T_LENGTH] = -1
    for row in range(start, start + depths[D_CANDIDATES]):
        candidate = log.candidates[where, row]
        if candidate[TOKEN] == node[T_TOKEN] and candidate[LENGTH] > node[T_LENGTH]:
            node[T_POSITION] = candidate[POSITION]
            node[T_LENGTH] = candidate[LENGTH]
            node[T_CLASS] = candidate[CLASS]
            node[T_SOURCE] = candidate[SOURCE]


@lean_kernel
def _push_copy(state: State, slot: Index, count: Index, which: Index, parent: Index) -> Index:
    """Offer what follows the node ``which`` of a branch where it is copied from; returns the new count."""
    scratch = state.scratch
    above, node = scratch.nodes[which], scratch.nodes[count]
    token = next_token(state, slot, 0, above[T_SOURCE], above[T_POSITION] + 1)
    if token < 0:
        return count
    node[T_TOKEN] = token
    node[T_PARENT] = parent
    node[T_DEPTH] = -1
    node[T_CHAIN] = 0
    node[T_POSITION] = above[T_POSITION] + 1
    node[T_LENGTH] = min(63, above[T_LENGTH] + 1)
    node[T_CLASS] = above[T_CLASS]
    node[T_SOURCE] = above[T_SOURCE]
    model = state.slots.numbers[slot, N_MODEL]
    rate = class_rate(state, model, node[T_SOURCE], node[T_LENGTH], node[T_CLASS])
    scratch.worth[count] = scratch.worth[which] * rate
    return count + 1


@lean_kernel
def _best(state: State, count: Index) -> Any:
    """The node of the greatest survival among those offered and not taken; the first one, of equals; -1 if none is."""
    worth, nodes = state.scratch.worth, state.scratch.nodes
    found = -1
    highest = 0.0
    for row in range(count):
        if nodes[row, T_TOKEN] >= 0 and worth[row] > highest:
            highest = worth[row]
            found = row
    return found


@lean_kernel
def branch_row(state: State, slot: Index, row: Index, ceiling: Index, cost: float) -> Index:
    """Make a tree of at most ``ceiling`` nodes of the chain that was drafted into row ``row``; returns the nodes.

    Nodes stand in the order of falling survival, each behind its parent. Work: ``ceiling`` times the tokens ranked.
    """
    scratch, calls, numbers = state.scratch, state.calls, state.slots.numbers
    sources = state.log.sources
    drafted = numbers[slot, N_DRAFTED]
    for depth in range(drafted):
        scratch.chain[depth, 1] = sources[slot, depth]
    floor = floor_of(state, slot, cost)
    count = 0
    taken = 0
    # Whose children are to be offered, and at which depth of the chain they stand.
    parent, below = -1, 0
    while taken < ceiling:
        if below >= 0:
            if below < drafted:
                count = _push_chain(state, count, below, parent)
            if below < numbers[slot, N_DEPTHS]:
                count = _push_others(state, slot, count, below, parent)
        best = _best(state, count)
        if best < 0 or scratch.worth[best] < floor:
            break
        node = scratch.nodes[best]
        on_chain = node[T_CHAIN] == 1
        if not on_chain and node[T_DEPTH] >= 0:
            _find_support(state, slot, best)
        calls.tokens[row, taken] = node[T_TOKEN]
        calls.survival[row, taken] = scratch.worth[best]
        calls.parents[row, taken] = node[T_PARENT]
        sources[slot, taken] = node[T_SOURCE]
        parent, below = taken, (node[T_DEPTH] + 1 if on_chain else -1)
        if not on_chain:
            count = _push_copy(state, slot, count, best, taken)
        node[T_TOKEN] = -1
        taken += 1
    numbers[slot, N_DRAFTED] = taken
    return taken
