"""Host time and memory beside Arctic's where a replay does not show it: long prompts, large batches, long histories."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np
from _comparison import Requests
from _drafters import ARCTIC_DEPTH, ARCTIC_MIN_PROB, ArcticDriver

from specplug import registry
from specplug.protocols import Proposer
from specplug.replay.drivers import Driver, ProposerDriver, memory_of
from specplug.types import (
    Context,
    IntArray,
    Observed,
    Request,
    TokenArray,
    allocate_drafts,
)

#: Tokens that each request gains per step of the batch and of the long-history measurement.
GAIN = 3
REPEATS = 5
#: Steps after the start of a long prompt that may still be busy with it.
INDEXING_STEPS = 16


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds of one call."""
    cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
    call()
    wall_after, cpu_after = time.perf_counter_ns(), time.thread_time_ns()
    return (wall_after - wall) / 1e9, (cpu_after - cpu) / 1e9


def long_text(workloads: Mapping[str, Requests], part: int, length: int) -> TokenArray:
    """Prompts (``part`` 0) or responses (1) of all workloads in turn; tiled if they are short."""
    pieces: list[TokenArray] = []
    total = 0
    for number in range(max(map(len, workloads.values()))):
        for requests in workloads.values():
            if number < len(requests) and total < length:
                pieces.append(requests[number][part])
                total += len(pieces[-1])
    return np.resize(np.concatenate(pieces), length).astype(np.int32)


def indexing(build: Callable[[Context], Proposer], vocab: int, text: TokenArray) -> dict[str, Any]:
    """A long prompt: to its first draft, and until it is indexed; medians of :data:`REPEATS`.

    Indexing may be spread over steps, so the second figure is the sum over the start and :data:`INDEXING_STEPS` steps.
    """
    context = Context(vocab, len(text) + 64, 16, max_requests=1)
    prompt, rest = text[:-INDEXING_STEPS], text[-INDEXING_STEPS:]
    found: dict[str, Any] = {"tokens": len(prompt), "steps": INDEXING_STEPS}
    drivers: dict[str, Driver] = {
        "ours": ProposerDriver(build(context), context),
        "arctic": ArcticDriver(1.0, 16),
    }
    for name, driver in drivers.items():
        times = np.array([_one_prompt(driver, prompt, rest) for _ in range(REPEATS)])
        for i, clock in enumerate(("wall", "cpu")):
            first, total = times[:, :2, i].sum(axis=1), times[:, :, i].sum(axis=1)
            found[f"{name}_first_draft_{clock}_ms"] = 1e3 * float(np.median(first))
            found[f"{name}_{clock}_ms"] = 1e3 * float(np.median(total))
        found[f"{name}_longest_call_ms"] = 1e3 * float(np.median(times[:, :, 0].max(axis=1)))
    return found


def _one_prompt(driver: Driver, prompt: TokenArray, rest: TokenArray) -> list[tuple[float, float]]:
    """Times of the start and of one step per token of ``rest``."""
    driver.hold(prompt, True)
    times = [timed(lambda: driver.begin(prompt))]
    for i in range(len(rest)):
        new = rest[i : i + 1]
        driver.hold(new, False)
        times.append(timed(lambda new=new: driver.step(new)))  # type: ignore[misc]
    driver.end(rest[:0])
    return times


