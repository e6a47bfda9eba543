"""What a replay counts, and the figures made of it. Memory is constant: a log may have any number of steps."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Equal bins of survival estimates from 0 to 1.
RELIABILITY_BINS = 10
#: Steps after which an online estimate should have settled.
SETTLED_STEPS = 2000
#: What a proposer's ``memory()`` says of its shared store.
STORE_FIGURES = ("store_bytes", "store_tokens", "store_capacity")
#: Buckets of a series: even, at least 2.
SERIES_BUCKETS = 64
#: Shortest match of each bin of :class:`ByMatch`.
MATCH_BINS = (0, 1, 2, 3, 5, 9, 17)
#: Histogram bins per factor of two: neighbouring bins are 1.1 % apart.
_PER_OCTAVE = 64


class Reliability:
    """Survival estimates of draft tokens against what became of them.

    Of a bin it keeps the number of tokens, the sum of their estimates and how many were accepted.
    """

    def __init__(self) -> None:
        self.tokens = np.zeros(RELIABILITY_BINS, np.int64)
        self.accepted = np.zeros(RELIABILITY_BINS, np.int64)
        self.estimates = np.zeros(RELIABILITY_BINS)

    def add(self, survival: NDArray[np.float64], accepted: NDArray[np.bool_]) -> None:
        """Count draft tokens: their estimates (float64 ``[n]``) and whether they were accepted (bool ``[n]``)."""
        bins = np.clip((survival * RELIABILITY_BINS).astype(np.int64), 0, RELIABILITY_BINS - 1)
        self.tokens += np.bincount(bins, minlength=RELIABILITY_BINS)
        self.accepted += np.bincount(bins[accepted], minlength=RELIABILITY_BINS)
        self.estimates += np.bincount(bins, weights=survival, minlength=RELIABILITY_BINS)

    @property
    def error(self) -> float | None:
        """Expected calibration error: mean distance of estimate and acceptance over the bins, by token."""
        total = int(self.tokens.sum())
        return float(np.abs(self.estimates - self.accepted).sum() / total) if total else None

    def rows(self) -> list[dict[str, float | int]]:
        """Per bin that has tokens: its lower edge, tokens, mean estimate, acceptance rate."""
        return [
            {
                "from": b / RELIABILITY_BINS,
                "tokens": int(n),
                "estimate": float(self.estimates[b] / n),
                "acceptance_rate": float(self.accepted[b] / n),
            }
            for b, n in enumerate(self.tokens.tolist())
            if n
        ]


class Series:
    """Steps in the order in which they came, in at most :data:`SERIES_BUCKETS` buckets of equally many steps."""

    def __init__(self) -> None:
        self.every = 1
        self._rows: list[list[int]] = []
        self._filled = 0

    def add(self, emitted: int, drafted: int, accepted: int) -> None:
        """Count one step."""
        if not self._rows or self._filled == self.every:
            if len(self._rows) == SERIES_BUCKETS:
                self._halve()
            self._rows.append([0, 0, 0, 0])
            self._filled = 0
        row = self._rows[-1]
        row[0] += 1
        row[1] += emitted
        row[2] += drafted
        row[3] += accepted
        self._filled += 1

    def _halve(self) -> None:
        pairs = zip(self._rows[::2], self._rows[1::2], strict=True)
        self._rows = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
        self.every *= 2

    def rows(self) -> list[dict[str, int]]:
        """Per bucket: steps, tokens emitted, drafted, accepted."""
        names = ("steps", "emitted", "drafted", "accepted")
        return [dict(zip(names, row, strict=True)) for row in self._rows]


class ByMatch:
    """Steps by how much of the text before them stood earlier, see :class:`specplug.replay.oracle.Repetition`."""

    def __init__(self) -> None:
        self._rows = [[0, 0, 0, 0] for _ in MATCH_BINS]

    def add(self, match: int, emitted: int, drafted: int, accepted: int) -> None:
        """Count one step."""
        row = self._rows[bisect.bisect_right(MATCH_BINS, match) - 1]
        row[0] += 1
        row[1] += emitted
        row[2] += drafted
        row[3] += accepted

    def rows(self) -> list[dict[str, int]]:
        """Per bin that has steps: its shortest match, steps, tokens emitted, drafted, accepted."""
        names = ("from", "steps", "emitted", "drafted", "accepted")
        rows = zip(MATCH_BINS, self._rows, strict=True)
        return [dict(zip(names, (start, *row), strict=True)) for start, row in rows if row[0]]


class Durations:
    """Times of calls in nanoseconds: sum, maximum, and quantiles to within 1.1 %."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.longest = 0
        self._bins: dict[int, int] = {}

    def add(self, ns: int) -> None:
        """Count one call."""
        self.count += 1
        self.total += ns
        if ns > self.longest:
            self.longest = ns
        place = int(_PER_OCTAVE * math.log2(ns)) if ns > 1 else 0
        self._bins[place] = self._bins.get(place, 0) + 1

    def quantile(self, share: float) -> float:
        """The time in ns that ``share`` of the calls did not exceed; 0 without any call."""
        seen = 0
        for place in sorted(self._bins):
            seen += self._bins[place]
            if seen >= share * self.count:
                return float(min(self.longest, 2 ** ((place + 0.5) / _PER_OCTAVE)))
        return 0.0


