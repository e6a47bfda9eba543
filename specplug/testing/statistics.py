"""Do two black boxes draw from one law? A two-sample test with an exact false-alarm rate.

Each sample is a list of sequences (the first tokens of an answer). For every prefix length the sequences are
counted by their prefix, twice: with prefixes that are rare in both samples together pooled into one cell, and with
the most frequent prefix against all others. Of each such table Pearson's chi-square statistic of homogeneity is
taken and brought to one scale (Wilson & Hilferty 1931); the largest is the statistic. Its p-value comes from
permuting which sequence belongs to which sample (Fisher 1935; Phipson & Smyth 2010 for the ``+ 1``), so it holds for
any sample size, however rare the cells are and however much the tables depend on each other. Pooling looks only at
both samples together, which no permutation changes; it costs no false alarms. Permuting stops early where the
p-value is large anyway (Besag & Clifford 1991), which keeps it exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specplug.errors import SpecplugError

Tokens: TypeAlias = tuple[Hashable, ...]
Floats: TypeAlias = NDArray[np.float64]
Draw: TypeAlias = Callable[[int, np.random.Generator], Floats]

#: Cells expected less often than this in the smaller sample are pooled.
EXPECTED = 5.0
#: Permuting stops when so many were at least as extreme as what was seen; p-values below a tenth need more.
ENOUGH = 100
#: Permutations are drawn in pieces of at most this many cell counts, to bound the memory.
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
        tables: prefix length and number of cells (0 stands for all that are left after pooling) of each table.
        statistics: of each table, roughly standard normal if the laws are equal; the largest counts.
        draw: their values under random permutations, float64 ``[count, tables]``, for :func:`combine`.
    """

    p_value: float
    sizes: tuple[int, int]
    cells: tuple[int, ...]
    length: int = 0
    distance: float = 0.0
    prefix: Tokens | None = None
    shares: tuple[float, float] = (1.0, 1.0)
    tables: tuple[tuple[int, int], ...] = ()
    statistics: tuple[float, ...] = ()
    draw: Draw = field(
        default=lambda count, generator: np.zeros((count, 0)), repr=False, compare=False
    )


@dataclass(frozen=True)
class _Level:
    """One table: the cells of one prefix length, and which class of sequences lies in which cell."""

    length: int
    kind: int  # number of cells if that was fixed beforehand, else 0
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
        seed: of the permutations; the result is a function of it and of the samples as sets.
        permutations: at most so many are drawn.
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
    # Sorted, so that the order in which answers arrived changes nothing.
    classes = {name: i for i, name in enumerate(sorted(set(names), key=repr))}
    order = np.array([classes[name] for name in names])
    totals = np.bincount(order, minlength=len(classes))
    levels = _levels(list(classes), totals, sizes)
    cells = tuple(len(set(column)) for column in zip(*classes, strict=True))
    observed = np.bincount(order[: sizes[0]], minlength=len(classes))[None, :].astype(float)
    if not levels:
        return Comparison(1.0, sizes, cells)
    per_level = _statistics(observed, levels)[0]
    best = int(np.argmax(per_level))
    draw = _shuffler(levels, totals, sizes[0])
    p_value = _sequential(
        float(per_level[best]), lambda count, g: draw(count, g).max(axis=1), permutations, seed
    )
    distance, prefix, shares = _largest_difference(observed[0], levels[best], sizes)
    return Comparison(
        p_value,
        sizes,
        cells,
        levels[best].length,
        distance,
        prefix,
        shares,
        tuple((level.length, level.kind) for level in levels),
        tuple(per_level.tolist()),
        draw,
    )


