"""The goodput controller: how many draft tokens each request verifies in each step.

Two ways to drive it, by one state:

* **trimming** (``trims=True``): the proposer drafts first, then :meth:`GoodputController.trim` cuts the drafts to what
  pays, by the proposer's estimates. For deterministic drafts only: what is cut depends on the draft. What was cut is
  still compared with what the target says, so a request whose drafts are worthless verifies nothing and yet returns
  with the first drafts that would have been right. No probe is needed.
* **planning** (``trims=False``): :meth:`GoodputController.plan` sets the lengths before anything is drafted, from rates
  per position learned per request. Depends on the past only, so it fits drafts of any kind. Requests that verify
  nothing get a probe of one token now and then.

Nothing here looks at a clock; step times come through :meth:`GoodputController.timed`.
"""

from __future__ import annotations

import functools
import logging
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specplug.control.acceptance import AcceptanceModel, FloatArray
from specplug.control.cost import CostModel, StepFacts
from specplug.control.costfile import CostSeed, is_measured, write_seed
from specplug.control.decisions import Decisions
from specplug.control.ledger import Ledger
from specplug.control.options import GoodputSettings
from specplug.control.plan import Plan, spend, spend_at_rate, spend_uniform
from specplug.control.survey import Survey, Trials
from specplug.types import Context, IntArray, Request

log = logging.getLogger("specplug")

#: Steps between two probes of a request that verifies nothing: first, and at most.
PROBE_FIRST, PROBE_MOST = 4, 16

#: Steps for which a common length is kept unless another is better by a fifth of its gain.
DWELL = 8

#: How much of the newest step the running figure of the realised gain takes.
_NEWEST = 0.05

#: Steps after which the cost file is written, and then every so many.
SAVE_FIRST, SAVE_EVERY = 200, 2000

#: Tokens over which the slope of the cost is taken.
_AHEAD = 8

#: How far the batch may exceed the longest step ever timed: the knee of the cost may lie just beyond.
_GROWTH, _ALWAYS = 2, 32


