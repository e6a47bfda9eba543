"""Do two black boxes draw from one law? A two-sample test with an exact false-alarm rate.

Each sample is a list of sequences (the first tokens of an answer). For every prefix length the sequences are
counted by their prefix, prefixes that are rare in both samples together are pooled into one cell, and Pearson's
chi-square statistic of homogeneity is taken and standardised; the largest over the lengths is the statistic. Its
p-value comes from permuting which sequence belongs to which sample (Fisher 1935; Phipson & Smyth 2010 for the
``+ 1``), so it holds for any sample size, however rare the cells are and however much the lengths depend on each
other. Pooling looks only at both samples together, which no permutation changes; it costs no false alarms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specplug.errors import SpecplugError

Tokens: TypeAlias = tuple[Hashable, ...]
Floats: TypeAlias = NDArray[np.float64]

#: Cells expected less often than this in the smaller sample are pooled.
EXPECTED = 5.0
#: Permutations are drawn in pieces of this many cell counts, to bound the memory.
_PIECE = 2_000_000


class SampleError(SpecplugError, ValueError):
    """There is nothing to compare."""


@dataclass(frozen=True)
class Comparison:
    """What two samples say about one law.

    Attributes:
        p_value: probability of a difference at least this large if both samples have one law. Never below
            ``1 / (permutations + 1)``.
        sizes: sequences per sample.
        cells: cells after pooling, per prefix length (from 1).
        length: the prefix length at which the difference is largest; 0 if there is nothing to compare, because all
            sequences are the same.
        distance: total variation distance between the two empirical laws at that length, over the pooled cells.
        prefix: the prefix that differs most there; None for the pooled cell.
        shares: the share of that prefix in each sample.
        statistic: the standardised statistic.
        null: its value under each permutation, float64 ``[permutations]``.
    """

    p_value: float
    sizes: tuple[int, int]
    cells: tuple[int, ...]
    length: int
    distance: float
    prefix: Tokens | None
    shares: tuple[float, float]
    statistic: float
    null: Floats


@dataclass(frozen=True)
class _Level:
    """The cells of one prefix length: float64 counts, and which class of sequences lies in which cell."""

    prefixes: tuple[Tokens | None, ...]
    member: Floats  # [classes, cells], 0 or 1
    expected: Floats  # [cells], in the first sample
    weight: Floats  # [cells]: 1 / expected in the first sample + 1 / expected in the second


def compare_samples(
    first: Sequence[Tokens],
    second: Sequence[Tokens],
    *,
    seed: int | Sequence[int],
    permutations: int = 9999,
    expected: float = EXPECTED,
) -> Comparison:
    """Test whether two samples of sequences come from one law.

    Args:
        first, second: sequences of any hashable items; they need not be of one length (an answer that ended).
        seed: of the permutations; the result is a function of it and of the samples.
        permutations: the p-value is a multiple of ``1 / (permutations + 1)``.
        expected: cells that are expected less often than this in the smaller sample are pooled.

    Raises:
        SampleError: a sample is empty, or ``permutations`` is not positive.

    Time is proportional to ``permutations`` times the number of different sequences of common prefixes.
    """
    sizes = len(first), len(second)
    if min(sizes) == 0:
        raise SampleError(f"both samples need at least one sequence, got {sizes[0]} and {sizes[1]}")
    if permutations < 1:
        raise SampleError(f"permutations must be at least 1, got {permutations}")
    names = _cell_names([*first, *second], min(sizes), expected)
    classes = {name: i for i, name in enumerate(dict.fromkeys(names))}
    order = np.array([classes[name] for name in names])
    totals = np.bincount(order, minlength=len(classes))
    levels = _levels(list(classes), totals, sizes)
    cells = tuple(len(level.prefixes) for level in levels)
    observed = np.bincount(order[: sizes[0]], minlength=len(classes))[None, :].astype(float)
    per_level = _statistics(observed, levels)[0]
    if not np.isfinite(per_level).any():
        return Comparison(1.0, sizes, cells, 0, 0.0, None, (1.0, 1.0), 0.0, np.zeros(permutations))
    best = int(np.argmax(per_level))
    null = _null(levels, totals, sizes[0], permutations, np.random.default_rng(seed))
    distance, prefix, shares = _largest_difference(observed[0], levels[best], sizes)
    statistic = float(per_level[best])
    p_value = (1 + int(np.sum(null >= statistic - 1e-9))) / (permutations + 1)
    return Comparison(p_value, sizes, cells, best + 1, distance, prefix, shares, statistic, null)


def combine(comparisons: Sequence[Comparison]) -> float:
    """One p-value for a difference that is spread over several independent comparisons.

    The statistics are added, and so are their values under permutation; a fault that shows a little everywhere is
    found with far fewer samples than any single comparison needs.
    """
    if not comparisons:
        raise SampleError("there are no comparisons to combine")
    total = sum(c.statistic for c in comparisons)
    null = np.sum([c.null for c in comparisons], axis=0)
    return (1 + int(np.sum(null >= total - 1e-9))) / (len(null) + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): rejecting those of at most ``alpha`` errs anywhere with probability ``alpha``."""
    adjusted = [0.0] * len(p_values)
    least = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = least
    return adjusted


