"""The goodput controller over proposers that draft by passes of the model: how many passes a step is worth.

What text suggests is there for nothing, so :class:`.goodput.GoodputController` cuts it after it was drafted. A pass of
the model takes time whatever becomes of its tokens, so it is decided before it runs, once for the batch:

* with ``n`` passes a step is expected to emit ``rows + text + sum of survival`` tokens and to take
  ``verification(tokens) + n * pass``. Survival comes from rates per position, learned per request; the time of a pass
  is measured, apart from the time of the verification. If no ``n`` beats ``n = 0`` by the margin, no pass runs.
* after a pass the confidence of its tokens is known. One more runs if what it is expected to add is worth more than its
  time at the rate of tokens that the plan of this step expects (one step of Dinkelbach, "On nonlinear fractional
  programming", Management Science 1967: time spent already changes nothing).
* what was drafted is cut to what pays to verify, as text is; the passes are over by then.

Where nothing pays a pass runs now and then, to see whether that is still so: at first one or two, then as often as no
more than :data:`SHARE` of the time is lost. What it drafts need not be verified: the target's own token judges the
first one.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.control.acceptance import AcceptanceModel
from specplug.control.cost import StepFacts
from specplug.control.goodput import GoodputController
from specplug.types import IntArray, ProbArray, Request

#: Plain steps per step that passes may lose which are not expected to pay; lost steps with which it begins, and the
#: most that can be saved up. What such passes bring is given back, so that little is lost near the break-even.
SHARE, START, MOST = 0.003, 0.45, 1.0
#: Steps for which "no pass pays" holds while nothing new is learned.
STEADY = 8
#: Most steps that are left out where no pass will be made: now and then the time of a plain step is measured.
REST = 32
#: Time of a pass before one was measured, in plain steps.
FIRST_GUESS = 0.5
#: Measurements that the time of a pass is the median of.
TIMINGS = 32
#: Steps without any step time after which costs stay at their prior.
BLIND_STEPS = 16


class PassTimes:
    """What a pass takes, in plain steps, by the number of rows in it (powers of two): the median of the last ones."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[float]] = {}
        self._median: dict[int, float] = {}
        self._first = True

    def add(self, rows: int, steps: float) -> None:
        """A pass over ``rows`` rows took ``steps`` plain steps; the first one of a process is slow."""
        if self._first or not 0.0 < steps < 100.0:
            self._first = False
            return
        size = rows.bit_length()
        seen = self._seen.setdefault(size, deque(maxlen=TIMINGS))
        seen.append(steps)
        self._median[size] = median(seen)  # numpy's takes as long as the rest of a decision

    @property
    def known(self) -> bool:
        """Whether any was measured."""
        return bool(self._median)

    def of(self, rows: int) -> float:
        """The expected time of a pass over ``rows`` rows: that of the nearest size which was measured."""
        if not self._median:
            return FIRST_GUESS
        size = rows.bit_length()
        return self._median[min(self._median, key=lambda known: abs(known - size))]


