"""Decision time of the goodput controller per engine step, by batch size.

python tools/environments.py run core benchmarks/controller_time.py
"""

from __future__ import annotations

import argparse
import platform
from time import perf_counter_ns

import numpy as np

from specplug.control.cost import StepFacts
from specplug.control.goodput import GoodputController
from specplug.types import LENGTH_DTYPE, Context

WIDTH = 16


def measure(rows: int, steps: int, trims: bool) -> dict[str, float]:
    """Median microseconds of deciding, of learning from answers, and of learning from step times."""
    controller = GoodputController(Context(50_000, 8192, WIDTH, max_requests=rows), trims=trims)
    coins = np.random.default_rng(0)
    slots = np.arange(rows, dtype=LENGTH_DTYPE)
    limits = np.full(rows, WIDTH, LENGTH_DTYPE)
    ceilings = np.zeros(rows, LENGTH_DTYPE)
    spent: dict[str, list[int]] = {"decide": [], "learn": [], "cost model": []}
    for _ in range(steps):
        chances = coins.uniform(0.3, 1.0, (rows, WIDTH))
        survival = np.cumprod(chances, axis=1)
        offered = coins.integers(0, WIDTH + 1, rows).astype(LENGTH_DTYPE)
        before = perf_counter_ns()
        controller.plan(slots, limits, ceilings)
        lengths = offered.copy() if trims else ceilings
        if trims:
            controller.trim(slots, survival, lengths)
        spent["decide"].append(perf_counter_ns() - before)
        hits = coins.random((rows, WIDTH)) < chances
        right = np.where(hits.all(axis=1), WIDTH, hits.argmin(axis=1)).astype(LENGTH_DTYPE)
        agreed = np.minimum(np.minimum(right, offered), lengths + 1)
        tested = np.minimum(agreed + 1, np.minimum(offered, lengths + 1))
        before = perf_counter_ns()
        if trims:
            controller.compare(slots, tested, agreed)
        controller.observe(slots, lengths, np.minimum(right, lengths))
        spent["learn"].append(perf_counter_ns() - before)
        total = rows + int(lengths.sum())
        before = perf_counter_ns()
        controller.timed(StepFacts(0.01 + 1e-5 * total, total, rows, 1000 * rows))
        spent["cost model"].append(perf_counter_ns() - before)
    return {name: float(np.median(times)) / 1000 for name, times in spent.items()}


def main() -> None:
    """Print one row per batch size and mode."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    print(f"microseconds per step, median of {steps}, {WIDTH} draft tokens; {platform.processor()}")
    print(f"{'requests':>8}  {'mode':<9}{'decide':>8}{'learn':>8}{'cost model':>12}")
    for rows in (1, 8, 64, 256):
        for trims in (True, False):
            found = measure(rows, steps, trims)
            mode = "trimming" if trims else "planning"
            print(
                f"{rows:>8}  {mode:<9}{found['decide']:>8.0f}{found['learn']:>8.0f}{found['cost model']:>12.0f}"
            )


if __name__ == "__main__":
    main()
