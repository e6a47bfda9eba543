"""How long a whole engine step takes, learned from the steps themselves.

The model is ``seconds = scale * (f(tokens) + a * context + b * requests + c * share of prefill)``, where ``f`` is
piecewise linear with a knot at every power of two, so that the flat part of a memory-bound engine, the knee and the
slope of a compute-bound one all fit. It is a Bayesian linear regression on steps divided by the plain step: prior mean
(a seed, or a gentle slope), prior precision, discounted sufficient statistics. Each observation counts less the farther
it lies off, in units that include how little is known there (full weight within 2 of them, then falling with the square
of the distance, so that a slow step pulls less than a slightly slow one; as in Holland and Welsch, "Robust regression
using iteratively reweighted least-squares", 1977), but a fast one always counts.

``scale`` follows the machine's speed quickly; it changes no decision, because goodput compares steps of one machine.
Where the engine pads to captured shapes (CUDA graphs), tokens are counted after padding, so the cost has steps.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.control.costfile import KNOTS, CostSeed

FloatArray = NDArray[np.float64]
log = logging.getLogger("specplug")

_N = len(KNOTS)
_SIZE = _N + 3  # weights: of the knots, of context, requests and share of prefill
_CONTEXT_UNIT = 10_000.0
_REQUEST_UNIT = 100.0

#: Slope per token of an engine of which nothing is known, as a fraction of its plain step; and how sure that is.
PRIOR_SLOPE, PRIOR_SLOPE_SD = 0.02, 0.03

#: Discount of old steps; relative noise that is assumed at first.
_MEMORY, _NOISE = 0.998, 0.1

#: Steps before the first fit; steps after which all is fitted anew (the first steps of an engine are slow ones);
#: steps between two fits later on.
_WARM_UP, _AGAIN, _EVERY = 4, (16, 48), 8


#: Least weight of a step that was faster than expected.
_FAST = 0.5

#: Steps between two knots before a much slower one than expected counts in full.
_CONFIRMED = 3

#: Steps whose median tells whether the machine changed its speed.
_SHIFT = 8


class StepFacts(NamedTuple):
    """One engine step, as an adapter saw it.

    Attributes:
        seconds: how long it took, from the start of one step to the start of the next, waiting for work excluded.
        tokens: in the forward pass: of the decoding requests, their drafts and prefill.
        requests: in the batch.
        context: tokens of all these requests together, in the key-value cache.
        prefill: prompt tokens among ``tokens``.
        host: seconds in our own code, part of ``seconds``.
        next_prefill: prompt tokens that the next step is expected to compute.
    """

    seconds: float
    tokens: int
    requests: int
    context: int = 0
    prefill: int = 0
    host: float = 0.0
    next_prefill: int = 0


class CostModel:
    """See the module. ``observe`` costs some microseconds, a fit (every eighth step) some tens.

    Args:
        captured: ascending token counts to which the engine pads; above the largest there is no padding.
        seed: what is known beforehand.
    """

    def __init__(self, captured: Sequence[int] = (), seed: CostSeed | None = None) -> None:
        self.captured: NDArray[np.int64] = np.array(sorted(set(captured)), np.int64)
        self._shapes: list[int] = self.captured.tolist()
        self._x = np.zeros(_SIZE)
        self.scale = math.nan  # seconds of a plain step; unknown before the first ones
        self.steps = 0
        self.rejected = 0
        self.largest = 0
        self.noise = _NOISE
        self._mean, self._precision = _prior(seed)
        self._a = np.zeros((_SIZE, _SIZE))
        self._b = np.zeros(_SIZE)
        self._theta = self._mean.copy()
        self._covariance: FloatArray = _inverse(self._precision) * _NOISE**2
        self._first: list[StepFacts] = []
        self._seen = [0] * (_N + 1)
        self._recent: list[float] = []
        self._values = np.zeros(0)
        self._table = np.zeros(0)
        # Not loaded with this module, which adapters import for StepFacts alone.
        from specplug.kernels import step_time

        self._kernel = step_time
        self._strange = 0
        self._tabulate()

    @property
    def ready(self) -> bool:
        """Whether a step was measured; before that only ratios mean something."""
        return not math.isnan(self.scale)

    def observe(self, facts: StepFacts) -> None:
        """Learn from a step. Impossible ones (no time, no tokens, a clock that jumped) are left out and counted."""
        if not self._possible(facts):
            self.rejected += 1
            if self.rejected == 1:
                log.warning(
                    "specplug: a step of %r seconds with %d tokens is left out of the cost model",
                    facts.seconds,
                    facts.tokens,
                )
            return
        self.steps += 1
        if self.steps <= _AGAIN[-1]:
            self._first.append(facts)
            if self.steps == _WARM_UP or self.steps in _AGAIN:
                self._start()
                return
            if not self.ready:
                return
        self._add(facts)
        if self.steps % _EVERY == 0 or self.steps < 4 * _EVERY:
            self._fit()

    def seconds(self, tokens: int, requests: int, context: int = 0, prefill: int = 0) -> float:
        """Expected duration of one step; in units of a plain step before :attr:`ready`."""
        value = self._relative(tokens, requests, context, prefill)
        return value * (self.scale if self.ready else 1.0)

    def table(
        self, base: int, most: int, requests: int, context: int = 0, prefill: int = 0
    ) -> FloatArray:
        """Relative cost of steps with ``base``, ``base + 1``, ..., ``base + most`` tokens: float64 ``[most + 1]``.

        ``prefill`` of the ``base`` are of prompts, for which engines run other kernels.
        """
        end = base + most + 1
        if end > len(self._table):
            self._tabulate(max(end, 2 * len(self._table)))
        costs: FloatArray = self._table[base:end] + self._rest(base, requests, context, prefill)
        return np.maximum(costs, 0.05, out=costs)

    def _relative(self, tokens: int, requests: int, context: int, prefill: int) -> float:
        """The first number of :meth:`table`, without making one."""
        if tokens >= len(self._table):
            self._tabulate(max(tokens + 1, 2 * len(self._table)))
        rest = self._rest(tokens, requests, context, prefill)
        return max(float(self._table[tokens]) + rest, 0.05)

    def _rest(self, tokens: int, requests: int, context: int, prefill: int) -> float:
        """What a step costs besides its tokens."""
        per_context, per_request, per_prefill = self._others
        rest = per_context * context / _CONTEXT_UNIT + per_request * requests / _REQUEST_UNIT
        return max(0.0, rest) + per_prefill * prefill / max(1, tokens)

    def doubt(self, base: int, most: int) -> FloatArray:
        """Standard deviation of what ``table(base, most, ...)`` says beyond its first value: float64 ``[most + 1]``."""
        tokens = self._padded(np.arange(base, base + most + 1))
        known = _BASIS - _basis(float(tokens[0]))
        variance = ((known @ self._covariance[:_N, :_N]) * known).sum(axis=1)
        beyond = np.array(KNOTS) > tokens[0]
        places = np.concatenate([tokens[:1], np.array(KNOTS)[beyond]])
        spread = np.sqrt(np.maximum(variance[beyond], 0.0))
        found: FloatArray = np.interp(tokens, places, np.concatenate([[0.0], spread]))
        return found

    def shape(self) -> tuple[list[int], list[float]]:
        """Token counts and the relative cost of a step with so many: what a seed holds."""
        return list(KNOTS), self._values.tolist()

    def _possible(self, facts: StepFacts) -> bool:
        if not (math.isfinite(facts.seconds) and facts.seconds > 1e-7 and facts.tokens > 0):
            return False
        if self.ready and facts.seconds > 20 * self.seconds(
            facts.tokens, facts.requests, facts.context, facts.prefill
        ):
            # A clock that jumped, or a machine that slept; if it goes on like that it is the truth.
            self._strange += 1
            return self._strange > 3
        self._strange = 0
        return True

    def _start(self) -> None:
        """Fit what was seen so far from the prior on; the newer half decides what a plain step takes."""
        self._theta = self._mean.copy()
        self._covariance = _inverse(self._precision) * _NOISE**2
        self._a[:], self._b[:], self.noise = 0.0, 0.0, _NOISE
        self._seen = [0] * (_N + 1)
        self._tabulate()
        newer = self._first[len(self._first) // 2 :]
        shapes = [self._relative(f.tokens, f.requests, f.context, f.prefill) for f in newer]
        self.scale = float(np.median([f.seconds / s for f, s in zip(newer, shapes, strict=True)]))
        for facts in self._first:
            self._add(facts)
        if self.steps >= _AGAIN[-1]:
            self._first.clear()
        self._fit()

    def _add(self, facts: StepFacts) -> None:
        x = self._x
        x[_N] = facts.context / _CONTEXT_UNIT
        x[_N + 1] = facts.requests / _REQUEST_UNIT
        x[_N + 2] = facts.prefill / max(1, facts.tokens)
        tokens = float(self._padded_one(facts.tokens))
        expected, variance = self._kernel.expect(tokens, _INNER, self._theta, self._covariance, x)
        expected = max(0.05, expected)
        y = facts.seconds / self.scale
        uncertain = self.noise**2 + variance / expected**2
        off = (y - expected) / expected
        far = abs(off) / math.sqrt(uncertain)
        weight = min(1.0, 2.0 / far) ** 2 if far > 0 else 1.0
        if off < 0.0:
            # Nothing makes a step faster than it can be: a fast one shows that the model is wrong.
            weight = max(weight, _FAST)
        self.noise += 0.02 * (min(abs(off), 3 * self.noise) * 1.25 - self.noise)
        self.noise = min(max(self.noise, 0.01), 0.5)
        self.scale *= math.exp(0.02 * max(-0.2, min(0.2, off)))
        self._recent.append(math.log(y / expected))
        if len(self._recent) == _SHIFT:
            # The whole machine became faster or slower: that is no reason to doubt the shape.
            middle = float(np.median(self._recent))
            if abs(middle) > 0.5:
                self.scale *= math.exp(middle)
                y *= math.exp(-middle)
            self._recent.clear()
        interval = bisect_left(KNOTS, facts.tokens)
        self._seen[interval] += 1
        if off > 1.0 and self._seen[interval] <= _CONFIRMED:
            # One slow step must not close a range of lengths that nobody would then ever try again.
            weight *= 0.05
        weight /= expected**2  # errors are relative
        self._kernel.absorb(self._a, self._b, x, y, weight, _MEMORY)
        self.largest = max(int(self.largest * 0.9995), facts.tokens)

    def _fit(self) -> None:
        matrix = self._a + self._precision
        inverse = _inverse(matrix)
        self._theta = inverse @ (self._b + self._precision @ self._mean)
        self._covariance = inverse * self.noise**2
        self._tabulate()

    def _padded_one(self, tokens: int) -> int:
        place = bisect_left(self._shapes, tokens)
        return self._shapes[place] if place < len(self._shapes) else tokens

    def _padded(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        if not len(self.captured):
            return tokens
        place = np.searchsorted(self.captured, tokens)
        inside = place < len(self.captured)
        return np.where(inside, self.captured[np.minimum(place, len(self.captured) - 1)], tokens)

    def _tabulate(self, size: int = 0) -> None:
        size = max(size, len(self._table), 1024)
        # Of context, requests and share of prefill.
        self._others: list[float] = self._theta[_N:].tolist()
        values = _BASIS @ self._theta[:_N]
        # Noise must not make a longer step look cheaper than a shorter one.
        self._values = np.maximum(np.maximum.accumulate(values), 0.05)
        tokens = np.arange(size)
        if self.captured.size:
            tokens = self._padded(tokens)
        self._table = np.interp(tokens, KNOTS, self._values)


def _inverse(matrix: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.inv(matrix), np.float64)


def _basis(tokens: float) -> FloatArray:
    """1, tokens, and how far tokens exceed each inner knot."""
    row = np.empty(_N)
    row[0], row[1] = 1.0, tokens - 1.0
    row[2:] = np.maximum(0.0, tokens - _INNER)
    return row


_INNER = np.array(KNOTS[1:-1], np.float64)
_BASIS = np.array([_basis(float(k)) for k in KNOTS])


def _prior(seed: CostSeed | None) -> tuple[FloatArray, FloatArray]:
    """Mean and precision (noise variance 1 times _NOISE**2) of the weights."""
    mean = np.zeros(_SIZE)
    mean[0], mean[1] = 1.0, PRIOR_SLOPE
    if seed is not None:
        mean[:_N] = np.linalg.solve(_BASIS, np.array(seed.relative))
    sd = np.empty(_SIZE)
    sd[0], sd[1] = 0.3, PRIOR_SLOPE_SD
    # Beyond its knee a step costs in proportion to its tokens: there the slope changes by about 1 / knee.
    sd[2:_N] = 0.5 / _INNER
    sd[_N], sd[_N + 1], sd[_N + 2] = 0.05, 0.1, 0.2
    if seed is not None:
        sd[1:_N] = np.minimum(sd[1:_N], 0.25 * np.abs(mean[1:_N]) + 0.05 / KNOTS[1])
        sd[2:_N] = np.minimum(sd[2:_N], 0.25 * np.abs(mean[2:_N]) + 0.1 / _INNER)
    return mean, np.diag((_NOISE / sd) ** 2)
