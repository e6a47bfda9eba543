"""Slow twin of :mod:`specplug.kernels.contexts`: Python's sort over lists of tokens."""

from __future__ import annotations

from typing import Any

from specplug.reference.corpus import DEPTH, context_of, entries, token_at


def token_of(shelf: Any, position: int) -> int:
    """Token at ``position``; -1 for a separator and before the beginning."""
    return token_at(shelf, position)


def count_entries(shelf: Any, counts: Any, present: Any) -> int:
    """Add to ``counts[t]`` the number of entries whose last token is ``t``; which those are, as they come; how many."""
    lasts = [token_of(shelf, position - 1) for position in entries(shelf)]
    for token in lasts:
        counts[token] += 1
    distinct = list(dict.fromkeys(lasts))
    present[: len(distinct)] = distinct
    return len(distinct)


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
