"""Slow twin of :mod:`specplug.kernels.contexts`: Python's sort over lists of tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from specplug.reference.corpus import DEPTH, context_of, entries, token_at


def token_of(shelf: Any, position: int) -> int:
    """Token at ``position``; -1 for a separator and before the beginning."""
    return token_at(shelf, position)


def count_entries(shelf: Any, counts: Any) -> None:
    """Add to ``counts[t]`` the number of entries whose last token is ``t``."""
    for position in entries(shelf):
        counts[token_of(shelf, position - 1)] += 1


def collect_entries(shelf: Any, low: int, high: int, places: Any, out: Any) -> None:
    """Positions whose last token lies in ``low .. high - 1``, from ``out[places[t - low]]`` on for each ``t``."""
    for position in entries(shelf):
        before = token_of(shelf, position - 1)
        if low <= before < high:
            out[places[before - low]] = position
            places[before - low] += 1


def sort_entries(shelf: Any, work: Any) -> None:
    """Sort ``work.positions`` by context, then position; mark what agrees as deep as contexts go."""
    depth = int(shelf[1][DEPTH])
    work.positions[:] = sorted(work.positions, key=lambda p: (context_of(shelf, int(p)), int(p)))
    contexts = [context_of(shelf, int(position)) for position in work.positions]
    for i, context in enumerate(contexts):
        work.same[i] = i > 0 and context == contexts[i - 1] and len(context) == depth


def rank_entries(work: Any, first: int, ranks: Any) -> None:
    """``ranks`` of each position: ``first`` plus the place of its run in ``work``, from 1 on."""
    for i, position in enumerate(work.positions):
        ranks[position] = ranks[work.positions[i - 1]] if work.same[i] else first + i + 1


def refine_entries(work: Any, ranks: Any, back: int) -> bool:
    """Sort every run by the ranks of the positions ``back`` before; returns whether anything is left to compare."""
    starts = [i for i, same in enumerate(work.same) if not same]
    for start, end in pairwise([*starts, len(work.positions)]):
        if end - start == 1:
            continue  # may have fewer than ``back`` tokens before it
        run = sorted(work.positions[start:end], key=lambda p: (ranks[p - back], p))
        work.positions[start:end] = run
        for i in range(start + 1, end):
            rank = ranks[work.positions[i] - back]
            work.same[i] = rank > 0 and rank == ranks[work.positions[i - 1] - back]
    return bool(any(work.same))
