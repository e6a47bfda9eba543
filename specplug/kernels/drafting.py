"""The suffix drafter's step: draft for a batch, and learn from what the target said.

Drafting follows the candidates: at each depth the most probable next token is taken and the candidates that
disagree with it are dropped. It stops where the probability that everything so far is accepted falls below the cost of
verifying one more token times the current goodput (tokens per unit of step time), the point from which on a longer
draft would lower the goodput.
"""

from __future__ import annotations

import math

import numpy as np

from specplug.kernels._jit import lean_kernel
from specplug.kernels.handle import unpack
from specplug.kernels.layout import (
    BY_RANK,
    CELL,
    CLASS,
    D_CANDIDATE_START,
    D_CANDIDATES,
    D_SET,
    D_TOKEN_START,
    D_TOKENS,
    KEEP,
    LENGTH,
    LINKED_PER_CALL,
    LOG_CANDIDATES,
    LOG_TOKENS,
    M_COST,
    M_TOKENS,
    M_UPDATES,
    N_CLASSES,
    N_DEPTHS,
    N_DRAFTED,
    N_FEATURES,
    N_LENGTH,
    N_MODEL,
    N_POINTER,
    N_SOURCES,
    N_TABLES,
    PAGE,
    PAGE_BITS,
    POSITION,
    S_END,
    SOURCE,
    STORE,
    TOKEN,
    FloatArray,
    Handle,
    Index,
    IntArray,
    Slots,
    State,
)
from specplug.kernels.match import find_candidates, load_context
from specplug.kernels.ranking import rank_tokens
from specplug.kernels.store import physical
from specplug.kernels.streams import append_tokens, index_some, token_at

#: Step size of the weights, the number of updates after which it has shrunk noticeably, and its floor.
STEP_SIZE = 0.02
STEP_DECAY = 1000.0
STEP_FLOOR = 0.2

#: Discount per step of the goodput estimate; trials at which a count table is halved.
DISCOUNT = 0.998
FULL = 20000.0


@lean_kernel
def _next_token(state: State, slot: Index, depth: Index, source: Index, position: Index) -> Index:
    """What follows at ``position``, -1 if nothing does. Copying may run into the draft itself."""
    if source == STORE:
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
def _enter(state: State, slot: Index, count: Index) -> Index:
    """Write the candidates found that have a next token into the first rows of the log; returns how many."""
    found, log = state.scratch.candidates, state.log.candidates[slot]
    kept = 0
    for row in range(count):
        token = _next_token(state, slot, 0, found[row, SOURCE], found[row, POSITION])
        if token >= 0:
            for field in range(TOKEN):
                log[kept, field] = found[row, field]
            log[kept, TOKEN] = token
            kept += 1
    return kept


@lean_kernel
def _advance(state: State, slot: Index, depth: Index, count: Index) -> Index:
    """Write the candidates at ``depth - 1`` that guessed the drafted token and have a next one to ``depth``.

    The first KEEP of own text and of the store survive. Returns how many do.
    """
    log, depths = state.log.candidates[slot], state.log.depths[slot]
    start, kept = depths[depth - 1, D_CANDIDATE_START], depths[depth, D_CANDIDATE_START]
    token = state.scratch.drafted[depth - 1]
    first = kept
    own = 0
    stored = 0
    for row in range(start, start + count):
        if log[row, TOKEN] != token:
            continue
        source = log[row, SOURCE]
        if source == STORE:
            stored += 1
            if stored > KEEP:
                continue
        else:
            own += 1
            if own > KEEP:
                continue
        position = log[row, POSITION] + 1
        following = _next_token(state, slot, depth, source, position)
        if following >= 0:
            log[kept, POSITION] = position
            log[kept, LENGTH] = min(63, log[row, LENGTH] + 1)
            log[kept, CLASS] = log[row, CLASS]
            log[kept, SOURCE] = source
            log[kept, TOKEN] = following
            kept += 1
    return kept - first


@lean_kernel
def _log_depth(state: State, slot: Index, depth: Index, count: Index) -> None:
    """Keep this depth in the log and open the next one behind it; what does not fit is overwritten."""
    log = state.log
    here, after = log.depths[slot, depth], log.depths[slot, depth + 1]
    token_end = here[D_TOKEN_START] + here[D_TOKENS]
    start = here[D_CANDIDATE_START]
    after[D_TOKENS] = 0
    if token_end > LOG_TOKENS or start + count > LOG_CANDIDATES:
        here[D_TOKENS] = 0
        after[D_TOKEN_START] = here[D_TOKEN_START]
        after[D_CANDIDATE_START] = start
        return
    here[D_CANDIDATES] = count
    after[D_TOKEN_START] = token_end
    after[D_CANDIDATE_START] = start + count


