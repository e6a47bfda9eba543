"""Many requests at once: a server's batches, with arrivals from the log or a fixed number of clients.

Every engine step takes in one batch: each running request drafts, accepts and emits. How long a step takes is a
constant that is given (``step_seconds``), never measured, so that two runs do the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np

from specplug.protocols import Proposer
from specplug.replay.drivers import Draft, broken_invariant_of, memory_of, row_of
from specplug.replay.metrics import Durations, Tally
from specplug.replay.reading import Tokenised
from specplug.replay.simulator import ContractCheck, judge
from specplug.types import (
    LENGTH_DTYPE,
    TOKEN_DTYPE,
    Context,
    Observed,
    Request,
    TokenArray,
    allocate_drafts,
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """How requests come.

    Attributes:
        running: the most requests in a batch.
        step_seconds: of an engine step, for arrivals from the log; None: as many clients as ``running``, each sending
            its next request when the last one is answered.
    """

    running: int
    step_seconds: float | None = None


@dataclass(slots=True)
class Load:
    """How full the batches were.

    Attributes:
        steps: engine steps.
        rows: request-steps.
        largest: requests of the fullest batch.
        step_wall: host time of an engine step, all its requests together.
    """

    steps: int = 0
    rows: int = 0
    largest: int = 0
    step_wall: Durations = field(default_factory=Durations)

    def figures(self) -> dict[str, Any]:
        """As plain values; those under ``host`` are times."""
        return {
            "steps": self.steps,
            "mean_batch": self.rows / self.steps if self.steps else None,
            "largest_batch": self.largest,
            "host": {
                "step_p50_us": self.step_wall.quantile(0.5) / 1e3,
                "step_p99_us": self.step_wall.quantile(0.99) / 1e3,
            },
        }


@dataclass(slots=True, eq=False)
class _Running:
    slot: int
    record: Tokenised
    matches: Sequence[int] | None
    tally: Tally
    position: int
    new: TokenArray


class Server:
    """Serves requests with one proposer, in batches.

    Args:
        tally_of: the counters of a workload.
        check: looks at every draft, or None.
    """

    def __init__(
        self,
        proposer: Proposer,
        context: Context,
        traffic: Traffic,
        tally_of: Callable[[str], Tally],
        check: ContractCheck | None = None,
    ) -> None:
        self.load = Load()
        self._proposer = proposer
        self._traffic = traffic
        self._tally_of = tally_of
        self._check = check
        self._waiting: deque[tuple[Tokenised, Sequence[int] | None]] = deque()
        self._running: list[_Running] = []
        self._free = list(range(traffic.running - 1, -1, -1))
        self._serial = 0
        self._now = 0.0
        self._epoch: float | None = None
        self._out = allocate_drafts(
            traffic.running, context.max_draft, context.vocab_size, proposer.capabilities
        )
        self._ceilings = np.full(traffic.running, context.max_draft, LENGTH_DTYPE)

    def serve(self, requests: Iterable[tuple[Tokenised, Sequence[int] | None]]) -> None:
        """Take in requests, in the order of their arrival, and serve until more of them are needed to go on."""
        self._waiting.extend(requests)
        while self._waiting:
            self._admit()
            self._step()

    def drain(self) -> None:
        """Serve what is still running."""
        while self._running:
            self._step()

    def broken_invariant(self) -> str:
        """See :class:`specplug.replay.drivers.Driver`."""
        return broken_invariant_of(self._proposer)

    def _admit(self) -> None:
        while self._waiting and self._free:
            record, matches = self._waiting[0]
            if not self._arrived(record):
                break
            self._waiting.popleft()
            tally = self._tally_of(record.workload)
            if len(record.response) < 2:
                tally.short += 1
                continue
            tally.requests += 1
            tally.prompt_tokens += len(record.prompt)
            tally.response_tokens += len(record.response)
            self._serial += 1
            slot = self._free.pop()
            request = Request(str(self._serial), len(record.prompt))
            begin, cpu = perf_counter_ns(), thread_time_ns()
            self._proposer.start(slot, request, record.prompt)
            tally.host.start_wall.add(perf_counter_ns() - begin)
            tally.host.start_cpu.add(thread_time_ns() - cpu)
            first = record.response[:1]
            self._running.append(_Running(slot, record, matches, tally, 1, first))

    def _arrived(self, record: Tokenised) -> bool:
        if self._traffic.step_seconds is None or record.arrived is None:
            return True
        if self._epoch is None:
            self._epoch = record.arrived
        moment = record.arrived - self._epoch
        if not self._running:
            self._now = max(self._now, moment)  # nothing happens until somebody comes
        return moment <= self._now

    def _step(self) -> None:
        if not self._running:
            return
        self._now += self._traffic.step_seconds or 0.0
        rows = len(self._running)
        slots = np.array([r.slot for r in self._running], LENGTH_DTYPE)
        observed = _observed(slots, [r.new for r in self._running])
        self._out.lengths[:rows] = 0
        begin, cpu = perf_counter_ns(), thread_time_ns()
        self._proposer.observe(observed)
        self._proposer.propose(slots, self._ceilings[:rows], self._out)
        wall, cpu = perf_counter_ns() - begin, thread_time_ns() - cpu
        self.load.steps += 1
        self.load.rows += rows
        self.load.largest = max(self.load.largest, rows)
        self.load.step_wall.add(wall)
        left = []
        for i, running in enumerate(self._running):
            # A row's share: what one request adds to the step of a full batch.
            running.tally.host.step_wall.add(wall // rows)
            running.tally.host.step_cpu.add(cpu // rows)
            if self._advance(running, row_of(self._out, i)):
                left.append(running)
        ended = [r for r in self._running if r not in left]
        self._running = left
        if ended:
            self._end(ended)

    def _advance(self, running: _Running, draft: Draft) -> bool:
        """Judge a draft; False once the request is answered."""
        response = running.record.response
        if self._check is not None:
            where = f"request {self._serial} ({running.record.workload}), response token {running.position}"
            self._check(self, draft, where)
        end = judge(draft, response, running.position, running.tally, running.matches)
        running.new, running.position = response[running.position : end], end
        return end < len(response)

    def _end(self, ended: list[_Running]) -> None:
        memory = memory_of(self._proposer)
        for running in ended:
            if memory is not None:
                running.tally.remember_memory(memory, ending=True)
            slots = np.array([running.slot], LENGTH_DTYPE)
            begin, cpu = perf_counter_ns(), thread_time_ns()
            self._proposer.observe(_observed(slots, [running.new]))
            self._proposer.finish(running.slot, True)
            running.tally.host.finish_wall.add(perf_counter_ns() - begin)
            running.tally.host.finish_cpu.add(thread_time_ns() - cpu)
            self._free.append(running.slot)
        memory = memory_of(self._proposer)
        for running in ended if memory is not None else ():
            assert memory is not None
            running.tally.remember_memory(memory, ending=False)


def _observed(slots: Any, news: Sequence[TokenArray]) -> Observed:
    offsets = np.zeros(len(news) + 1, np.int64)
    np.cumsum([len(new) for new in news], out=offsets[1:])
    return Observed(slots, offsets, np.concatenate(news).astype(TOKEN_DTYPE, copy=False))
