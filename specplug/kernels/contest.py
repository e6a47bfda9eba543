"""Several sources draft for the same request; the draft that is expected to bring most is taken.

What a source says of its own drafts holds on average, not in the cases that decide: where two sources disagree at least
one is wrong. So the hit rate of every source's first token is counted by situation (alone, agreeing, disagreeing) and
by what the source said, and its estimates are corrected by it. All sources learn from every step, whoever drafted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from specplug.kernels._jit import lean_kernel
from specplug.kernels.datastore_layout import FloatArray, Index, IntArray, LongArray

#: Situations of a first token: no other source has one, another says the same, another says something else.
ALONE, AGREEING, DISAGREEING = 0, 1, 2
#: Bins of the estimate of a first token.
BINS = 10
#: Trials that "the source is right about itself" stands for.
TRUST = 8.0
#: Hits expected of a bin, after which both counts are halved, so that traffic may change.
MEMORY = 128.0
DISCOUNT = 0.998

#: Columns of ``drafts`` (int64): length (-1: not asked), situation, bin.
SIZE, SITUATION, BIN = 0, 1, 2
#: Columns of ``slots`` (int64): steps so far, tokens of the draft taken (-1: it was judged), its source.
STEPS, TAKEN, WINNER = 0, 1, 2
#: Columns of ``record`` (float64): asked since the last review, tokens it alone brought in them, steps between asks.
ASKED, GAINED, PAUSE = 0, 1, 2

#: A source is reviewed after so many asks; asked half as often if it brought less than LEAST tokens per ask; and
#: never less often than every LONGEST_PAUSE steps.
REVIEW, LEAST, LONGEST_PAUSE = 32.0, 0.01, 64.0


class Contest(NamedTuple):
    """State of a contest of ``S`` sources.

    Attributes:
        tokens: int32 ``[slots, S, K]``, the last drafts.
        drafts: int64 ``[slots, S, 3]``, see :data:`SIZE`.
        slots: int64 ``[slots, 3]``, see :data:`STEPS`.
        table: float64 ``[S, 3, BINS, 2]``: hits of first tokens, and what the source expected of them.
        first: float64 ``[slots, S]``, the source's estimate of its first token.
        record: float64 ``[S, 3]``, see :data:`ASKED`.
        goodput: float64 ``[2]``: tokens and cost, discounted.
    """

    tokens: IntArray
    drafts: LongArray
    slots: LongArray
    table: FloatArray
    first: FloatArray
    record: FloatArray
    goodput: FloatArray


class Offers(NamedTuple):
    """Drafts of ``S`` sources for ``B`` rows.

    Attributes:
        tokens: int32 ``[S, B, K]``.
        survival: float64 ``[S, B, K]``.
        lengths: int32 ``[S, B]``, -1 where a source was not asked.
    """

    tokens: IntArray
    survival: FloatArray
    lengths: IntArray


@lean_kernel
def situation_of(offers: Offers, source: Index, row: Index) -> Any:
    """Whether other sources have a first token, and the same one."""
    found = ALONE
    for other in range(offers.lengths.shape[0]):
        if other == source or offers.lengths[other, row] <= 0:
            continue
        if offers.tokens[other, row, 0] == offers.tokens[source, row, 0]:
            return AGREEING
        found = DISAGREEING
    return found


@lean_kernel
def correction(contest: Contest, source: Index, situation: Index, place: Index) -> Any:
    """Factor by which a source's estimates are to be taken in this situation."""
    hits, expected = (
        contest.table[source, situation, place, 0],
        contest.table[source, situation, place, 1],
    )
    return (hits + TRUST) / (expected + TRUST)


@lean_kernel
def _remember(contest: Contest, offers: Offers, source: Index, row: Index, slot: Index) -> None:
    length = offers.lengths[source, row]
    contest.drafts[slot, source, SIZE] = length
    if length <= 0:
        return
    for j in range(length):
        contest.tokens[slot, source, j] = offers.tokens[source, row, j]
    first = offers.survival[source, row, 0]
    contest.first[slot, source] = first
    contest.drafts[slot, source, SITUATION] = situation_of(offers, source, row)
    contest.drafts[slot, source, BIN] = min(BINS - 1, int(first * BINS))


