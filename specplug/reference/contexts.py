"""Slow twin of :mod:`specplug.kernels.contexts`: Python's sort over lists of tokens."""

from __future__ import annotations

from typing import Any

from specplug.reference.corpus import DEPTH, context_of, entries, token_at


def token_of(shelf: Any, position: int) -> int:
    """Token at ``position``; -1 for a separator and before the beginning."""
    return token_at(shelf, position)


def tally_entries(shelf: Any, counts: Any, marks: Any, present: Any, starts: Any) -> int:
    """Fill a tally: entries by last token, which last tokens there are, how many stand before each."""
    for position in entries(shelf):
        counts[token_of(shelf, position - 1)] += 1
    found = [token for token in range(len(counts)) if counts[token]]
    present[: len(found)] = found
    for i in range(len(found) + 1):
        starts[i] = sum(counts[token] for token in found[:i])
    return len(found)


def number_buckets(tally: Any, vocab: int, shift: int, out: Any) -> None:
    """The numbers of the section of buckets; the counts become zeros again."""
    counts = tally.counts.tolist()
    for i, token in enumerate([*tally.present.tolist(), vocab] if shift else range(vocab + 1)):
        out[i] = (token << shift if shift else 0) + sum(counts[:token])
    tally.counts[:] = 0


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