@dataclass(slots=True)
class HostTime:
    """Time spent in the proposer. Wall time is what an engine waits; CPU time of the calling thread, which other
    programs hardly change, tells whether the machine was busy with something else.

    Attributes:
        step_wall, step_cpu: per step, observing and drafting.
        start_wall, start_cpu: per request, taking in the prompt.
        finish_wall, finish_cpu: per request, observing its last tokens and giving its slot back.
    """

    step_wall: Durations = field(default_factory=Durations)
    step_cpu: Durations = field(default_factory=Durations)
    start_wall: Durations = field(default_factory=Durations)
    start_cpu: Durations = field(default_factory=Durations)
    finish_wall: Durations = field(default_factory=Durations)
    finish_cpu: Durations = field(default_factory=Durations)

    def figures(self, prompt_tokens: int) -> dict[str, float]:
        """Microseconds per step and nanoseconds per prompt token; ``total`` includes starting and finishing."""
        wall = (self.step_wall, self.start_wall, self.finish_wall)
        cpu = (self.step_cpu, self.start_cpu, self.finish_cpu)
        steps = max(1, self.step_wall.count)
        return {
            "total_us_per_step": sum(d.total for d in wall) / steps / 1e3,
            "total_cpu_us_per_step": sum(d.total for d in cpu) / steps / 1e3,
            "step_mean_us": self.step_wall.total / steps / 1e3,
            "step_p50_us": self.step_wall.quantile(0.5) / 1e3,
            "step_p99_us": self.step_wall.quantile(0.99) / 1e3,
            "step_cpu_mean_us": self.step_cpu.total / steps / 1e3,
            "step_cpu_p99_us": self.step_cpu.quantile(0.99) / 1e3,
            "prompt_ns_per_token": self.start_wall.total / max(1, prompt_tokens),
            "prompt_cpu_ns_per_token": self.start_cpu.total / max(1, prompt_tokens),
            "longest_start_ms": self.start_wall.longest / 1e6,
            "longest_step_ms": self.step_wall.longest / 1e6,
            "longest_finish_ms": self.finish_wall.longest / 1e6,
            "longest_call_ms": max(d.longest for d in wall) / 1e6,
            "longest_call_cpu_ms": max(d.longest for d in cpu) / 1e6,
        }