def combine(
    comparisons: Sequence[Comparison], *, seed: int | Sequence[int], permutations: int = 9999
) -> float:
    """One p-value for a difference that is spread over several independent comparisons.

    The statistics of tables of one kind are added, and the largest sum counts; the same is done with their values
    under permutation. A fault that shows a little everywhere is found with far fewer samples than any single
    comparison needs.

    Raises:
        SampleError: there are no comparisons, or ``permutations`` is not positive.
    """
    if not comparisons or permutations < 1:
        raise SampleError(
            f"at least 1 comparison and 1 permutation are needed, got {len(comparisons)} and {permutations}"
        )
    columns = {key: i for i, key in enumerate(sorted({k for c in comparisons for k in c.tables}))}
    places = [[columns[key] for key in c.tables] for c in comparisons]
    scale = np.sqrt(np.bincount([p for row in places for p in row], minlength=len(columns)))
    if not columns:
        return 1.0

    def largest(values: Sequence[Floats]) -> Floats:
        sums = np.zeros((len(values[0]), len(columns)))
        for place, value in zip(places, values, strict=True):
            sums[:, place] += value
        result: Floats = (sums / scale).max(axis=1)
        return result

    def draw(count: int, generator: np.random.Generator) -> Floats:
        return largest([c.draw(count, generator) for c in comparisons])

    observed = largest([np.array([c.statistics]) for c in comparisons])
    return _sequential(float(observed[0]), draw, permutations, seed)


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
        names = tuple(prefixes)
        if len(names) > 1:
            levels.append(_level((at + 1, 0), names, member, totals, sizes))
        if len(names) > 2:
            most = int(np.argmax(totals @ member))
            two = np.stack([member[:, most], 1.0 - member[:, most]], axis=1)
            levels.append(_level((at + 1, 2), (names[most], None), two, totals, sizes))
    return levels


def _level(
    table: tuple[int, int],
    prefixes: tuple[Tokens | None, ...],
    member: Floats,
    totals: NDArray[np.int64],
    sizes: tuple[int, int],
) -> _Level:
    shares = totals @ member / sum(sizes)
    weight = 1 / (shares * sizes[0]) + 1 / (shares * sizes[1])
    return _Level(*table, prefixes, member, shares * sizes[0], weight)


def _statistics(counts: Floats, levels: list[_Level]) -> Floats:
    """Chi-square of each level, as a roughly standard normal number, per row of class counts of the first sample."""
    result = np.empty((len(counts), len(levels)))
    for at, level in enumerate(levels):
        freedom = len(level.prefixes) - 1
        chi_square = (counts @ level.member - level.expected) ** 2 @ level.weight
        spread = 2 / (9 * freedom)
        result[:, at] = (np.cbrt(chi_square / freedom) - 1 + spread) / np.sqrt(spread)
    return result


def _shuffler(levels: list[_Level], totals: NDArray[np.int64], size: int) -> Draw:
    """Shuffling labels draws the first sample's class counts from the multivariate hypergeometric law."""

    def draw(count: int, generator: np.random.Generator) -> Floats:
        found = []
        most = max(1, _PIECE // len(totals))
        for start in range(0, count, most):
            counts = generator.multivariate_hypergeometric(
                totals, size, min(most, count - start), method="marginals"
            )
            found.append(_statistics(counts.astype(float), levels))
        return np.concatenate(found)

    return draw


def _sequential(
    statistic: float, draw: Draw, permutations: int, seed: int | Sequence[int]
) -> float:
    """The exact p-value of Besag & Clifford: extreme / drawn at the draw that makes it :data:`ENOUGH`."""
    generator = np.random.default_rng(seed)
    extreme, drawn = 0, 0
    while drawn < permutations:
        values = draw(min(permutations - drawn, max(2 * ENOUGH, drawn)), generator)
        # Rounding must not make an equal value a smaller one.
        running = extreme + np.cumsum(values >= statistic - 1e-9)
        if running[-1] >= ENOUGH:
            return ENOUGH / (drawn + 1 + int(np.searchsorted(running, ENOUGH)))
        extreme, drawn = int(running[-1]), drawn + len(values)
    return (1 + extreme) / (permutations + 1)


def _largest_difference(
    observed: Floats, level: _Level, sizes: tuple[int, int]
) -> tuple[float, Tokens | None, tuple[float, float]]:
    totals = sum(sizes) / sizes[0] * level.expected
    counts = observed @ level.member
    first, second = counts / sizes[0], (totals - counts) / sizes[1]
    # Of two cells that differ alike, the one with a name.
    most = 0 if level.kind else int(np.argmax((counts - level.expected) ** 2 * level.weight))
    distance = float(np.abs(first - second).sum() / 2)
    return distance, level.prefixes[most], (float(first[most]), float(second[most]))
