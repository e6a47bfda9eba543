"""The experiments of ``specplug simulate``: each returns plain rows that the command prints and writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.control.fixed import BatchSizeTable, FixedLength
from specplug.control.goodput import GoodputController
from specplug.protocols import Controller
from specplug.simulate.acceptance import WIDTH, Trace
from specplug.simulate.hardware import Hardware
from specplug.simulate.server import Outcome, Server
from specplug.types import Context

#: Constant lengths that are tried.
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)

#: Clients at the hours of a day, and what they ask for: quiet nights, agents in the morning, a busy afternoon.
DAY: tuple[tuple[int, str], ...] = (
    *((1, "chat"), (1, "agent"), (2, "code edit"), (4, "agent"), (8, "agent"), (16, "code edit")),
    *((64, "code edit"), (128, "mixed"), (256, "chat"), (64, "chat"), (32, "mixed"), (8, "chat")),
)


def goodput(rows: int) -> GoodputController:
    """The controller as it comes."""
    return GoodputController(Context(1 << 17, 1 << 20, WIDTH, max_requests=rows))


def measure(
    trace: Trace, hardware: Hardware, controller: Controller, rows: int, tokens: int
) -> Outcome:
    """A full server in the middle of its work: a stretch to settle, then so many tokens.

    Prompts are computed elsewhere: how many prompts fall into a short run would decide the figures.
    """
    server = Server(trace, hardware, controller, rows, prefill=False)
    server.fill()
    server.run(max(300, rows * 40))
    return server.run(tokens)


def cell(trace: Trace, hardware: Hardware, rows: int, tokens: int) -> dict[str, Any]:
    """One cell of the grid: every constant length, and the controller."""
    static = {
        length: measure(trace, hardware, FixedLength(length), rows, tokens).goodput
        for length in LENGTHS
    }
    found = measure(trace, hardware, goodput(rows), rows, tokens)
    best = max(static, key=lambda length: static[length])
    return {
        "hardware": hardware.name,
        "kind": hardware.kind,
        "requests": rows,
        "workload": trace.name,
        "best": best,
        "best/none": static[best] / static[0],
        "controller/best": found.goodput / static[best],
        "controller/none": found.goodput / static[0],
        "drafted/step": found.drafted / max(1, found.steps),
        "MAL": 1 + found.accepted / max(1, found.tokens - found.accepted),
    }


def grid(
    traces: Mapping[str, Trace],
    machines: Sequence[Hardware],
    rows: Sequence[int],
    tokens: int,
) -> Iterator[dict[str, Any]]:
    """Every machine, batch size and workload."""
    for hardware in machines:
        for count in rows:
            for trace in traces.values():
                yield cell(trace, hardware, count, max(tokens, count * tokens // 10))


def mixed_batch(traces: Mapping[str, Trace], hardware: Hardware) -> list[dict[str, Any]]:
    """One request that repeats itself among seven that do not: drafts per step and request."""
    chat = traces["chat"]
    length = 4000
    looping = np.minimum(np.arange(length, 0, -1), WIDTH)
    claims = np.cumprod(np.full((length, WIDTH), 0.98), axis=1).astype(np.float32)
    total = int(chat.starts[-1])
    parts = Trace(
        "one loops",
        np.concatenate([claims, chat.survival]),
        np.concatenate([looping, chat.right]).astype(np.int16),
        np.concatenate([[0], chat.starts + length]).astype(np.int64),
        np.concatenate([[100], chat.prompts]),
    )
    assert parts.starts[-1] == total + length
    rows = []
    for name, controller in (
        ("none", FixedLength(0)),
        ("16", FixedLength(16)),
        ("goodput", goodput(8)),
    ):
        server = Server(parts, hardware, controller, 8, prefill=False)
        drafts: NDArray[np.float64] = np.zeros(8)
        steps = 200
        for _ in range(steps):
            server.step()
            drafts[: len(server.last_drafts)] += server.last_drafts
        rows.append(
            {
                "controller": name,
                "tokens/s": server.outcome.tokens / server.now,
                "drafts of the loop": drafts[0] / steps,
                "drafts of each other": drafts[1:].mean() / steps,
            }
        )
    return rows


def recovery(hardware: Hardware, rows: int = 4) -> list[dict[str, Any]]:
    """Steps until drafts are used again after 1,000 steps in which every one was wrong."""
    found = []
    for trims in (True, False):
        context = Context(1 << 17, 1 << 20, WIDTH, max_requests=rows)
        controller = GoodputController(context, trims=trims)
        claims = np.cumprod(np.full((40_000, WIDTH), 0.8), axis=1).astype(np.float32)
        right = np.zeros(len(claims), np.int16)
        starts = np.arange(0, len(claims) + 1, 10_000, dtype=np.int64)
        trace = Trace("hopeless", claims, right, starts, np.full(4, 10, np.int64))
        server = Server(trace, hardware, controller, rows, prefill=False)
        for _ in range(1000):
            server.step()
        wasted = server.outcome.drafted
        right[:] = WIDTH
        steps = 0
        while steps < 1000 and server.last_drafts.mean() < 3:
            server.step()
            steps += 1
        found.append(
            {
                "decides": "after drafting" if trims else "before drafting",
                "wasted in 1,000 steps": wasted / rows,
                "steps to 3 drafts per request": steps,
            }
        )
    return found


def day(
    traces: Mapping[str, Trace], hardware: Hardware, seconds: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Changing load: tokens of every method, and of each hour."""
    most = max(count for count, _ in DAY)
    methods: dict[str, Controller] = {str(length): FixedLength(length) for length in LENGTHS}
    hours: list[dict[str, Any]] = []
    per_hour: dict[str, list[float]] = {}

    def serve(controller: Controller) -> list[float]:
        found = []
        for count, workload in DAY:
            server = Server(traces[workload], hardware, controller, count, prefill=False)
            server.fill()
            found.append(server.run(seconds=seconds).tokens / seconds)
        return found

    for name, controller in methods.items():
        per_hour[name] = serve(controller)
    per_hour["table"] = serve(BatchSizeTable(tuned_table(traces["mixed"], hardware, most)))
    per_hour["goodput"] = serve(goodput(most))
    for number, (count, workload) in enumerate(DAY):
        hours.append(
            {"hour": 2 * number, "requests": count, "workload": workload}
            | {name: values[number] for name, values in per_hour.items()}
        )
    none = per_hour["0"]
    totals = [
        {
            "method": name,
            "tokens/s": float(np.mean(values)),
            "to none": float(np.mean(values)) / float(np.mean(none)),
            "geometric to none": math.exp(float(np.mean(np.log(np.divide(values, none))))),
            "worst hour to none": float(np.min(np.divide(values, none))),
        }
        for name, values in per_hour.items()
    ]
    return totals, hours