@lean_kernel
def choose(contest: Contest, slots: IntArray, offers: Offers, cost: float, out: Any) -> None:
    """Take the draft with the greatest expected gain for every row; ties go to the source that comes first.

    A draft is cut where a token is expected to bring less than it costs.

    Args:
        cost: of a draft token, in plain decoding steps.
        out: tokens int32 ``[B, K]``, survival float64 ``[B, K]``, lengths int32 ``[B]``.
    """
    tokens, survival, lengths = out
    price = cost * contest.goodput[0] / contest.goodput[1]
    for row in range(slots.shape[0]):
        slot = slots[row]
        best, best_gain, best_length, best_factor = -1, 0.0, 0, 1.0
        for source in range(offers.lengths.shape[0]):
            _remember(contest, offers, source, row, slot)
            if offers.lengths[source, row] <= 0:
                continue
            situation, place = (
                contest.drafts[slot, source, SITUATION],
                contest.drafts[slot, source, BIN],
            )
            factor = correction(contest, source, situation, place)
            gain, length = 0.0, 0
            while length < offers.lengths[source, row]:
                value = min(1.0, factor * offers.survival[source, row, length]) - price
                if value < 0.0:
                    break
                gain += value
                length += 1
            if length > 0 and (best < 0 or gain > best_gain):
                best, best_gain, best_length, best_factor = source, gain, length, factor
        lengths[row] = best_length
        for j in range(best_length):
            tokens[row, j] = offers.tokens[best, row, j]
            survival[row, j] = min(1.0, best_factor * offers.survival[best, row, j])
        contest.slots[slot, STEPS] += 1
        contest.slots[slot, TAKEN], contest.slots[slot, WINNER] = best_length, best


@lean_kernel
def _matched(contest: Contest, slot: Index, source: Index, said: Any) -> Any:
    """Tokens of a source's draft that the target has said; -1 if it was not asked."""
    tokens, start, end = said
    size = contest.drafts[slot, source, SIZE]
    if size < 0:
        return -1
    count = 0
    while (
        count < size
        and start + count < end
        and contest.tokens[slot, source, count] == tokens[start + count]
    ):
        count += 1
    return count


@lean_kernel
def _count(contest: Contest, source: Index, situation: Index, place: Index, trial: Any) -> None:
    """Count a first token: whether it was right, and the source's estimate. What is long past is forgotten by half."""
    table = contest.table
    hit, expected = trial
    table[source, situation, place, 0] += 1.0 if hit else 0.0
    table[source, situation, place, 1] += expected
    if table[source, situation, place, 1] > MEMORY:
        table[source, situation, place, 0] *= 0.5
        table[source, situation, place, 1] *= 0.5


@lean_kernel
def _review(contest: Contest, source: Index, gained: Index) -> None:
    """Count an ask of a source that may be asked less; ``gained`` tokens are those that no other source had."""
    record = contest.record
    record[source, ASKED] += 1.0
    record[source, GAINED] += gained
    if gained > 0 and record[source, PAUSE] > 1.0:
        record[source, PAUSE] = max(1.0, record[source, PAUSE] / 4.0)
        record[source, ASKED] = record[source, GAINED] = 0.0
    elif record[source, ASKED] >= REVIEW:
        if record[source, GAINED] < LEAST * record[source, ASKED]:
            record[source, PAUSE] = min(LONGEST_PAUSE, 2.0 * record[source, PAUSE])
        record[source, ASKED] = record[source, GAINED] = 0.0


@lean_kernel
def judge_drafts(
    contest: Contest, slots: IntArray, offsets: LongArray, tokens: IntArray, cost: float
) -> None:
    """Learn from what the target said; see :class:`specplug.types.Observed`. The first source is always asked."""
    sources = contest.drafts.shape[1]
    for i in range(slots.shape[0]):
        slot, start, end = slots[i], offsets[i], offsets[i + 1]
        if end <= start or contest.slots[slot, TAKEN] < 0:
            continue
        said = (tokens, start, end)
        for source in range(sources):
            matched = _matched(contest, slot, source, said)
            if matched < 0:
                continue
            others = 0
            for other in range(sources):
                if other != source:
                    others = max(others, _matched(contest, slot, other, said))
            if source > 0:
                _review(contest, source, max(0, matched - others))
            if contest.drafts[slot, source, SIZE] > 0:
                situation = contest.drafts[slot, source, SITUATION]
                place = contest.drafts[slot, source, BIN]
                _count(
                    contest, source, situation, place, (matched > 0, contest.first[slot, source])
                )
        contest.goodput[0] = DISCOUNT * contest.goodput[0] + (end - start)
        contest.goodput[1] = DISCOUNT * contest.goodput[1] + 1.0 + cost * contest.slots[slot, TAKEN]
        contest.slots[slot, TAKEN] = -1
