"""What a replay counts, and the figures made of it. Memory is constant: a log may have any number of steps."""

from __future__ import annotations

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
    store: dict[str, int] = field(default_factory=dict)
    reliability: Reliability = field(default_factory=Reliability)
    settled: Reliability = field(default_factory=Reliability)
    host: HostTime = field(default_factory=HostTime)

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
            "memory": {
                "request_bytes_per_token": self.request_bytes / self.request_tokens
                if self.request_tokens
                else None,
                **self.store,
            },
            "host": self.host.figures(self.prompt_tokens),
        }


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of the positive values; None if there is none."""
    logs = [math.log(v) for v in values if v]
    return math.exp(sum(logs) / len(logs)) if logs else None