@lean_kernel
def draft_row(state: State, slot: Index, row: Index, ceiling: Index, cost: float) -> Index:
    """Draft for one request into row ``row`` of ``state.calls``; returns the number of tokens."""
    log, numbers = state.log, state.slots.numbers
    scratch = state.scratch
    size = load_context(state.slots, slot, scratch.context)
    log.depths[slot, 0, D_TOKENS] = 0
    log.depths[slot, 0, D_TOKEN_START] = 0
    log.depths[slot, 0, D_CANDIDATE_START] = 0
    numbers[slot, N_DEPTHS] = 0
    numbers[slot, N_DRAFTED] = 0
    count = find_candidates(state, slot, size) if size > 0 else 0
    learned = state.model.numbers[numbers[slot, N_MODEL]]
    floor = cost * learned[M_TOKENS] / learned[M_COST]
    previous = scratch.context[size - 1] if size > 0 else -1
    surviving = 1.0
    drafted = 0
    for depth in range(ceiling):
        count = _advance(state, slot, depth, count) if depth > 0 else _enter(state, slot, count)
        if count == 0:
            break
        top = rank_tokens(state, slot, depth, count, previous)
        token = log.tokens[slot, top, 0]
        probability = float(log.probs[slot, top])
        scratch.drafted[depth] = token
        _log_depth(state, slot, depth, count)
        numbers[slot, N_DEPTHS] = (
            depth + 1
        )  # ranked even if not proposed: the target's own token may judge it
        if surviving * probability < floor:
            break
        surviving *= probability
        state.calls.tokens[row, depth] = token
        state.calls.survival[row, depth] = surviving
        drafted += 1
        previous = token
    numbers[slot, N_DRAFTED] = drafted
    return drafted


@lean_kernel
def draft_batch(handle: Handle, cost: float) -> Index:
    """Draft for every slot of ``state.calls``; see :func:`draft_row`. Returns 0, or -1 (a slot is out of range)."""
    state = unpack(handle)
    calls = state.calls
    if not _slots_exist(state.slots, calls.slots):
        return -1
    width = min(calls.tokens.shape[1], state.scratch.drafted.shape[0] - 1)
    for row in range(calls.slots.shape[0]):
        ceiling = min(width, calls.ceilings[row])
        calls.lengths[row] = draft_row(state, calls.slots[row], row, ceiling, cost)
    return 0


@lean_kernel
def _slots_exist(slots: Slots, wanted: IntArray) -> bool:
    """Whether all are in range: a wrong one would write into another request's text."""
    good = True
    for slot in wanted:
        good &= 0 <= slot < slots.numbers.shape[0]
    return good


@lean_kernel
def _count_hit(table: FloatArray, row: Index, hit: float) -> None:
    """Count one trial; a full cell is halved, so that it keeps following changes."""
    table[row, 0] += hit
    table[row, 1] += 1.0
    if table[row, 1] > FULL:
        table[row, 0] *= 0.5
        table[row, 1] *= 0.5


@lean_kernel
def _learn_tokens(state: State, slot: Index, depth: Index, true: Index) -> None:
    """Update weights and token tables with the token that the target emitted at ``depth`` of the last draft."""
    log, model = state.log, state.model
    depths = log.depths[slot, depth]
    which = state.slots.numbers[slot, N_MODEL]
    model.numbers[which, M_UPDATES] += 1.0
    decay = 1.0 / math.sqrt(1.0 + model.numbers[which, M_UPDATES] / STEP_DECAY)
    step = STEP_SIZE * max(STEP_FLOOR, decay)
    w = model.weights[which]
    start = depths[D_TOKEN_START]
    for row in range(start, start + depths[D_TOKENS]):
        entry = log.tokens[slot, row]
        hit = 1.0 if entry[0] == true else 0.0
        _count_hit(model.by_token, entry[1], hit)
        _count_hit(model.by_context, entry[2], hit)
        _count_hit(model.by_recency[which], entry[3], hit)
        error = step * (hit - log.probs[slot, row])
        for f in range(N_FEATURES):
            change = error * log.features[slot, row, f]
            w[0, depths[D_SET], f] += change
            w[1, depths[D_SET + 1], f] += change
            w[2, depths[D_SET + 2], f] += change


