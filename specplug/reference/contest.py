"""Slow twin of :mod:`specplug.kernels.contest`."""

from __future__ import annotations

from typing import Any

ALONE, AGREEING, DISAGREEING = 0, 1, 2
BINS = 10
TRUST = 8.0
MEMORY = 128.0
DISCOUNT = 0.998
REVIEW, LEAST, LONGEST_PAUSE = 32.0, 0.01, 64.0


def situation_of(offers: Any, source: int, row: int) -> int:
    """Whether other sources have a first token, and the same one."""
    firsts = [
        int(offers.tokens[other, row, 0])
        for other in range(len(offers.lengths))
        if other != source and offers.lengths[other, row] > 0
    ]
    if int(offers.tokens[source, row, 0]) in firsts:
        return AGREEING
    return DISAGREEING if firsts else ALONE


def correction(contest: Any, source: int, situation: int, place: int) -> float:
    """Factor by which a source's estimates are to be taken in this situation."""
    hits, expected = contest.table[source, situation, place]
    return float((hits + TRUST) / (expected + TRUST))


def choose(contest: Any, slots: Any, offers: Any, cost: float, out: Any) -> None:
    """Take the draft with the greatest expected gain for every row; ties go to the source that comes first."""
    tokens, survival, lengths = out
    price = cost * contest.goodput[0] / contest.goodput[1]
    for row, slot in enumerate(slots.tolist()):
        drafts: list[tuple[float, int, list[float]]] = []
        for source in range(len(offers.lengths)):
            length = int(offers.lengths[source, row])
            contest.drafts[slot, source, 0] = length
            if length <= 0:
                continue
            contest.tokens[slot, source, :length] = offers.tokens[source, row, :length]
            first = float(offers.survival[source, row, 0])
            contest.first[slot, source] = first
            situation, place = situation_of(offers, source, row), min(BINS - 1, int(first * BINS))
            contest.drafts[slot, source, 1:] = (situation, place)
            factor = correction(contest, source, situation, place)
            kept: list[float] = []
            gain = 0.0
            for estimate in offers.survival[source, row, :length].tolist():
                value = min(1.0, factor * estimate)
                if value - price < 0.0:
                    break
                kept.append(value)
                gain += value - price
            if kept:
                drafts.append((gain, source, kept))
        _, winner, kept = max(drafts, key=lambda d: (d[0], -d[1]), default=(0.0, -1, []))
        lengths[row] = len(kept)
        tokens[row, : len(kept)] = offers.tokens[winner, row, : len(kept)]
        survival[row, : len(kept)] = kept
        contest.slots[slot] = (contest.slots[slot, 0] + 1, len(kept), winner)


def judge_drafts(contest: Any, slots: Any, offsets: Any, tokens: Any, cost: float) -> None:
    """Learn from what the target said. The first source is always asked."""
    for i, slot in enumerate(slots.tolist()):
        truth = tokens[int(offsets[i]) : int(offsets[i + 1])].tolist()
        taken = int(contest.slots[slot, 1])
        if not truth or taken < 0:
            continue
        matched = {}
        for source in range(contest.drafts.shape[1]):
            size = int(contest.drafts[slot, source, 0])
            if size >= 0:
                draft = contest.tokens[slot, source, :size].tolist()
                pairs = list(zip(draft, truth, strict=False))
                matched[source] = next((j for j, (a, b) in enumerate(pairs) if a != b), len(pairs))
        for source, count in matched.items():
            others = max((c for other, c in matched.items() if other != source), default=0)
            if source > 0:
                _review(contest.record[source], max(0, count - others))
            size, situation, place = (int(value) for value in contest.drafts[slot, source])
            if size > 0:
                trials = contest.table[source, situation, place]
                trials += (count > 0, contest.first[slot, source])
                if trials[1] > MEMORY:
                    trials *= 0.5
        contest.goodput[0] = DISCOUNT * contest.goodput[0] + len(truth)
        contest.goodput[1] = DISCOUNT * contest.goodput[1] + 1.0 + cost * taken
        contest.slots[slot, 1] = -1


def _review(record: Any, gained: int) -> None:
    """``record``: asked, gained, pause."""
    record[:2] += (1.0, gained)
    if gained > 0 and record[2] > 1.0:
        record[:] = (0.0, 0.0, max(1.0, record[2] / 4.0))
    elif record[0] >= REVIEW:
        barren = record[1] < LEAST * record[0]
        record[:] = (0.0, 0.0, min(LONGEST_PAUSE, 2.0 * record[2]) if barren else record[2])
