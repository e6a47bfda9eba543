"""How large a bias ``specplug check-engine`` finds with how many samples: ``python -m specplug.testing.power``.

Simulated, seeded. The target's first token has a law like that of a language model in mid-sentence: token ``i`` has a
probability proportional to ``1 / i``, 50 tokens. The biased law lies at a given total variation distance, and moves the
probability in one of the ways that faults of speculative decoding do:

* ``one token``: from the likeliest token to the next (a draft accepted too rarely or too often);
* ``spread``: from the likeliest token to all others, in proportion (a residual law that is not normalised).

A trial counts as a find if the corrected p-value is at most ``alpha``, in a table of eight prompts and two modes: with
the fault in one row only (``1 row``), and with the fault in all prompts of one mode (``8 rows``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from specplug.testing.statistics import Floats, Tokens, combine, compare_samples, permutations_for

PROMPTS = 8
MODES = 2
DISTANCES = (0.02, 0.05, 0.1)
SIZES = (500, 1000)
SHAPES = ("one token", "spread")


def target_law(tokens: int = 50) -> Floats:
    """Token ``i`` (from 1) has a probability proportional to ``1 / i``."""
    weights = 1.0 / np.arange(1, tokens + 1)
    law: Floats = weights / weights.sum()
    return law


def biased_law(law: Floats, distance: float, shape: str) -> Floats:
    """The law at this total variation distance, see the module.

    Raises:
        ValueError: the likeliest token has not that much probability to give.
    """
    if not 0 <= distance < law[0]:
        raise ValueError(f"distance must be at least 0 and below {law[0]:.3f}, got {distance}")
    other = law.copy()
    other[0] -= distance
    if shape == "one token":
        other[1] += distance
    else:
        other[1:] += distance * law[1:] / law[1:].sum()
    return other


def power(
    law: Floats,
    other: Floats,
    size: int,
    *,
    trials: int,
    seed: int,
    alpha: float = 0.01,
    rows: int = 1,
) -> float:
    """The share of trials in which ``check-engine`` would say ``different`` with ``size`` samples per server.

    Args:
        law, other: of the first token, float64 ``[V]``.
        size: samples per prompt, mode and server.
        trials: how many are simulated.
        seed: of everything.
        alpha: family-wise false-alarm rate.
        rows: prompts with the fault. With one, its row alone must pass Holm's first threshold; with more, the
            row in which all prompts are taken together may do so instead.
    """
    count = MODES * (PROMPTS + 1)
    permutations = permutations_for(count, alpha)
    found = 0
    for trial in range(trials):
        generator = np.random.default_rng([seed, size, trial])
        pairs = [(_draw(generator, law, size), _draw(generator, other, size)) for _ in range(rows)]
        found += any(
            p_value <= alpha / count for p_value in _p_values(pairs, [seed, trial], permutations)
        )
    return found / trials


def _p_values(
    pairs: Sequence[tuple[list[Tokens], list[Tokens]]], seed: list[int], permutations: int
) -> Iterator[float]:
    """The p-values of the rows of one mode, the most telling first: whoever finds one small enough may stop."""
    if len(pairs) > 1:
        quick = [compare_samples(*pair, seed=0, permutations=1) for pair in pairs]
        yield combine(quick, seed=[*seed, len(pairs)], permutations=permutations)
    for row, pair in enumerate(pairs):
        yield compare_samples(*pair, seed=[*seed, row], permutations=permutations).p_value


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m specplug.testing.power", description=__doc__)
    parser.add_argument("--trials", type=int, default=100, help="of a fault in one row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alpha", type=float, default=0.01)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="samples per server")
    chosen = parser.parse_args(arguments)
    write = sys.stdout.write
    law = target_law()
    columns = [(rows, distance) for rows in (1, PROMPTS) for distance in DISTANCES]
    heads = [f"{rows} row{'s' * (rows > 1)}, {distance}" for rows, distance in columns]
    write(f"| samples | fault | {' | '.join(heads)} |\n|{'---|' * (2 + len(heads))}\n")
    for size in chosen.sizes:
        for shape in SHAPES:
            write(f"| {size} | {shape} |")
            for rows, distance in columns:
                other = biased_law(law, distance, shape)
                # A table full of faults costs eight times as much to simulate.
                trials = chosen.trials if rows == 1 else max(1, chosen.trials // 2)
                share = power(
                    law, other, size, trials=trials, seed=chosen.seed, alpha=chosen.alpha, rows=rows
                )
                write(f" {share:.2f} |")
                sys.stdout.flush()
            write("\n")


def _draw(generator: np.random.Generator, law: Floats, size: int) -> list[Tokens]:
    return [(token,) for token in generator.choice(len(law), size, p=law).tolist()]


if __name__ == "__main__":
    main()