class GoodputController:
    """See the module; implements :class:`specplug.protocols.Controller`, and with ``trims`` its trimming half.

    Args:
        context: limits of the engine process.
        settings: options.
        cost: a model of the step's cost; a fresh one by default.
        trims: see the module.
        informed: whether drafts come with estimates; otherwise rates per position are learned.
        machine: name of the machine, for the cost file.
        actions: lengths that the engine can verify, the same for every row; None: any length per row.
    """

    def __init__(
        self,
        context: Context,
        settings: GoodputSettings | None = None,
        *,
        cost: CostModel | None = None,
        trims: bool = True,
        informed: bool = True,
        machine: str = "",
        actions: tuple[int, ...] | None = None,
    ) -> None:
        self.settings = settings or GoodputSettings()
        self.trims = trims
        self.actions = actions
        self._machine = machine
        self.cost = cost or CostModel()
        self.decisions = Decisions()
        self.ledger = Ledger(self.settings.async_loss_ms / 1e3)
        slots, width = context.max_requests, context.max_draft
        self.acceptance = AcceptanceModel(slots, width, informed=trims and informed)
        self._width = width
        self._context = 0  # tokens in the cache, from the last timed step
        self._batch = self._prefill = 0  # requests of the last step, prompt tokens of the next
        self._others = (
            0  # tokens of the next pass that are not ours: prefill, requests without drafts
        )
        self._caution = 0.0
        self._brought, self._spent = (
            1.0,
            1.0,
        )  # tokens, and plain steps in which as many would have come
        self._seconds = math.nan
        self._rows = 0
        self._emitted = 0
        self._drafted = self._budget = 0
        self._wait = np.full(slots, PROBE_FIRST)
        self._idle = np.zeros(slots, np.int64)
        self._host_per_row = 0.0
        self._held, self._age = 0, 0
        self._survey, self._trials, self._tried = Survey(), Trials(), False
        _warm_up()

    # What the session calls.

    def know_sources(self, count: int, sources: NDArray[np.uint8]) -> None:
        """Which source each token of a draft comes from; see :meth:`.AcceptanceModel.know_sources`."""
        if self.trims and count > 1:
            self.acceptance.know_sources(count, sources)

    def begin(self, slot: int, request: Request) -> None:
        """A request takes a slot."""
        self.acceptance.begin(slot, request)
        self._wait[slot] = PROBE_FIRST
        self._idle[slot] = 0

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        """Before drafting: with ``trims`` who is asked at all, otherwise the lengths."""
        self._check()
        self._rows, self._emitted, self._drafted = len(slots), len(slots), 0
        self._budget = 0
        self._others = self._prefill + max(0, self._batch - len(slots))
        if not len(slots):
            return
        if self.trims:
            ceilings[:] = limits
            self._rest(slots, ceilings)
            return
        plan = self._decide(slots, limits, int(limits.sum()), self._width)
        ceilings[:] = np.minimum(plan.lengths, limits)
        probed = self._probe(slots, limits, ceilings)
        if self.actions is not None and not probed:
            other = self._survey.turn(int(plan.lengths[0]), self.actions)
            if other is not None:
                ceilings[:] = np.minimum(limits, other)
                probed = True
        self._note(int(limits.sum()), int(ceilings.sum()), plan, "probe" if probed else "")

    def trim(self, slots: IntArray, survival: FloatArray, lengths: IntArray) -> None:
        """After drafting: shorten ``lengths`` (int32 ``[B]``) to what pays. ``survival``: float64 ``[B, K]``."""
        total, width = self.acceptance.read(slots, survival, lengths)
        if not total:
            self._note(0, 0, None, "nothing offered")
            return
        plan = self._decide(slots, lengths, total, width)
        np.minimum(lengths, plan.lengths, out=lengths)
        # Only common lengths may be longer than what some rows have.
        drafted = plan.total if self.actions is None else int(lengths.sum())
        self._note(total, drafted, plan, "probe" if self._tried else "")

    def compare(self, slots: IntArray, tested: IntArray, agreed: IntArray) -> None:
        """Of what was offered, ``tested`` positions could be judged and ``agreed`` were what the target said.

        Args:
            slots, tested, agreed: int32 ``[B]``; ``tested`` is ``agreed`` or one more.
        """
        self.acceptance.learn(slots, tested, agreed)

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """How the drafts that were verified fared: int32 ``[B]`` each."""
        total = int(accepted.sum())
        self._emitted += total
        self.decisions.accepted(total, int(drafted.sum()) - total)
        if self.trims:
            return
        self.acceptance.learn(slots, np.minimum(drafted, accepted + 1), accepted)
        back = accepted > 0
        self._wait[slots] = np.where(
            back, PROBE_FIRST, np.minimum(self._wait[slots] * 2, PROBE_MOST)
        )

    # What the adapter calls.

    def timed(self, facts: StepFacts) -> None:
        """The step that verified the last plan took so long; to be called before the next :meth:`plan`.

        Without any such call, costs stay at their prior.
        """
        # Prefill makes a step long whatever is drafted: it says nothing about the drafts.
        self._seconds = facts.seconds if self.cost.ready and not facts.prefill else math.nan
        self.cost.observe(facts)
        self.decisions.measured(facts.seconds)
        self._context = facts.context
        # Nonsense of an adapter must not become an index.
        self._batch, self._prefill = max(0, facts.requests), max(0, facts.next_prefill)
        if facts.requests and math.isfinite(facts.host) and facts.host >= 0:
            self._host_per_row += 0.1 * (facts.host / facts.requests - self._host_per_row)

        if self.settings.cost_file and self.cost.steps % SAVE_EVERY == SAVE_FIRST:
            self._save(Path(self.settings.cost_file))

    def _save(self, path: Path) -> None:
        if is_measured(path):
            self.settings = replace(self.settings, cost_file=None)
            return
        _, values = self.cost.shape()
        seed = CostSeed(tuple(v / values[0] for v in values), self._machine, "measured in serving")
        try:
            write_seed(path, seed)
        except OSError as error:
            log.warning("specplug: cost file %s cannot be written: %s", path, error)
            self.settings = replace(self.settings, cost_file=None)

    def verify_cost(self) -> float:
        """What one more draft token costs, in steps per token of a request: what a proposer's own stop needs."""
        base = max(1, self._rows)
        costs = self.cost.table(base + self._others, _AHEAD, base, self._context)
        return float((costs[-1] - costs[0]) / (_AHEAD * costs[0]) * base)

    def as_dict(self) -> dict[str, object]:
        """State and totals, as plain values."""
        return {
            "controller": "goodput",
            "mode": self.settings.mode,
            "caution": self._caution,
            "gain": self.ledger.gain,
            "plain_step_seconds": self.cost.scale if self.cost.ready else None,
            "cost_shape": dict(zip(*self.cost.shape(), strict=True)),
            "cost_steps": self.cost.steps,
            "cost_rejected": self.cost.rejected,
            **self.decisions.as_dict(),
        }

    # How it decides.

    def _decide(self, slots: IntArray, limits: IntArray, total: int, width: int) -> Plan:
        """The lengths of a step, at most ``limits``, whose sum is ``total`` and the longest of which ``width``."""
        survival = self.acceptance.forecast(slots, limits, width)
        rows = len(slots)
        most = min(total, self.settings.max_draft_tokens, self._allowed(rows))
        self._budget = most
        costs = self.cost.table(
            rows + self._others, max(0, most), rows, self._context, self._prefill
        )
        margin, self._tried = self.settings.margin + self._caution, False
        if self.actions is not None:
            plan = spend_uniform(survival, costs, self.actions, margin=margin)
            return self._dwell(plan, survival, costs)
        slo = math.inf
        if self.settings.slo_ms is not None and self.cost.ready:
            slo = self.settings.slo_ms / 1000.0 / self.cost.scale
        latency = self.settings.mode == "latency"
        plan = spend(survival, costs, margin=margin, latency=latency, most_cost=slo)
        if self._prefill and plan.total:
            alone = self.cost.table(rows, max(0, most), rows, self._context)
            free = spend(survival, alone, margin=margin, latency=latency)
            plan = spend_at_rate(survival, costs[: plan.total + 1], free.ratio * rows / alone[0])
        elif self.cost.ready and self.trims:
            base = rows + self._others
            other = self._trials.turn(self.cost, plan, survival, costs, base, latency, slo)
            self._tried = other is not None
            plan = other or plan
        return plan

    def _allowed(self, rows: int) -> int:
        """Draft tokens up to which costs are known or may be explored."""
        if not self.cost.ready:
            return _ALWAYS
        known = max(self.cost.largest, rows + self._others)
        return max(_ALWAYS, _GROWTH * known - rows - self._others)

    def _dwell(self, plan: Plan, survival: FloatArray, costs: FloatArray) -> Plan:
        """Keep a common length for some steps unless another is clearly better: switching shapes is not free."""
        length = int(plan.lengths[0]) if len(plan.lengths) else 0
        self._age += 1
        if length == self._held or not len(survival):
            return plan
        old = spend_uniform(survival, costs, (self._held,), margin=-1.0)
        clearly = plan.ratio - 1.0 > 1.2 * (old.ratio - 1.0) + 0.02 or old.ratio < 1.0
        if self._age < DWELL and self._held and not clearly:
            return old
        self._held, self._age = length, 0
        return plan

    def _probe(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> bool:
        """One token, now and then, for rows that verify nothing; all rows at once where lengths are common."""
        zero = ceilings == 0
        self._idle[slots] = np.where(zero, self._idle[slots] + 1, 0)
        due = zero & (self._idle[slots] >= self._wait[slots]) & (limits > 0)
        if not due.any():
            return False
        least = 1 if self.actions is None else min((a for a in self.actions if a > 0), default=0)
        if self.actions is None:
            # A few rows per step: probes of a whole batch at once would be a step of its own.
            due &= np.cumsum(due) <= max(1, len(slots) // PROBE_MOST)
            ceilings[due] = 1
        elif zero.all():
            ceilings[:] = np.minimum(limits, least)
            due = zero
        self._idle[slots[due]] = 0
        return bool((ceilings > 0).any())

    def _rest(self, slots: IntArray, ceilings: IntArray) -> None:
        """Do not even ask for drafts where asking costs more host time than the drafts bring."""
        if not self.cost.ready or self._host_per_row <= 0.0:
            return
        per_token = self.cost.seconds(len(slots), len(slots), self._context) / len(slots)
        useful = self.acceptance.useful[slots]
        hopeless = useful < min(0.02, 2.0 * self._host_per_row / per_token)
        self._idle[slots] = np.where(hopeless, self._idle[slots] + 1, 0)
        ceilings[hopeless & (self._idle[slots] % PROBE_FIRST != 0)] = 0

    def _note(self, offered: int, drafted: int, plan: Plan | None, reason: str) -> None:
        self._drafted = drafted
        if not reason:
            reason = "plan" if drafted else "cautious" if self._caution > 0.05 else "does not pay"
        requests = self._rows
        predicted = math.nan
        if self.cost.ready:
            predicted = self.cost.seconds(
                requests + self._others + drafted, requests, self._context, self._prefill
            )
        self.decisions.add(
            rows=requests,
            offered=offered,
            budget=self._budget,
            drafted=drafted,
            expected=plan.expected if plan else 0.0,
            ratio=plan.ratio if plan else 1.0,
            predicted=predicted,
            reason=reason,
        )

    def _check(self) -> None:
        """Hold what drafting brought against what it cost; where it loses, ask for more before drafting again."""
        seconds, self._seconds = self._seconds, math.nan
        plain = math.nan
        if self._rows and not math.isnan(seconds):
            plain = self.cost.seconds(self._rows + self._others, self._rows, self._context)
            self.ledger.add(self._rows, self._emitted, seconds, plain)
        if not self._drafted or math.isnan(plain):
            self._caution *= 0.998
            return
        self._brought += _NEWEST * (self._emitted - self._brought)
        self._spent += _NEWEST * (self._rows * min(seconds / plain, 10.0) - self._spent)
        lost = max(0.0, 1.0 - self._brought / max(self._spent, 1e-9))
        self._caution = 0.98 * self._caution + 0.05 * lost


@functools.cache
def _warm_up() -> None:
    """Compile or load the kernels now, once per process, and not in the first steps of an engine."""
    one = np.ones(1, np.int32)
    model = AcceptanceModel(1, 1)
    model.read(0 * one, np.ones((1, 1)), one)
    survival = model.forecast(0 * one, one, 1)
    model.learn(0 * one, one, one)
    spend(survival, np.ones(2), latency=True)
    spend_at_rate(survival, np.ones(2), 1.0)
    cost = CostModel()
    for _ in range(8):
        cost.observe(StepFacts(1.0, 1, 1))