def tuned_table(average: Trace, hardware: Hardware, most: int) -> dict[int, int]:
    """A length per batch size, the best for the average traffic: what vLLM's schedule would be set to."""
    table = {}
    size = 1
    while size <= most:
        speeds = {
            length: measure(
                average, hardware, FixedLength(length), size, max(1500, size * 40)
            ).goodput
            for length in LENGTHS
        }
        table[size] = max(speeds, key=lambda length: speeds[length])
        size *= 4
    return table


def regret(trace: Trace, machines: Sequence[Hardware], rows: Sequence[int]) -> list[dict[str, Any]]:
    """What the fitted cost of a step costs: goodput against that of a controller that knows the true cost."""
    from specplug.control.cost import CostModel
    from specplug.control.costfile import KNOTS, CostSeed

    found = []
    for hardware in machines:
        for count in rows:
            tokens = max(2000, count * 60)
            learned = measure(trace, hardware, goodput(count), count, tokens)
            true = [hardware.step(k, count, 0) for k in KNOTS]
            seed = CostSeed(tuple(v / true[0] for v in true))
            knowing = GoodputController(
                Context(1 << 17, 1 << 20, WIDTH, max_requests=count), cost=CostModel(seed=seed)
            )
            known = measure(trace, hardware, knowing, count, tokens)
            found.append(
                {
                    "hardware": hardware.name,
                    "requests": count,
                    "learned/known": learned.goodput / known.goodput,
                }
            )
    return found
