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
from specplug.kernels import serving as kernel
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
        # The forms that the kernels are compiled for; nothing is copied that has them.
        self._offered = np.ascontiguousarray(trace.offered, np.int32)
        self._claims = np.ascontiguousarray(trace.survival, np.float32)
        self._right = np.ascontiguousarray(trace.right, np.int16)
        self._arrivals = arrivals
        self._computes_prompts = prefill
        self._next_arrival = next(arrivals, math.inf) if arrivals is not None else 0.0
        self._coins = np.random.default_rng(seed)
        self._served = 0
        self._until = math.inf
        self._free = list(range(rows))
        self._prefilling: list[list[int]] = []  # slot, request, prompt tokens left
        self._count = 0
        self._running = np.zeros((kernel.FIELDS, rows), np.int64)
        self._begun = np.zeros(rows)
        self._drafts = self._context = 0  # of the next step
        self._trims = bool(getattr(controller, "trims", False))
        self._told = np.zeros((6, rows), np.int32)
        self._totals = np.zeros(6, np.int64)
        width = self._claims.shape[1] if self._trims else 0
        self._survival = np.zeros((rows, width))

    def fill(self) -> None:
        """Begin in the middle: all rows taken by requests at random places of their responses.

        Otherwise all prompts would be computed at once, and the figures of a short run would be about that.
        """
        while self._free:
            slot = heapq.heappop(self._free)
            request = self._served % len(self.trace.prompts)
            self._served += 1
            start, end = (int(v) for v in self.trace.starts[request : request + 2])
            self._add(slot, start, end, int(self.trace.prompts[request]))
            self._running[kernel.POSITION, self._count - 1] = self._coins.integers(start, end)
            if hasattr(self.controller, "begin"):
                self.controller.begin(slot, Request(str(self._served), 1))

        none = np.zeros(self._count, LENGTH_DTYPE)
        self._drafts, self._context = kernel.settle(self._running, self._count, none)

    def _add(self, slot: int, start: int, end: int, prompt: int) -> None:
        """A request whose prompt was computed."""
        self._running[:, self._count] = slot, start, start, end, prompt, 0, 0
        self._begun[self._count] = self.now
        self._count += 1

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
        rows, drafts, context = self._count, self._drafts, self._context
        prefill, done = self._prefill(max(0, TOKEN_BUDGET - rows - drafts))
        tokens = rows + drafts + prefill
        if not tokens and done:  # prompts that cost nothing, and nobody else
            self._enter(done)
            self._draft()
            return
        if not tokens:
            self.now = max(self.now, min(self._next_arrival, self._until))
            return
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
            start, end = (int(v) for v in self.trace.starts[request : request + 2])
            self._add(slot, start, end, int(self.trace.prompts[request]))

    def _verify(self) -> None:
        outcome, told = self.outcome, self._told
        kernel.verify(self._running, self._count, self._right, told, self._totals)
        tokens, accepted, drafted, over, compared, observed = self._totals.tolist()
        if self._trims and compared:
            slots, tested, agreed = told[:3, :compared]
            self.controller.compare(slots, tested, agreed)  # type: ignore[attr-defined]
        if observed:
            self.controller.observe(*told[3:, :observed])
        outcome.tokens += tokens
        outcome.accepted += accepted
        outcome.drafted += drafted
        if over:
            self._end(over)

    def _end(self, count: int) -> None:
        """Some responses are complete."""
        running = self._running[:, : self._count]
        over = running[kernel.POSITION] >= running[kernel.END]
        lengths = running[kernel.END, over] - running[kernel.START, over]
        self.outcome.finished += count
        self.outcome.latency += ((self.now - self._begun[: self._count][over]) / lengths).tolist()
        for slot in running[kernel.SLOT, over].tolist():
            heapq.heappush(self._free, slot)
        left = self._count - count
        self._begun[:left] = self._begun[: self._count][~over]
        self._running[:, :left] = running[:, ~over]
        self._count = left

    def _draft(self) -> None:
        rows = self._count
        self._drafts = self._context = 0
        if not rows:
            return
        slots, limits = np.empty(rows, LENGTH_DTYPE), np.empty(rows, LENGTH_DTYPE)
        ceilings, lengths = np.zeros(rows, LENGTH_DTYPE), np.empty(rows, LENGTH_DTYPE)
        kernel.ask(self._running, rows, self._claims.shape[1], slots, limits)
        self.controller.plan(slots, limits, ceilings)
        survival = self._survival[:rows]
        kernel.offer(self._running, rows, self._offered, self._claims, ceilings, lengths, survival)
        if self._trims:
            self.controller.trim(slots, survival, lengths)  # type: ignore[attr-defined]
        self._drafts, self._context = kernel.settle(self._running, rows, lengths)
        self.last_drafts = lengths

    def _noise(self) -> float:
        slow = 3.0 if self._coins.random() < 1 / HICCUP else 1.0
        return slow * math.exp(NOISE * self._coins.standard_normal())