def permutations_for(comparisons: int, alpha: float) -> int:
    """So many that ten of them decide the smallest p-value that Holm's correction asks for."""
    return max(9999, int(np.ceil(10 * comparisons / alpha)) - 1)


def _cell_names(
    sequences: list[Tokens], smaller: int, expected: float
) -> list[tuple[Tokens | None, ...]]:
    """Per sequence, its cell at every prefix length; None is the pooled cell."""
    longest = max(len(sequence) for sequence in sequences)
    names: list[list[Tokens | None]] = [[] for _ in sequences]
    for length in range(1, longest + 1):
        counts = Counter(sequence[:length] for sequence in sequences)
        needed = expected * len(sequences) / smaller
        for name, sequence in zip(names, sequences, strict=True):
            prefix = sequence[:length]
            name.append(prefix if counts[prefix] >= needed else None)
    return [tuple(name) for name in names]


def _levels(
    classes: list[tuple[Tokens | None, ...]], totals: NDArray[np.int64], sizes: tuple[int, int]
) -> list[_Level]:
    levels = []
    for at in range(len(classes[0])):
        prefixes = {prefix: i for i, prefix in enumerate(dict.fromkeys(c[at] for c in classes))}
        member = np.zeros((len(classes), len(prefixes)))
        for row, name in enumerate(classes):
            member[row, prefixes[name[at]]] = 1.0
        shares = totals @ member / sum(sizes)
        weight = 1 / (shares * sizes[0]) + 1 / (shares * sizes[1])
        levels.append(_Level(tuple(prefixes), member, shares * sizes[0], weight))
    return levels


def _statistics(counts: Floats, levels: list[_Level]) -> Floats:
    """Standardised chi-square per row of class counts of the first sample and per level; ``-inf`` for one cell."""
    result = np.full((len(counts), len(levels)), -np.inf)
    for at, level in enumerate(levels):
        freedom = len(level.prefixes) - 1
        if freedom > 0:
            chi_square = (counts @ level.member - level.expected) ** 2 @ level.weight
            result[:, at] = (chi_square - freedom) / np.sqrt(2 * freedom)
    return result


def _null(
    levels: list[_Level],
    totals: NDArray[np.int64],
    size: int,
    permutations: int,
    generator: np.random.Generator,
) -> Floats:
    """Shuffling labels draws the first sample's class counts from the multivariate hypergeometric law."""
    null = np.empty(permutations)
    rows = max(1, _PIECE // len(totals))
    for start in range(0, permutations, rows):
        stop = min(permutations, start + rows)
        counts = generator.multivariate_hypergeometric(
            totals, size, stop - start, method="marginals"
        )
        null[start:stop] = _statistics(counts.astype(float), levels).max(axis=1)
    return null


def _largest_difference(
    observed: Floats, level: _Level, sizes: tuple[int, int]
) -> tuple[float, Tokens | None, tuple[float, float]]:
    totals = sum(sizes) / sizes[0] * level.expected
    counts = observed @ level.member
    first, second = counts / sizes[0], (totals - counts) / sizes[1]
    most = int(np.argmax((counts - level.expected) ** 2 * level.weight))
    distance = float(np.abs(first - second).sum() / 2)
    return distance, level.prefixes[most], (float(first[most]), float(second[most]))
