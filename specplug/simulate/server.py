"""The simulated server: continuous batching, chunked prefill, verification as recorded.

One loop is one engine step. The rows verify what was planned after the step before, prompts fill what is left of the
token budget, the clock moves by what the hardware takes, and the controller hears and decides as in an engine.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specplug.control.cost import StepFacts
from specplug.protocols import Controller
from specplug.simulate.acceptance import Trace
from specplug.simulate.hardware import Hardware
from specplug.types import LENGTH_DTYPE, Request

#: Tokens per step at most, prefill included, as vLLM's ``max_num_batched_tokens``.
TOKEN_BUDGET = 2048

#: Spread of step times (log-normal), and one step in so many takes three times as long.
NOISE, HICCUP = 0.03, 200


_clock = [0.0]


def simulated_seconds() -> float:
    """Seconds that passed in all simulated servers of this process."""
    return _clock[0]


@dataclass
class Outcome:
    """What a simulated server did.

    Attributes:
        seconds: simulated time.
        tokens, drafted, accepted, steps, finished: totals.
        latency: seconds per output token of each finished request.
        drafts: draft tokens per step, if they were to be kept.
    """

    seconds: float = 0.0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    finished: int = 0
    latency: list[float] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        """Tokens per simulated second."""
        return self.tokens / self.seconds if self.seconds else math.nan


@dataclass
class _Batch:
    """The rows: parallel arrays, one entry per running request."""

    slot: NDArray[np.int32]
    position: NDArray[np.int64]
    end: NDArray[np.int64]
    begun: NDArray[np.float64]
    start: NDArray[np.int64]
    prompt: NDArray[np.int64]
    length: NDArray[np.int32]
    offered: NDArray[np.int32]

    def keep(self, mask: NDArray[np.bool_]) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name)[mask])

    def add(self, slot: int, position: int, end: int, prompt: int, now: float) -> None:
        for name, value in (
            ("slot", slot),
            ("position", position),
            ("end", end),
            ("begun", now),
            ("start", position),
            ("prompt", prompt),
            ("length", 0),
            ("offered", 0),
        ):
            old = getattr(self, name)
            setattr(self, name, np.append(old, np.array([value], old.dtype)))


class Server:
    """One engine with one controller.

    Args:
        trace: the requests, served in order and over again.
        hardware: what steps cost.
        controller: built for at least ``rows`` slots and the width of the trace.
        rows: most requests at once.
        arrivals: times at which requests come, ascending; None: as soon as there is a free row (closed loop).
        prefill: whether prompts are computed here; False: elsewhere, or they are in the prefix cache.
        seed: of the noise.
    """

    def __init__(
        self,
        trace: Trace,
        hardware: Hardware,
        controller: Controller,
        rows: int,
        arrivals: Iterator[float] | None = None,
        prefill: bool = True,
        seed: int = 0,
    ) -> None:
        self.trace, self.hardware, self.controller = trace, hardware, controller
        self.rows = rows
        self.now = 0.0
        self.outcome = Outcome()
        self.last_drafts: NDArray[np.int32] = np.zeros(0, np.int32)
        self._offered = trace.offered
        self._arrivals = arrivals
        self._computes_prompts = prefill
        self._next_arrival = next(arrivals, math.inf) if arrivals is not None else 0.0
        self._coins = np.random.default_rng(seed)
        self._served = 0
        self._until = math.inf
        self._free = list(range(rows))
        self._prefilling: list[list[int]] = []  # slot, request, prompt tokens left
        none32, none64 = np.zeros(0, np.int32), np.zeros(0, np.int64)
        self._batch = _Batch(
            none32, none64, none64, np.zeros(0), none64, none64, length=none32, offered=none32
        )

    def fill(self) -> None:
        """Begin in the middle: all rows taken by requests at random places of their responses.

        Otherwise all prompts would be computed at once, and the figures of a short run would be about that.
        """
        while self._free:
            slot = heapq.heappop(self._free)
            request = self._served % len(self.trace.prompts)
            self._served += 1
            start, end = (int(v) for v in self.trace.starts[request : request + 2])
            self._batch.add(slot, start, end, int(self.trace.prompts[request]), self.now)
            self._batch.position[-1] = self._coins.integers(start, end)
            if hasattr(self.controller, "begin"):
                self.controller.begin(slot, Request(str(self._served), 1))

    def run(self, tokens: int = 1 << 62, seconds: float = math.inf) -> Outcome:
        """Serve until so many tokens were emitted, or so much simulated time is over, since this call."""
        self.outcome = Outcome()
        start = self.now
        self._until = start + seconds
        while self.outcome.tokens < tokens and self.now - start < seconds:
            self.step()
        self.outcome.seconds = self.now - start
        return self.outcome

    def step(self) -> None:
        """One engine step."""
        self._admit()
        batch = self._batch
        rows = len(batch.slot)
        drafts = int(batch.length.sum())
        prefill, done = self._prefill(max(0, TOKEN_BUDGET - rows - drafts))
        tokens = rows + drafts + prefill
        if not tokens and done:  # prompts that cost nothing, and nobody else
            self._enter(done)
            self._draft()
            return
        if not tokens:
            self.now = max(self.now, min(self._next_arrival, self._until))
            return
        context = int((batch.prompt + batch.position - batch.start).sum())
        seconds = self.hardware.step(tokens, rows, context) * self._noise()
        self.now += seconds
        _clock[0] += seconds
        self.outcome.steps += 1
        more = bool(self._prefilling)
        facts = StepFacts(seconds, tokens, rows, context, prefill, 0.0, prefill if more else 0)
        if hasattr(self.controller, "timed"):
            self.controller.timed(facts)
        if rows:
            self._verify()
        self._enter(done)
        self._draft()

    def _admit(self) -> None:
        while self._free and self._next_arrival <= self.now:
            slot = heapq.heappop(self._free)
            request = self._served % len(self.trace.prompts)
            self._served += 1
            left = int(self.trace.prompts[request]) if self._computes_prompts else 0
            self._prefilling.append([slot, request, left])
            if hasattr(self.controller, "begin"):
                self.controller.begin(slot, Request(str(self._served), 1))
            if self._arrivals is not None:
                self._next_arrival = next(self._arrivals, math.inf)

    def _prefill(self, budget: int) -> tuple[int, list[tuple[int, int]]]:
        """Prompt tokens of this step, and the requests whose prompts end in it."""
        spent, done = 0, []
        while self._prefilling and (spent < budget or not self._prefilling[0][2]):
            entry = self._prefilling[0]
            part = min(entry[2], budget - spent)
            entry[2] -= part
            spent += part
            if entry[2]:
                break
            done.append((entry[0], entry[1]))
            self._prefilling.pop(0)
        return spent, done

    def _enter(self, done: list[tuple[int, int]]) -> None:
        for slot, request in done:
            start, end = self.trace.starts[request], self.trace.starts[request + 1]
            self._batch.add(slot, int(start), int(end), int(self.trace.prompts[request]), self.now)

    def _verify(self) -> None:
        batch, outcome = self._batch, self.outcome
        right = np.minimum(self.trace.right[batch.position], batch.offered).astype(LENGTH_DTYPE)
        accepted = np.minimum(right, batch.length)
        if getattr(self.controller, "trims", False):
            asked = np.flatnonzero(batch.offered)
            if len(asked):
                reach = np.minimum(batch.offered, accepted + 1)[asked]
                agreed = np.minimum(right[asked], reach).astype(LENGTH_DTYPE)
                tested = np.minimum(agreed + 1, reach).astype(LENGTH_DTYPE)
                self.controller.compare(batch.slot[asked], tested, agreed)  # type: ignore[attr-defined]
        drafted = np.flatnonzero(batch.length)
        if len(drafted):
            self.controller.observe(batch.slot[drafted], batch.length[drafted], accepted[drafted])
        emitted = np.minimum(accepted + 1, batch.end - batch.position)
        batch.position += emitted
        outcome.tokens += int(emitted.sum())
        outcome.accepted += int(accepted.sum())
        outcome.drafted += int(batch.length.sum())
        over = batch.position >= batch.end
        if over.any():
            outcome.finished += int(over.sum())
            spent = (self.now - batch.begun[over]) / (batch.end[over] - batch.start[over])
            outcome.latency += spent.tolist()
            for slot in batch.slot[over].tolist():
                heapq.heappush(self._free, slot)
            batch.keep(~over)

    def _draft(self) -> None:
        batch = self._batch
        rows = len(batch.slot)
        if not rows:
            return
        left = np.maximum(0, batch.end - batch.position - 1)
        limits = np.minimum(self.trace.survival.shape[1], left).astype(LENGTH_DTYPE)
        ceilings = np.zeros(rows, LENGTH_DTYPE)
        self.controller.plan(batch.slot, limits, ceilings)
        lengths = np.minimum(self._offered[batch.position], ceilings).astype(LENGTH_DTYPE)
        batch.offered = lengths.copy()
        if getattr(self.controller, "trims", False):
            survival = self.trace.survival[batch.position].astype(np.float64)
            self.controller.trim(batch.slot, survival, lengths)  # type: ignore[attr-defined]
        batch.length = np.minimum(lengths, batch.offered).astype(LENGTH_DTYPE)
        self.last_drafts = batch.length

    def _noise(self) -> float:
        slow = 3.0 if self._coins.random() < 1 / HICCUP else 1.0
        return slow * math.exp(NOISE * self._coins.standard_normal())
