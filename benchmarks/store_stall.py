"""How long steps wait while another thread saves the store of ``specplug.suffix`` to its file.

    python tools/environments.py run core benchmarks/store_stall.py

A store of 1.2 million tokens (64 MB) is filled and saved, then after each 40,000 further tokens, while a request is
drafted for in steps of 0.5 ms of sleep (the forward pass, in which the interpreter is free) and a draft. Shown is what
a step took beyond its sleep: waiting for the interpreter included. Seed 0.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from specplug.index.keeper import StoreKeeper
from specplug.index.store_file import Vocabulary
from specplug.index.suffix import SuffixIndex
from specplug.types import Context, IntArray, Observed, TokenArray, allocate_drafts

VOCABULARY, SLEEP = 50_000, 0.0005
#: Tokens of an output, stored at first, and stored between two savings.
OUTPUT, FIRST, MORE = 400, 1_200_000, 40_000


class Steps:
    """A request that says random tokens and is drafted for."""

    def __init__(self, index: SuffixIndex, coins: np.random.Generator) -> None:
        self.index, self.coins = index, coins
        self.out = allocate_drafts(1, 16)
        self.slots: IntArray = np.zeros(1, np.int32)
        self.ceilings: IntArray = np.full(1, 16, np.int32)

    def begin(self) -> None:
        """A new request."""
        prompt: TokenArray = self.coins.integers(0, VOCABULARY, 500).astype(np.int32)
        self.index.start(0, "tenant", len(prompt), prompt)

    def run(self, seconds: float, until: threading.Event | None = None) -> list[float]:
        """Milliseconds of each step beyond its sleep."""
        found: list[float] = []
        offsets = np.array([0, 1], np.int64)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end and not (until is not None and until.is_set()):
            began = time.perf_counter()
            self.index.draft(self.slots, self.ceilings, self.out)
            new: TokenArray = self.coins.integers(0, VOCABULARY, 1).astype(np.int32)
            self.index.observe(Observed(self.slots, offsets, new))
            time.sleep(SLEEP)
            found.append(1e3 * (time.perf_counter() - began - SLEEP))
        return found


def fill(index: SuffixIndex, coins: np.random.Generator, tokens: int) -> None:
    """Outputs of seven tenants."""
    for number in range(tokens // OUTPUT):
        text = coins.integers(0, VOCABULARY, OUTPUT).astype(np.int32)
        index.store_text(f"tenant {number % 7}", text)


def line(name: str, waits: list[float], took: float | None = None) -> str:
    """A row of the table."""
    saving = "" if took is None else f"{1e3 * took:.0f}"
    over = sum(wait > 2 for wait in waits)
    return (
        f"{name:<22}{len(waits):>7}{saving:>11}{np.median(waits):>10.3f}"
        f"{np.percentile(waits, 99):>9.3f}{max(waits):>9.3f}{over:>11}"
    )


def main() -> None:
    """Fill, save and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--savings", type=int, default=8)
    chosen = parser.parse_args()
    coins = np.random.default_rng(0)
    index = SuffixIndex(Context(VOCABULARY, 1 << 16, 16, max_requests=8), 64 << 20, 0.03)
    with tempfile.TemporaryDirectory() as folder:
        keeper = StoreKeeper(index, Path(folder) / "store", 1e6, Vocabulary(VOCABULARY))
        steps = Steps(index, coins)
        steps.begin()
        print(
            f"{'':<22}{'steps':>7}{'saving ms':>11}{'median ms':>10}{'p99':>9}{'longest':>9}{'over 2 ms':>11}"
        )
        print(line("nothing is saved", steps.run(3)))
        for number in range(chosen.savings):
            # At once after it was stored: a second later the keeper would save it by itself.
            index.finish(0, False, frozenset())
            fill(index, coins, MORE if number else FIRST)
            steps.begin()
            over = threading.Event()
            took: list[float] = []

            def save(over: threading.Event = over, took: list[float] = took) -> None:
                began = time.perf_counter()
                keeper.save()
                took.append(time.perf_counter() - began)
                over.set()

            thread = threading.Thread(target=save)
            thread.start()
            waits = steps.run(60, over)
            thread.join()
            name = f"{MORE if number else FIRST:,} new tokens"
            print(line(name, waits, took[0]))
        keeper.close()


if __name__ == "__main__":
    main()
