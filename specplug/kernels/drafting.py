"""The suffix drafter's step: draft for a batch, and learn from what the target said.

Drafting follows the candidates: at each depth the most probable next token is taken and the candidates that
disagree with it are dropped. It stops where the probability that everything so far is accepted falls below the cost of
verifying one more token times the current goodput (tokens per unit of step time), the point from which on a longer
draft would lower the goodput.
"""

from __future__ import annotations

from specplug.kernels._jit import lean_kernel
from specplug.kernels.handle import unpack
from specplug.kernels.layout import (
    BY_AGE,
    BY_NEAR,
    BY_RANK,
    CANDIDATE_FIELDS,
    CELL,
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
    N_DEPTHS,
    N_DRAFTED,
    N_FEATURES,
    N_LENGTH,
    N_MODEL,
    N_POINTER,
    N_SOURCES,
    PAGE,
    PAGE_BITS,
    PARENT,
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
def _next_tokens(state: State, slot: Index, depth: Index, count: Index) -> Index:
    """Keep the candidates that have a next token, and write it. Copying may run into the draft itself."""
    slots, store, candidates = state.slots, state.store, state.scratch.candidates
    length = slots.numbers[slot, N_LENGTH]
    end = store.numbers[S_END]
    kept = 0
    for row in range(count):
        position = candidates[row, POSITION]
        token: Index = -1
        if candidates[row, SOURCE] == STORE:
            if position < end:
                token = store.tokens[physical(store, position)]
        elif position < length:
            token = token_at(slots, slot, position)
        elif position - length < depth:
            token = state.scratch.drafted[position - length]
        if token >= 0:
            for field in range(CANDIDATE_FIELDS):
                candidates[kept, field] = candidates[row, field]
            candidates[kept, TOKEN] = token
            kept += 1
    return kept


@lean_kernel
def _follow(state: State, token: Index, count: Index) -> Index:
    """Advance the candidates that guessed ``token``; the first KEEP of own text and of the store survive."""
    candidates = state.scratch.candidates
    kept = 0
    own = 0
    stored = 0
    for row in range(count):
        if candidates[row, TOKEN] != token:
            continue
        if candidates[row, SOURCE] == STORE:
            stored += 1
            if stored > KEEP:
                continue
        else:
            own += 1
            if own > KEEP:
                continue
        for field in range(CANDIDATE_FIELDS):
            candidates[kept, field] = candidates[row, field]
        candidates[kept, POSITION] += 1
        candidates[kept, LENGTH] = min(63, candidates[kept, LENGTH] + 1)
        kept += 1
    return kept


@lean_kernel
def _log_depth(state: State, slot: Index, depth: Index, count: Index) -> None:
    """Keep the candidates of this depth in the log and open the next depth; what does not fit is forgotten."""
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
    for row in range(count):
        for field in range(CANDIDATE_FIELDS):
            log.candidates[slot, start + row, field] = state.scratch.candidates[row, field]
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
        count = _next_tokens(state, slot, depth, count)
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
        count = _follow(state, token, count)
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
    step = STEP_SIZE * max(STEP_FLOOR, (1.0 + model.numbers[which, M_UPDATES] / STEP_DECAY) ** -0.5)
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
    for source in range(N_SOURCES):
        longest = -1
        pointer = numbers[slot, N_POINTER + source] + 1  # without a supporter copying just goes on
        for row in range(depths[D_CANDIDATES]):
            c = log.candidates[slot, depths[D_CANDIDATE_START] + row]
            if c[SOURCE] != source:
                continue
            hit = 1.0 if c[TOKEN] == true else 0.0
            for table in (BY_RANK, BY_NEAR, BY_AGE):
                _count_hit(model.cells[which, table], c[CELL + table], hit)
            _count_hit(model.parents[which], c[PARENT], hit)
            if hit > 0.0 and c[LENGTH] > longest:
                longest = c[LENGTH]
                pointer = c[POSITION] + 1
        numbers[slot, N_POINTER + source] = pointer


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
def _pages_missing(state: State, tokens: IntArray) -> Index:
    """Pages that the new tokens need and that are not free; -1 if slots, offsets and tokens do not fit together."""
    slots, calls = state.slots, state.calls
    if not _slots_exist(slots, calls.observed) or calls.offsets[0] < 0:
        return -1
    needed = 0
    for row in range(calls.observed.shape[0]):
        new = calls.offsets[row + 1] - calls.offsets[row]
        length = slots.numbers[calls.observed[row], N_LENGTH]
        after = (length + new + PAGE - 1) >> PAGE_BITS
        if new < 0 or calls.offsets[row + 1] > tokens.shape[0] or after > slots.pages.shape[1]:
            return -1
        needed += after - ((length + PAGE - 1) >> PAGE_BITS)
    return max(0, needed - slots.free_count[0])


@lean_kernel
def observe_batch(handle: Handle, tokens: IntArray, cost: float) -> Index:
    """Learn from, append and index the new tokens of every slot of ``state.calls``, in the order given.

    At most LINKED_PER_CALL positions are linked; what is left of a long history follows at later calls. Returns 0, or
    what is wrong, as :func:`_pages_missing` has it; then nothing was done.
    """
    state = unpack(handle)
    missing = _pages_missing(state, tokens)
    if missing != 0:
        return missing
    calls = state.calls
    budget = LINKED_PER_CALL
    for row in range(calls.observed.shape[0]):
        slot = calls.observed[row]
        new = tokens[calls.offsets[row] : calls.offsets[row + 1]]
        learn_row(state, slot, new, cost)
        append_tokens(state.slots, slot, new)
        budget -= index_some(state.slots, slot, budget)
    return 0
