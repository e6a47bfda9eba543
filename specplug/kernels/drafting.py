"""The suffix drafter's step, first half: draft for a batch.

Drafting follows the candidates: at each depth the most probable next token is taken and the candidates that
disagree with it are dropped. It stops where the probability that everything so far is accepted falls below the cost of
verifying one more token times the current goodput (tokens per unit of step time), the point from which on a longer
draft would lower the goodput.
"""

from __future__ import annotations

from specplug.kernels._jit import inlined_kernel, lean_kernel
from specplug.kernels.branching import branch_row, floor_of, next_token
from specplug.kernels.calibration import corrected, own_ratio
from specplug.kernels.candidates import find_candidates
from specplug.kernels.handle import unpack
from specplug.kernels.layout import (
    AGE,
    CLASS,
    D_CANDIDATE_START,
    D_CANDIDATES,
    D_TOKEN_START,
    D_TOKENS,
    D_TOP,
    FIRST_AGE,
    FIRST_NEAR,
    KEEP,
    LENGTH,
    LOG_CANDIDATES,
    LOG_TOKENS,
    N_CHAIN,
    N_DEPTHS,
    N_DRAFTED,
    N_LENGTH,
    N_LOG,
    N_PENDING,
    N_POINTER,
    NEAR,
    POSITION,
    S_END,
    SOURCE,
    STORE,
    TOKEN,
    Handle,
    Index,
    State,
)
from specplug.kernels.match import load_context
from specplug.kernels.quick import floor_log2
from specplug.kernels.ranking import rank_tokens, source_of
from specplug.kernels.streams import slots_exist, token_at


@inlined_kernel
def _enter(state: State, slot: Index, where: Index, count: Index) -> Index:
    """Write the candidates found that have a next token into the first rows of the log; returns how many.

    Nearness to the copy pointer and age stay the same however far a candidate is followed.
    """
    found, log = state.scratch.candidates, state.log.candidates[where]
    numbers = state.slots.numbers[slot]
    kept = 0
    for row in range(count):
        source, position = found[row, SOURCE], found[row, POSITION]
        token = next_token(state, slot, 0, source, position)
        if token >= 0:
            for field in range(TOKEN):
                log[kept, field] = found[row, field]
            log[kept, TOKEN] = token
            offset = position - numbers[N_POINTER + source]
            end = state.store.numbers[S_END] if source == STORE else numbers[N_LENGTH]
            near = 2 if offset == 0 else (1 if -16 < offset < 48 else 0)
            log[kept, NEAR] = FIRST_NEAR + near
            # What is being written is the youngest of the store; nothing else of it is ever that young.
            log[kept, AGE] = FIRST_AGE + min(11, floor_log2(max(1, end - position)))
            kept += 1
    return kept


@inlined_kernel
def _advance(state: State, slot: Index, where: Index, depth: Index, count: Index) -> Index:
    """Write the candidates at ``depth - 1`` that guessed the drafted token and have a next one to ``depth``.

    The first KEEP of own text and of the store survive. Returns how many do.
    """
    log, depths = state.log.candidates[where], state.log.depths[where]
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
        following = next_token(state, slot, depth, source, position)
        if following >= 0:
            log[kept, POSITION] = position
            log[kept, LENGTH] = min(63, log[row, LENGTH] + 1)
            log[kept, CLASS] = log[row, CLASS]
            log[kept, SOURCE] = source
            log[kept, TOKEN] = following
            log[kept, NEAR] = log[row, NEAR]
            log[kept, AGE] = log[row, AGE]
            kept += 1
    return kept - first


@inlined_kernel
def _log_depth(state: State, where: Index, depth: Index, count: Index) -> None:
    """Keep this depth in the log and open the next one behind it; what does not fit is overwritten."""
    log = state.log
    here, after = log.depths[where, depth], log.depths[where, depth + 1]
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
    # The log whose outcome waits to be learned from must stay; the other one is free.
    where = 2 * slot + (1 if numbers[slot, N_PENDING] == 2 * slot else 0)
    numbers[slot, N_LOG] = where
    size = load_context(state.slots, slot, scratch.context)
    log.depths[where, 0, D_TOKENS] = 0
    log.depths[where, 0, D_TOKEN_START] = 0
    log.depths[where, 0, D_CANDIDATE_START] = 0
    numbers[slot, N_DEPTHS] = 0
    numbers[slot, N_DRAFTED] = 0
    count = find_candidates(state, slot, size)
    floor = floor_of(state, slot, cost)
    previous = token_at(state.slots, slot, numbers[slot, N_LENGTH] - 1) if size > 0 else -1
    own = own_ratio(state, slot)
    surviving = said = 1.0
    drafted = 0
    for depth in range(ceiling):
        count = (
            _advance(state, slot, where, depth, count)
            if depth > 0
            else _enter(state, slot, where, count)
        )
        if count == 0:
            break
        top = rank_tokens(state, slot, depth, count, previous)
        log.depths[where, depth, D_TOP] = top
        token = log.tokens[where, top, 0]
        probability = float(log.probs[where, top])
        scratch.drafted[depth] = token
        source = source_of(state, slot, depth, top)
        _log_depth(state, where, depth, count)
        numbers[slot, N_DEPTHS] = (
            depth + 1
        )  # ranked even if not proposed: the target's own token may judge it
        if surviving * probability < floor:
            break
        surviving *= probability
        state.calls.tokens[row, depth] = token
        said *= corrected(state, slot, probability, surviving, own)
        scratch.chain[depth, 0] = surviving
        state.calls.survival[row, depth] = said
        log.sources[slot, depth] = source
        drafted += 1
        previous = token
    numbers[slot, N_DRAFTED] = drafted
    numbers[slot, N_CHAIN] = drafted
    return drafted


@lean_kernel
def draft_batch(handle: Handle, first: Index, end: Index, cost: float) -> Index:
    """Draft for rows ``first .. end - 1`` of ``state.calls``; see :func:`draft_row`.

    Returns 0, or -1 if a slot is out of range; then nothing was done. Rows do not depend on each other, so that
    threads may share a batch, each with a scratch of its own.
    """
    state = unpack(handle)
    calls = state.calls
    if not slots_exist(state.slots, calls.slots):
        return -1
    width = min(calls.tokens.shape[1], state.scratch.drafted.shape[0] - 1)
    for row in range(first, end):
        ceiling = min(width, calls.ceilings[row])
        drafted = draft_row(state, calls.slots[row], row, ceiling, cost)
        if calls.parents.shape[0] > 0:
            drafted = branch_row(state, calls.slots[row], row, ceiling, cost)
        calls.lengths[row] = drafted
    return 0
