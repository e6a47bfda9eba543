"""The best set of layers to skip by trying all of them: what the searches are measured against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations


def best_skip_set(
    score: Callable[[frozenset[int]], float], candidates: Sequence[int], size: int
) -> tuple[frozenset[int], float]:
    """The set of ``size`` candidates with the largest score, and that score.

    Ties go to the set that comes first in the order of ``candidates``. Calls ``score`` once per set:
    ``C(len(candidates), size)`` times.
    """
    sets: Iterable[frozenset[int]] = map(frozenset, combinations(candidates, size))
    best = max(sets, key=score)
    return best, score(best)