def batch(
    build: Callable[[Context], Proposer],
    vocab: int,
    text: TokenArray,
    rows: int,
    history: int,
    steps: int,
) -> dict[str, Any]:
    """Many requests at once: one call of ours for all beside Arctic's calls for each, medians over the steps."""
    stride = max(1, (len(text) - history - GAIN * steps - 1) // rows)
    texts = [text[i * stride : i * stride + history + GAIN * steps] for i in range(rows)]
    return {
        "rows": rows,
        "history": history,
        "ours": _our_batch(build, vocab, texts, history, steps),
        "arctic": _arctic_batch(texts, history, steps),
    }


def _our_batch(
    build: Callable[[Context], Proposer],
    vocab: int,
    texts: list[TokenArray],
    history: int,
    steps: int,
) -> dict[str, Any]:
    rows = len(texts)
    context = Context(vocab, len(texts[0]) + 64, 16, max_requests=rows)
    proposer = build(context)
    for slot, text in enumerate(texts):
        proposer.start(slot, Request(str(slot), history), text[:history])
    slots: IntArray = np.arange(rows, dtype=np.int32)
    ceilings: IntArray = np.full(rows, 16, np.int32)
    offsets = GAIN * np.arange(rows + 1, dtype=np.int64)
    out = allocate_drafts(rows, 16, vocab, proposer.capabilities)
    observing, drafting = [], []
    for step in range(steps):
        at = history + GAIN * step
        news = Observed(slots, offsets, np.concatenate([t[at : at + GAIN] for t in texts]))
        out.lengths[:] = 0
        observing.append(timed(lambda news=news: proposer.observe(news)))  # type: ignore[misc]
        drafting.append(timed(lambda: proposer.propose(slots, ceilings, out)))
    memory = memory_of(proposer)
    return {
        "observe_ms": 1e3 * median(w for w, _ in observing),
        "draft_ms": 1e3 * median(w for w, _ in drafting),
        "observe_cpu_ms": 1e3 * median(c for _, c in observing),
        "draft_cpu_ms": 1e3 * median(c for _, c in drafting),
        "bytes_per_token": memory["request_bytes"] / memory["request_tokens"] if memory else None,
    }


def _arctic_batch(texts: list[TokenArray], history: int, steps: int) -> dict[str, Any]:
    arctic = ArcticDriver(1.0, 16)
    cache = arctic.cache
    for number, text in enumerate(texts):
        cache.start_request(number, text[:history])
    spent = []

    def one_step(at: int) -> None:
        for number, text in enumerate(texts):
            cache.add_active_response(number, text[at : at + GAIN])
            cache.speculate(
                number,
                text[at + GAIN - ARCTIC_DEPTH : at + GAIN],
                max_spec_tokens=16,
                max_spec_factor=1.0,
                min_token_prob=ARCTIC_MIN_PROB,
            )

    for step in range(steps):
        at = history + GAIN * step
        spent.append(timed(lambda at=at: one_step(at)))  # type: ignore[misc]
    trees = sum(tree.estimate_memory() for tree in cache._local_trees.values())
    return {
        "update_and_draft_ms": 1e3 * median(w for w, _ in spent),
        "update_and_draft_cpu_ms": 1e3 * median(c for _, c in spent),
        "bytes_per_token": trees / sum(history + GAIN * steps for _ in texts),
        "store_bytes_per_token": cache._global_tree.estimate_memory() / (len(texts) * GAIN * steps),
    }


def histories(
    build: Callable[[Context], Proposer],
    vocab: int,
    text: TokenArray,
    lengths: tuple[int, int],
    steps: int,
) -> dict[str, Any]:
    """Time per step of two requests that say the same after a short and a long history, in turn."""
    context = Context(vocab, max(lengths) + GAIN * steps + 64, 16, max_requests=1)
    end = max(lengths)
    drivers = {n: ProposerDriver(build(context), context) for n in lengths}
    for length, driver in drivers.items():
        driver.begin(text[end - length : end])
    spent: dict[int, list[tuple[float, float]]] = {n: [] for n in lengths}
    for step in range(steps):
        new = text[end + GAIN * step : end + GAIN * (step + 1)]
        for length, driver in drivers.items():
            time_taken = timed(lambda d=driver, new=new: d.step(new))  # type: ignore[misc]
            if step >= INDEXING_STEPS:
                spent[length].append(time_taken)
    return {
        "steps": steps,
        "lengths": list(lengths),
        "wall_us": [1e6 * median(w for w, _ in spent[n]) for n in lengths],
        "cpu_us": [1e6 * median(c for _, c in spent[n]) for n in lengths],
    }


def builder(proposer: str, cost: float) -> Callable[[Context], Proposer]:
    """Builds ``proposer`` for this cost in any context."""
    return lambda context: registry.build(proposer, context, {"verify_cost": cost})