@dataclass(slots=True)
class Tally:
    """Counters of one workload under one proposer.

    Attributes:
        requests: replayed; ``short`` more had fewer than two response tokens, hence no step.
        prompt_tokens: of the replayed requests.
        response_tokens: the same, first tokens included.
        emitted: response tokens that came from steps: all but the first of each request, which the prefill gives.
        request_bytes, request_tokens: sums over requests, each taken when it ended, where the proposer tells.
        draft_lengths: how many steps drafted so many tokens (in a tree: so deep), from 0 on.
        draft_sizes: the same by all tokens of a draft, which for a chain is no other number.
        accepted_lengths: how many steps accepted so many.
        store: ``store_bytes``, ``store_tokens`` and ``store_capacity`` of what requests share, at the end.
    """

    requests: int = 0
    short: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    steps: int = 0
    emitted: int = 0
    drafted_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    request_bytes: int = 0
    request_tokens: int = 0
    draft_lengths: list[int] = field(default_factory=list)
    draft_sizes: list[int] = field(default_factory=list)
    accepted_lengths: list[int] = field(default_factory=list)
    series: Series = field(default_factory=Series)
    by_match: ByMatch = field(default_factory=ByMatch)
    store: dict[str, int] = field(default_factory=dict)
    reliability: Reliability = field(default_factory=Reliability)
    settled: Reliability = field(default_factory=Reliability)
    host: HostTime = field(default_factory=HostTime)

    def step(self, emitted: int, drafted: int, accepted: int, depth: int) -> None:
        """Count one step that drafted ``drafted`` tokens, ``depth`` of them in a row."""
        self.steps += 1
        self.emitted += emitted
        self.drafted_steps += drafted > 0
        self.drafted += drafted
        self.accepted += accepted
        _count(self.draft_lengths, depth)
        _count(self.draft_sizes, drafted)
        _count(self.accepted_lengths, accepted)
        self.series.add(emitted, drafted, accepted)

    def by_position(self) -> list[dict[str, int]]:
        """Per draft position: steps that drafted so far, and those that were accepted so far."""
        reached = [sum(self.accepted_lengths[j + 1 :]) for j in range(len(self.draft_lengths) - 1)]
        return [
            {"drafted": sum(self.draft_lengths[j + 1 :]), "accepted": n}
            for j, n in enumerate(reached)
        ]

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per step, steps without a draft counted."""
        return self.emitted / self.steps if self.steps else None

    @property
    def mean_acceptance_length_drafted(self) -> float | None:
        """Tokens per step that had a draft: the accepted ones and the target's own."""
        return 1 + self.accepted / self.drafted_steps if self.drafted_steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted draft tokens per draft token."""
        return self.accepted / self.drafted if self.drafted else None

    def speedup(self, cost: float) -> float | None:
        """Emitted tokens per unit of work, if a draft token costs ``cost`` plain decoding steps to verify."""
        return self.emitted / (self.steps + cost * self.drafted) if self.steps else None

    def remember_memory(self, memory: Mapping[str, int], ending: bool) -> None:
        """Note what a proposer says of its memory: before a request ends (``ending``) or after."""
        if ending:
            self.request_bytes += memory["request_bytes"]
            self.request_tokens += memory["request_tokens"]
        else:
            self.store = {name: memory[name] for name in STORE_FIGURES}

    def figures(self, costs: Sequence[float]) -> dict[str, Any]:
        """All figures as plain values; those under ``host`` are times, the others never change between runs."""
        counters = ("requests", "short", "prompt_tokens", "response_tokens", "steps", "emitted")
        more = ("drafted_steps", "drafted", "accepted")
        return {
            **{name: getattr(self, name) for name in counters + more},
            "mean_acceptance_length": self.mean_acceptance_length,
            "mean_acceptance_length_drafted": self.mean_acceptance_length_drafted,
            "acceptance_rate": self.acceptance_rate,
            "speedup": {f"{cost:g}": self.speedup(cost) for cost in costs},
            "calibration_error": self.reliability.error,
            f"calibration_error_after_{SETTLED_STEPS}_steps": self.settled.error,
            "reliability": self.reliability.rows(),
            f"reliability_after_{SETTLED_STEPS}_steps": self.settled.rows(),
            "by_position": self.by_position(),
            "draft_lengths": list(self.draft_lengths),
            "by_match_length": self.by_match.rows(),
            "over_time": self.series.rows(),
            "memory": {
                "request_bytes_per_token": self.request_bytes / self.request_tokens
                if self.request_tokens
                else None,
                **self.store,
            },
            "host": self.host.figures(self.prompt_tokens),
        }


def _count(histogram: list[int], value: int) -> None:
    if value >= len(histogram):
        histogram.extend([0] * (value + 1 - len(histogram)))
    histogram[value] += 1


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of the positive values; None if there is none."""
    logs = [math.log(v) for v in values if v]
    return math.exp(sum(logs) / len(logs)) if logs else None