@lean_kernel
def _learn_candidates(state: State, slot: Index, depth: Index, true: Index) -> None:
    """Update the candidate tables, and move each copy pointer behind the longest supporter of the true token."""
    log, model, numbers = state.log, state.model, state.slots.numbers
    depths = log.depths[slot, depth]
    which = numbers[slot, N_MODEL]
    longest = state.scratch.longest
    for source in range(N_SOURCES):
        longest[source] = -1
        numbers[slot, N_POINTER + source] += 1  # without a supporter copying just goes on
    start = depths[D_CANDIDATE_START]
    for row in range(start, start + depths[D_CANDIDATES]):
        c = log.candidates[slot, row]
        hit = 1.0 if c[TOKEN] == true else 0.0
        for table in range(N_TABLES):
            _count_hit(model.cells[which, table], c[CELL + table], hit)
        parent = model.parents[which, c[CELL + BY_RANK] // N_CLASSES]
        _count_hit(model.parents[which], c[CELL + BY_RANK] // N_CLASSES, hit)
        parent[2] = parent[0] / parent[1]
        parent[3] = (1.0 - parent[2]) / parent[2]
        if hit > 0.0 and c[LENGTH] > longest[c[SOURCE]]:
            longest[c[SOURCE]] = c[LENGTH]
            numbers[slot, N_POINTER + c[SOURCE]] = c[POSITION] + 1


@lean_kernel
def learn_row(state: State, slot: Index, tokens: IntArray, cost: float) -> None:
    """Learn from the tokens that the target emitted after the last draft of ``slot``."""
    numbers = state.slots.numbers
    for depth in range(min(len(tokens), numbers[slot, N_DEPTHS])):
        if state.log.depths[slot, depth, D_TOKENS] == 0:
            break
        _learn_tokens(state, slot, depth, tokens[depth])
        _learn_candidates(state, slot, depth, tokens[depth])
    if numbers[slot, N_DRAFTED] >= 0:
        learned = state.model.numbers[numbers[slot, N_MODEL]]
        learned[M_TOKENS] = DISCOUNT * learned[M_TOKENS] + len(tokens)
        learned[M_COST] = DISCOUNT * learned[M_COST] + 1.0 + cost * numbers[slot, N_DRAFTED]
    numbers[slot, N_DEPTHS] = 0
    numbers[slot, N_DRAFTED] = -1


@lean_kernel
def _pages_missing(state: State, count: Index) -> Index:
    """Pages that the new tokens need and that are not free; -1 if slots, offsets and tokens do not fit together."""
    slots, calls = state.slots, state.calls
    if not _slots_exist(slots, calls.observed) or calls.offsets[0] < 0:
        return -1
    needed = 0
    for row in range(calls.observed.shape[0]):
        new = calls.offsets[row + 1] - calls.offsets[row]
        length = slots.numbers[calls.observed[row], N_LENGTH]
        after = (length + new + PAGE - 1) >> PAGE_BITS
        if new < 0 or calls.offsets[row + 1] > count or after > slots.pages.shape[1]:
            return -1
        needed += after - ((length + PAGE - 1) >> PAGE_BITS)
    return max(0, needed - slots.free_count[0])


@lean_kernel
def observe_batch(handle: Handle, count: Index, cost: float) -> Index:
    """Learn from, append and index the ``count`` new tokens in ``state.calls``, slot by slot in the order given.

    At most LINKED_PER_CALL positions are linked; what is left of a long history follows at later calls. Returns 0, or
    what is wrong, as :func:`_pages_missing` has it; then nothing was done.
    """
    state = unpack(handle)
    missing = _pages_missing(state, count)
    if missing != 0:
        return missing
    calls = state.calls
    budget = LINKED_PER_CALL
    for row in range(calls.observed.shape[0]):
        slot = calls.observed[row]
        new = calls.news[calls.offsets[row] : calls.offsets[row + 1]]
        learn_row(state, slot, new, cost)
        append_tokens(state.slots, slot, new)
        budget -= index_some(state.slots, slot, budget)
    return 0
