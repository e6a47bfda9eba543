"""Slow twin of :mod:`specplug.kernels.earlier`: a table is a set of tuples, and every window is looked at."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

Window = tuple[int, ...]


def longer_hash(before: Window, token: int) -> Window:
    """A window that is one token longer; start with ()."""
    return (*before, token)


def pair_hash(token: int, following: int) -> Window:
    """Two neighbouring tokens."""
    return (token, following)


def add_windows(table: set[Window], text: Sequence[int], start: int, longest: int) -> None:
    """Put the windows that begin at ``start`` into a table, up to ``longest`` tokens or the end of the text."""
    for length in range(1, min(longest, len(text) - start) + 1):
        table.add(tuple(text[start : start + length]))


def add_text(table: set[Window], text: Sequence[int], limit: int) -> None:
    """Put all windows of a text into a table."""
    for start in range(len(text)):
        add_windows(table, text, start, limit)


def longest_earlier(
    text: Sequence[int],
    wanted: set[Window],
    own: set[Window],
    new: set[Window],
    old: set[Window],
    limit: int,
    out: list[int],
) -> None:
    """For the last ``len(out)`` positions of a text: how many tokens from there on stood anywhere earlier."""
    first = len(text) - len(out)
    for start in range(len(text)):
        if start >= first:
            lengths = range(1, min(limit, len(text) - start) + 1)
            windows = [tuple(text[start : start + n]) for n in lengths]
            out[start - first] = max((len(w) for w in windows if w in own | new | old), default=0)
        # The kernel leaves out windows that nobody asks about; that changes no answer.
        add_windows(own, text, start, limit)


def mark_pairs(text: Sequence[int], wanted: set[Window]) -> None:
    """Add every pair of neighbours in a text."""
    wanted.update(itertools.pairwise(text))


def count_pairs(text: Sequence[int], wanted: set[Window]) -> int:
    """How many pairs of neighbours in a text are wanted."""
    return sum(pair in wanted for pair in itertools.pairwise(text))