class PassController(GoodputController):
    """See the module; a :class:`specplug.protocols.PassPlanner` for the proposer that it steers.

    Attributes:
        times: what a pass takes.
        made, probes: passes so far, and those of them that were to find out.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        slots = len(self._wait)
        self.times = PassTimes()
        self.made = self.probes = 0
        self._rates = AcceptanceModel(slots, self._width, informed=False)
        self._of_passes: NDArray[np.bool_] = np.zeros(slots, bool)
        self._credit, self._charge = START, 0.0
        self._blind_steps = 0
        self._probing = False
        self._quiet = self._quiet_rows = self._resting = 0
        self._rate = 1.0
        self._slots: IntArray = np.zeros(0, np.int32)
        self._verified = 0  # tokens of the step's pass before any draft of ours
        self._step_passes = 0
        self._pass = FIRST_GUESS
        self._forecast: ProbArray = np.zeros((0, 0))
        self._prices: ProbArray = np.zeros(1)
        # Most passes whose tokens may be verified, in the time that a step may take.
        self._deepest = 0
        self._room = False  # for the tokens of one pass
        self._pass_seconds = 0.0

    # What the session and the adapter call.

    def begin(self, slot: int, request: Request) -> None:
        """A request takes a slot."""
        super().begin(slot, request)
        self._rates.begin(slot, request)
        self._of_passes[slot] = False
        self._quiet = self._resting = 0

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        """All that is allowed; passes are asked about later, by the proposer."""
        super().plan(slots, limits, ceilings)
        self._of_passes[slots] = False
        self._step_passes = 0

    def compare(self, slots: IntArray, tested: IntArray, agreed: IntArray) -> None:
        """What the target said about the drafts; those of passes teach what the next passes are worth."""
        super().compare(slots, tested, agreed)
        mine = self._of_passes[slots] & (tested > 0)
        if not mine.any():
            return
        slots, tested, agreed = slots[mine], tested[mine], agreed[mine]
        self._rates.learn(slots, tested, agreed)
        self._book(float(agreed.mean()))
        self._quiet = 0

    def timed(self, facts: StepFacts) -> None:
        """The time of the passes is told apart: the cost model learns what verifying takes."""
        passing, self._pass_seconds = min(self._pass_seconds, max(0.0, facts.host)), 0.0
        super().timed(facts._replace(seconds=facts.seconds - passing, host=facts.host - passing))
        # What drafting brought is held against the whole of it.
        self._seconds += passing

    def as_dict(self) -> dict[str, object]:
        """State and totals, as plain values."""
        rows = max(1, self._rows)
        about = {
            "passes": self.made,
            "pass_probes": self.probes,
            "pass_cost": self.times.of(rows),
        }
        return {**super().as_dict(), **about}

    # What the proposer asks and tells.

    def first_pass(
        self, slots: IntArray, limits: IntArray, text: tuple[IntArray, ProbArray, IntArray]
    ) -> bool:
        """Whether to make a pass for ``slots`` (int32 ``[B]``), with room for ``limits`` (int32 ``[B]``) tokens.

        Args:
            text: rows of the same step that are drafted otherwise: slots int32 ``[T]``, survival float64 ``[T, K]``,
                lengths int32 ``[T]``.
        """
        self._book(0.0)  # if the last passes were judged by nobody
        self._slots, self._probing = slots, False
        self._credit = min(self._credit + SHARE, MOST)
        if not self.cost.ready:
            # The first steps say what a step takes; an adapter without a clock has no more to say later.
            self._blind_steps += 1
            if self._blind_steps < BLIND_STEPS:
                return False
        self._pass = self.times.of(len(slots))
        if self._pays(slots, limits, text):
            return True
        # The first passes are made to be measured, if the step may have tokens of theirs at all.
        allowed = self._deepest > 0 or (self._room and not self.times.known)
        self._probing = self._credit >= 0.0 and allowed
        self.probes += self._probing
        if not self._probing:
            owed = -self._credit if allowed else MOST
            self._resting = min(REST, int(owed / SHARE))
        return self._probing

    def rests(self) -> bool:
        """Whether no pass is made in this step whatever it is like, so that nobody need be asked."""
        if self._resting <= 0:
            return False
        self._resting -= 1
        self._credit += SHARE
        return True

    def next_pass(self, rows: NDArray[np.int64], survival: ProbArray) -> bool:
        """Whether to make one more pass.

        Args:
            rows: int64 ``[R]``, those of :meth:`first_pass` that have room for it, as places in its ``slots``.
            survival: float64 ``[R, n]``, by the proposer's confidence, of the ``n`` tokens that each row has.
        """
        place = survival.shape[1]
        if self._probing or not 0 < place < self._deepest:
            return False
        slots = self._slots[rows]
        drafted = np.full(len(slots), place, np.int32)
        self.acceptance.read(slots, survival, drafted)
        known = self.acceptance.forecast(slots, drafted, place)[:, -1]
        after = self._forecast[rows, place] / self._forecast[rows, place - 1]
        verified = self._prices[place + 1] - self._prices[place]
        return float(known @ after) > self._rate * (self._pass + float(verified))

    def passed(self, slots: IntArray, passes: int, seconds: float) -> None:
        """So many passes were made for ``slots`` (int32 ``[B]``) in this step; they took ``seconds`` together."""
        self.made += passes
        self._step_passes = passes
        self._of_passes[slots] = True
        self._pass_seconds = seconds
        self._charge = passes * self._pass
        if self.cost.ready:
            # At most: the first ones are slow, and any may meet a hiccup.
            most = max(MOST, 2.0 * self.times.of(len(slots)) if self.times.known else 0.0)
            self._charge = min(seconds / self.cost.scale, passes * most)
            self.times.add(len(slots), seconds / passes / self.cost.scale)

    def _pays(
        self, slots: IntArray, limits: IntArray, text: tuple[IntArray, ProbArray, IntArray]
    ) -> bool:
        """Plan the number of passes; sets the rate of tokens that further passes compete with."""
        text_slots, text_survival, text_lengths = text
        fixed = self._rows + self._others
        self._verified = fixed + int(text_lengths.sum())
        if not len(text_slots) and self._quiet > 0 and self._quiet_rows == len(slots):
            self._quiet -= 1
            return False
        most = min(int(limits.max(initial=0)), self._width)
        depth = np.arange(1, most + 1)
        room = limits[:, None] >= depth
        self._forecast = self._rates.forecast(slots, limits, most)
        gains = np.cumsum(self._forecast.sum(axis=0))
        tokens = np.cumsum(room.sum(axis=0))
        emitted = self._rows + self._promised(text_slots, text_survival, text_lengths)
        costs = self.cost.table(
            self._verified, int(tokens[-1]) if most else 0, self._rows, self._context
        )
        # Of the verification after 0, 1, 2, ... passes: kept for the passes of this step.
        self._prices = costs[np.concatenate([[0], tokens])]
        spent = self._prices[1:] + depth * self._pass
        budget = min(self.settings.max_draft_tokens, self._allowed(self._rows))
        fits = tokens <= budget - int(text_lengths.sum())
        self._room = bool(fits[:1].any())
        if self.settings.slo_ms is not None and self.cost.ready:
            fits &= spent <= self.settings.slo_ms / 1e3 / self.cost.scale
        self._deepest = int(np.logical_and.accumulate(fits).sum())
        ratios = ((emitted + gains) * costs[0] / (emitted * spent))[: self._deepest]
        best = float(ratios.max(initial=0.0))
        pays = best > 1.0 + self.settings.margin + self._caution
        self._rate = max(1.0, best) * emitted / float(costs[0])
        if not pays:
            self._quiet, self._quiet_rows = STEADY, len(slots)
        return pays

    def _book(self, gained: float) -> None:
        """What the last passes brought, in tokens per row, less what they took; plans that lose make no debts."""
        if self._charge:
            floor = -np.inf if self._probing else min(self._credit, 0.0)
            self._credit = min(MOST, max(floor, self._credit + gained - self._charge))
            self._charge = 0.0

    def _promised(self, slots: IntArray, survival: ProbArray, lengths: IntArray) -> float:
        """Tokens that the drafts of text are expected to bring."""
        width = min(int(lengths.max(initial=0)), self._width)
        if not width:
            return 0.0
        self.acceptance.read(slots, survival, lengths)
        return float(self.acceptance.forecast(slots, lengths, width).sum())

    def _check(self) -> None:
        # Passes whose tokens were all cut have cost their time too.
        self._drafted = self._drafted or self._step_passes
        super()._check()
