"""From what a replay counted to tokens per second: a model of a server that serves ``B`` requests at a time.

A step with ``B`` requests holds one token of each and the drafts; their number is the sum of ``B`` independent draws
from the draft lengths that the replay counted. Its expected duration comes from the cost file, plus our own host
time, one request after the other. A request is one prefill step and then decoding. What the model leaves out: prefixes
that are cached, prefill that shares a step with decoding, attention to long contexts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specplug.replay.metrics import Tally
from specplug.tune.costs import FloatArray, StepCosts


@dataclass(slots=True)
class Counts:
    """Sums over workloads.

    Attributes:
        lengths: steps by the number of draft tokens.
        host_seconds: CPU time of the proposer, prompts included.
        buckets: steps, emitted and drafted tokens, as the log went on.
    """

    requests: int
    prompt_tokens: int
    response_tokens: int
    steps: int
    emitted: int
    drafted: int
    accepted: int
    lengths: FloatArray
    host_seconds: float
    buckets: FloatArray

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per step, steps without a draft counted; 1 without any step."""
        return self.emitted / self.steps if self.steps else 1.0

    def speedup(self, cost: float) -> float:
        """Emitted tokens per unit of work, a draft token costing ``cost`` plain steps; 1 without any step."""
        work = self.steps + cost * self.drafted
        return self.emitted / work if work else 1.0

    def doubt(self, cost: float) -> float:
        """Standard error of :meth:`speedup`: the log is cut into buckets, and each is left out once (jackknife)."""
        kept = self.buckets[self.buckets[:, 0] > 0]
        n = len(kept)
        if n < 2:
            return float("inf")
        total = kept.sum(axis=0)
        rest = total - kept
        values = rest[:, 1] / (rest[:, 0] + cost * rest[:, 2])
        return float(np.sqrt((n - 1) / n * ((values - values.mean()) ** 2).sum()))


def counts(tallies: Iterable[Tally]) -> Counts:
    """The sums of several tallies."""
    found = list(tallies)
    longest = max((len(t.draft_sizes) for t in found), default=1) or 1
    lengths = np.zeros(longest)
    for tally in found:
        lengths[: len(tally.draft_sizes)] += tally.draft_sizes
    times = (d for t in found for d in (t.host.step_cpu, t.host.start_cpu, t.host.finish_cpu))
    rows = [[r["steps"], r["emitted"], r["drafted"]] for t in found for r in t.series.rows()]
    return Counts(
        sum(t.requests for t in found),
        sum(t.prompt_tokens for t in found),
        sum(t.response_tokens for t in found),
        sum(t.steps for t in found),
        sum(t.emitted for t in found),
        sum(t.drafted for t in found),
        sum(t.accepted for t in found),
        lengths,
        sum(d.total for d in times) / 1e9,
        np.array(rows, np.float64).reshape(-1, 3),
    )


class Forecast(NamedTuple):
    """A server with ``requests`` at a time.

    Attributes:
        tokens_per_second, plain_tokens_per_second: of all requests together, prefill included.
        ms_per_token, plain_ms_per_token: that one request waits for a token while it decodes.
    """

    requests: int
    tokens_per_second: float
    plain_tokens_per_second: float
    ms_per_token: float
    plain_ms_per_token: float

    @property
    def speedup(self) -> float:
        """Tokens per second against plain decoding."""
        return self.tokens_per_second / self.plain_tokens_per_second


def forecast(found: Counts, costs: StepCosts, requests: int) -> Forecast:
    """What to expect of a server that always has ``requests`` running."""
    if not found.steps:
        plain = requests / float(costs.seconds(float(requests)))
        return Forecast(requests, plain, plain, 1e3 * requests / plain, 1e3 * requests / plain)
    host = requests * found.host_seconds / found.steps
    step = step_seconds(found.lengths, costs, requests) + host
    plain = float(costs.seconds(float(requests)))
    answered = max(1, found.requests)
    prefill = float(costs.seconds(found.prompt_tokens / answered or 1.0))
    emitted = found.emitted / answered

    def per_second(seconds: float, tokens: float) -> float:
        """Each request: a prefill of its own, which gives one token, and its share of the steps."""
        return (1 + emitted) / (prefill + emitted / tokens * seconds / requests)

    mal = found.mean_acceptance_length
    return Forecast(
        requests, per_second(step, mal), per_second(plain, 1.0), 1e3 * step / mal, 1e3 * plain
    )


def step_seconds(lengths: FloatArray, costs: StepCosts, requests: int) -> float:
    """Expected duration of a step: the mean over the law of how many draft tokens ``requests`` requests bring."""
    law = lengths / lengths.sum()
    size = requests * (len(law) - 1) + 1
    # The law of a sum of independent draws is a power of the transform.
    total = np.fft.irfft(np.fft.rfft(law, 2 * size) ** requests, 2 * size)[:size]
    total = np.clip(total, 0.0, None)
    durations = costs.seconds(requests + np.arange(size, dtype=np.float64))
    return float((total * durations).sum() / total.sum())


def break_even(found: Counts, costs: StepCosts, batches: Iterable[int]) -> int | None:
    """The largest of ``batches`` up to which it always pays; None if it does not at the smallest."""
    best = None
    for batch in batches:
        if forecast(found, costs, batch).speedup < 1.0:
            break
        best = batch
    return best
