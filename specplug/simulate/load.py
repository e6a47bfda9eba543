"""Load that changes or comes in bursts: arrival processes, and what a controller makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.control.fixed import FixedLength
from specplug.control.goodput import GoodputController
from specplug.protocols import Controller
from specplug.simulate.acceptance import WIDTH, Trace
from specplug.simulate.hardware import Hardware
from specplug.simulate.server import Server
from specplug.types import Context

#: How requests can come.
ARRIVALS = ("closed", "poisson", "bursts")

#: Requests of a burst, on average.
BURST = 16

#: Chance of a draft token to be right where the load changes.
CHANCE = 0.8

#: Requests before, during and after a change of load.
CHANGE = (2, 64, 2)


def arrivals(process: str, rate: float, seed: int = 0) -> Iterator[float] | None:
    """Times at which requests come, without end.

    Args:
        process: ``poisson`` (independent requests), ``bursts`` (a Poisson process of groups of :data:`BURST` requests
            on average, geometric, at the same time), ``closed`` (None: the next comes when one is done).
        rate: requests per second.
        seed: of the times.
    """
    if process == "closed":
        return None
    return _times(process, rate, np.random.default_rng([seed, 7]))


def _times(process: str, rate: float, coins: np.random.Generator) -> Iterator[float]:
    now = 0.0
    while True:
        size = int(coins.geometric(1 / BURST)) if process == "bursts" else 1
        mean = BURST if process == "bursts" else 1
        now += float(coins.exponential(mean / rate))
        for _ in range(size):
            yield now


def under_load(
    trace: Trace,
    hardware: Hardware,
    process: str,
    load: float,
    rows: int,
    seconds: float,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Methods under requests that come by themselves, prompts computed in the same server.

    Args:
        trace, hardware: as everywhere.
        process: see :func:`arrivals`.
        load: requests per second, as a fraction of what the server without drafts can just serve.
        rows: most requests at once.
        seconds: simulated.
        seed: of the arrivals.
    """
    plain = Server(trace, hardware, FixedLength(0), rows).run(tokens=rows * 400)
    capacity = plain.goodput / float(np.diff(trace.starts).mean())
    found = []
    context = Context(1 << 17, 1 << 20, WIDTH, max_requests=rows)
    methods: dict[str, Controller] = {str(n): FixedLength(n) for n in (0, 2, 4, 8, 16)}
    methods["goodput"] = GoodputController(context)
    for name, controller in methods.items():
        times = arrivals(process, load * capacity, seed)
        outcome = Server(trace, hardware, controller, rows, times).run(seconds=seconds)
        latency = np.array(outcome.latency or [np.nan]) * 1e3
        found.append(
            {
                "workload": trace.name,
                "method": name,
                "requests/s": load * capacity,
                "finished": outcome.finished,
                "tokens/s": outcome.goodput,
                "ms/token": float(latency.mean()),
                "ms/token, 95 %": float(np.percentile(latency, 95)),
                "drafted/step": outcome.drafted / max(1, outcome.steps),
            }
        )
    return found


def steady(rows: int, steps: int, seed: int = 0) -> Trace:
    """One endless request per row, of which every draft token is right with the same chance, as is claimed."""
    total = rows * steps * (WIDTH + 1)
    coins = np.random.default_rng(seed)
    right = np.minimum(coins.geometric(1 - CHANCE, total) - 1, WIDTH).astype(np.int16)
    claims: NDArray[np.float32] = np.cumprod(np.full(WIDTH, CHANCE)).astype(np.float32)
    starts = np.arange(0, total + 1, total // rows, dtype=np.int64)
    survival = np.broadcast_to(claims, (total, WIDTH))
    return Trace("steady", survival, right, starts, np.full(rows, 10, np.int64))


def change_of_load(hardware: Hardware, steps: int = 400) -> list[dict[str, Any]]:
    """Steps after a change of load until the plans are as good as they will be.

    A plan is worth the tokens that it is expected to bring per second of the true step time, noise left out; it is as
    good when the mean over ten steps is at least 0.97 of that over the last half.
    """
    found = []
    for trims in (True, False):
        context = Context(1 << 17, 1 << 20, WIDTH, max_requests=max(CHANGE))
        controller = GoodputController(context, trims=trims)
        for number, rows in enumerate(CHANGE):
            server = Server(steady(rows, steps), hardware, controller, rows, prefill=False)
            drafts, worth = [], []
            for _ in range(steps):
                server.step()
                drafts.append(float(server.last_drafts.mean()))
                worth.append(_worth(server.last_drafts, hardware))
            if not number:
                continue  # the first load is where it learns everything
            means = np.convolve(worth, np.full(10, 0.1), "valid")
            there = means >= 0.97 * float(np.mean(worth[steps // 2 :]))
            found.append(
                {
                    "decides": "after drafting" if trims else "before drafting",
                    "requests": f"{CHANGE[number - 1]} to {rows}",
                    "drafts per request": float(np.mean(drafts[steps // 2 :])),
                    "worth of the first ten plans": float(means[0] / np.mean(worth[steps // 2 :])),
                    "steps until there": int(np.argmax(there)) if there.any() else steps,
                }
            )
    return found


def _worth(drafts: NDArray[np.int32], hardware: Hardware) -> float:
    """Tokens per second that drafts of these lengths bring on average."""
    tokens = float(((1 - CHANCE ** (drafts + 1.0)) / (1 - CHANCE)).sum())
    rows = len(drafts)
    return tokens / hardware.step(rows + int(drafts.sum()), rows, 0)
