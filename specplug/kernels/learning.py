"""The suffix drafter's step, second half: take in what the target said, and learn from how the last drafts fared.

Learning comes after the next draft, so that it can run while the target works: tables and weights are one step behind,
which costs nothing measurable. What a draft needs at once, the new text and the copy pointers, is up to date.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specplug.kernels._jit import inlined_kernel, lean_kernel
from specplug.kernels.calibration import learn_survival
from specplug.kernels.handle import unpack
from specplug.kernels.layout import (
    AGE,
    CLASS,
    D_CANDIDATE_START,
    D_CANDIDATES,
    D_SET,
    D_TOKEN_START,
    D_TOKENS,
    D_TOP,
    LENGTH,
    LINKED_PER_CALL,
    M_COST,
    M_TOKENS,
    M_UPDATES,
    N_CHAIN,
    N_COUNTED,
    N_DEPTHS,
    N_DRAFTED,
    N_EMITTED,
    N_FEATURES,
    N_JUDGED,
    N_KNOWN,
    N_LENGTH,
    N_LOG,
    N_MODEL,
    N_OUTCOME,
    N_PENDING,
    N_POINTER,
    N_SOURCES,
    NEAR,
    PAGE,
    PAGE_BITS,
    PARENT,
    POSITION,
    RAREST,
    SOURCE,
    TOKEN,
    FloatArray,
    Handle,
    Index,
    IntArray,
    State,
)
from specplug.kernels.live import show_answers
from specplug.kernels.streams import append_tokens, index_some, slots_exist, token_at

#: Step size of the weights, the number of updates after which it has shrunk noticeably, and its floor.
STEP_SIZE = 0.02
STEP_DECAY = 1000.0
STEP_FLOOR = 0.2

#: Discount per step of the goodput estimate; trials at which a count table is halved.
DISCOUNT = 0.998
FULL = 20000.0


@inlined_kernel
def _count_hit(cell: Any, hit: Any) -> None:
    """Count one trial; a full cell is halved, so that it keeps following changes.

    ``hit`` is a float32, lest the cells of float32 be converted and back; the sums are the same.
    """
    cell[0] += hit
    cell[1] += np.float32(1.0)
    if cell[1] > FULL:
        cell[0] *= 0.5
        cell[1] *= 0.5


@inlined_kernel
def _learn_tokens(state: State, where: Index, which: Index, depth: Index, true: Index) -> None:
    """Update weights and token tables of model ``which`` with the token that the target emitted at ``depth``."""
    log, model, slope = state.log, state.model, state.scratch.weights
    depths = log.depths[where, depth]
    model.numbers[which, M_UPDATES] += 1.0
    decay = 1.0 / math.sqrt(1.0 + model.numbers[which, M_UPDATES] / STEP_DECAY)
    step = STEP_SIZE * max(STEP_FLOOR, decay)
    for f in range(N_FEATURES):
        slope[f] = 0.0
    start = depths[D_TOKEN_START]
    for row in range(start, start + depths[D_TOKENS]):
        entry = log.tokens[where, row]
        hit = np.float32(1.0 if entry[0] == true else 0.0)
        _count_hit(model.by_token[np.uint64(entry[1])], hit)
        _count_hit(model.by_context[np.uint64(entry[2])], hit)
        _count_hit(model.by_recency[which, np.uint64(entry[3])], hit)
        error = step * (hit - log.probs[where, row])
        for f in range(N_FEATURES):
            slope[f] += error * log.features[where, row, f]
    w = model.weights[which]
    for f in range(N_FEATURES):
        w[0, depths[D_SET], f] += slope[f]
        w[1, depths[D_SET + 1], f] += slope[f]
        w[2, depths[D_SET + 2], f] += slope[f]


@inlined_kernel
def _weigh_parent(parent: FloatArray) -> None:
    """The hit rate of a source and match length, and the odds against a hit; both keep away from 0.

    Halved again and again, the misses of a text that only repeats itself are lost in rounding.
    """
    parent[2] = min(1.0 - RAREST, max(RAREST, parent[0] / parent[1]))
    parent[3] = (1.0 - parent[2]) / parent[2]


@inlined_kernel
def _learn_candidates(state: State, where: Index, which: Index, depth: Index, true: Index) -> None:
    """Update the candidate tables of model ``which``."""
    depths = state.log.depths[where, depth]
    candidates = state.log.candidates[where]
    cells, parents = state.model.cells[which], state.model.parents[which]
    start = depths[D_CANDIDATE_START]
    before = np.int64(-1)
    for row in range(start, start + depths[D_CANDIDATES]):
        c = candidates[row]
        place = c[PARENT]
        hit = np.float32(1.0 if c[TOKEN] == true else 0.0)
        own = cells[np.uint64(place)]
        _count_hit(own[np.uint64(c[CLASS])], hit)
        _count_hit(own[np.uint64(c[NEAR])], hit)
        _count_hit(own[np.uint64(c[AGE])], hit)
        _count_hit(parents[place], hit)
        if place != before and before >= 0:
            _weigh_parent(parents[before])
        before = place
    if before >= 0:
        _weigh_parent(parents[before])


@inlined_kernel
def _move_pointers(state: State, slot: Index, depth: Index, true: Index) -> None:
    """Move each copy pointer behind the longest supporter of the true token (the first one, of equals)."""
    log, numbers = state.log, state.slots.numbers
    where = numbers[slot, N_LOG]
    depths = log.depths[where, depth]
    longest = state.scratch.longest
    for source in range(N_SOURCES):
        longest[source] = -1
        numbers[slot, N_POINTER + source] += 1  # without a supporter copying just goes on
    start = depths[D_CANDIDATE_START]
    for row in range(start, start + depths[D_CANDIDATES]):
        c = log.candidates[where, row]
        if c[TOKEN] == true and c[LENGTH] > longest[c[SOURCE]]:
            longest[c[SOURCE]] = c[LENGTH]
            numbers[slot, N_POINTER + c[SOURCE]] = c[POSITION] + 1


@lean_kernel
def note_outcome(state: State, slot: Index, tokens: IntArray) -> None:
    """The target emitted ``tokens`` after the last draft of ``slot``: move the copy pointers, learn the rest later.

    The tokens are about to be appended to the stream, where :func:`learn_row` finds them.
    """
    numbers = state.slots.numbers
    if numbers[slot, N_DRAFTED] < 0:
        return
    where = numbers[slot, N_LOG]
    known = min(len(tokens), numbers[slot, N_DEPTHS])
    for depth in range(known):
        depths = state.log.depths[where, depth]
        if depths[D_TOKENS] == 0:
            known = depth
            break
        _move_pointers(state, slot, depth, tokens[depth])
        if state.log.tokens[where, depths[D_TOP], 0] != tokens[depth]:
            # What was ranked further on stands behind another token, also if a branch of a tree went on here.
            known = depth + 1
            break
    numbers[slot, N_PENDING] = numbers[slot, N_LOG]
    numbers[slot, N_KNOWN] = known
    numbers[slot, N_OUTCOME] = numbers[slot, N_LENGTH]
    numbers[slot, N_EMITTED] = len(tokens)
    numbers[slot, N_COUNTED] = numbers[slot, N_DRAFTED]
    numbers[slot, N_JUDGED] = numbers[slot, N_CHAIN]
    numbers[slot, N_DEPTHS] = 0
    numbers[slot, N_DRAFTED] = -1
    pending = state.slots.pending
    pending[0] += 1
    pending[pending[0]] = slot


@lean_kernel
def learn_row(state: State, slot: Index, cost: float) -> None:
    """Learn from the outcome that was noted of ``slot``."""
    numbers = state.slots.numbers
    where, which = numbers[slot, N_PENDING], numbers[slot, N_MODEL]
    for depth in range(numbers[slot, N_KNOWN]):
        true = token_at(state.slots, slot, numbers[slot, N_OUTCOME] + depth)
        _learn_tokens(state, where, which, depth, true)
        _learn_candidates(state, where, which, depth, true)
    learn_survival(state, slot, where)
    learned = state.model.numbers[which]
    learned[M_TOKENS] = DISCOUNT * learned[M_TOKENS] + numbers[slot, N_EMITTED]
    learned[M_COST] = DISCOUNT * learned[M_COST] + 1.0 + cost * numbers[slot, N_COUNTED]
    numbers[slot, N_PENDING] = -1


@lean_kernel
def learn_batch(handle: Handle, cost: float) -> None:
    """Learn from all outcomes noted, in their order. Nobody waits for it: it may run beside the target."""
    state = unpack(handle)
    pending = state.slots.pending
    for place in range(1, pending[0] + 1):
        learn_row(state, pending[place], cost)
    pending[0] = 0


@lean_kernel
def _pages_missing(state: State, count: Index) -> Index:
    """Pages that the new tokens need and that are not free; -1 if slots, offsets and tokens do not fit together."""
    slots, calls = state.slots, state.calls
    if not slots_exist(slots, calls.observed) or calls.offsets[0] < 0:
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
def observe_batch(handle: Handle, tokens: IntArray, cost: float) -> Index:
    """Append and index new ``tokens``, slot by slot in the order given in ``state.calls``.

    What the call before has noted is learned from first, unless that was done meanwhile; how the last drafts fared
    is noted.
    At most LINKED_PER_CALL positions are linked; what is left of a long history follows at later calls. Returns 0, or
    what is wrong, as :func:`_pages_missing` has it; then nothing was done.
    """
    state = unpack(handle)
    missing = _pages_missing(state, len(tokens))
    if missing != 0:
        return missing
    learn_batch(handle, cost)
    calls = state.calls
    budget = LINKED_PER_CALL
    for row in range(calls.observed.shape[0]):
        slot = calls.observed[row]
        new = tokens[calls.offsets[row] : calls.offsets[row + 1]]
        note_outcome(state, slot, new)
        append_tokens(state.slots, slot, new)
        budget -= index_some(state.slots, slot, budget)
    show_answers(state.slots, calls.observed)
    return 0
