"""When to verify something else than what is planned, because no other step would show what it costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.control.cost import CostModel
from specplug.control.costfile import KNOTS
from specplug.control.plan import Plan, spend

FloatArray = NDArray[np.float64]

#: Where all rows have a common length, steps that it stays the same before another one is tried for some steps, at
#: first and at most.
SURVEY_FIRST, SURVEY_MOST, SURVEY_STEPS = 16, 512, 3

#: Steps until it is asked again whether a longer plan may be better, at first and at most: asking takes as long as
#: planning, and is of no use while nothing changes.
ASKED_FIRST, ASKED_MOST = 2, 16

#: Steps between two trials about as long, at first and at most; how many standard deviations less it may cost; and how
#: much better the plan would have to be then.
TRIAL_FIRST, TRIAL_MOST, HOPE, WORTH = 4, 512, 2.0, 1.05


class Survey:
    """When to try another common length, and which: none, or half of the present one, in turn."""

    def __init__(self) -> None:
        self._present = self._steps = self._left = self._count = self._other = 0
        self._patience = SURVEY_FIRST

    def turn(self, length: int, actions: tuple[int, ...]) -> int | None:
        """Another length for this step, or None for the one that was planned."""
        if self._left:
            self._left -= 1
            return self._other
        if length != self._present:
            self._present, self._steps, self._patience = length, 0, SURVEY_FIRST
        self._steps += 1
        if not length or self._steps < self._patience:
            return None
        self._steps, self._patience = 0, min(2 * self._patience, SURVEY_MOST)
        self._count += 1
        shorter = [a for a in actions if 0 < a <= length // 2]
        self._other = max(shorter) if shorter and self._count % 2 else 0
        self._left = SURVEY_STEPS - 1
        return self._other


class Trials:
    """When to verify more than what pays by the cost model, because the model may be wrong about long steps.

    A plan that cuts drafts is followed by short steps only, and these never show that longer ones are cheaper than
    was thought. So now and then the plan is made for costs as low as they may well be, by the covariance of the fit
    (optimism in the face of uncertainty; Lai and Robbins, "Asymptotically efficient adaptive allocation rules",
    Advances in Applied Mathematics 1985). What was tried is known better, so this ends by itself; between two trials
    of about the same number of tokens lie twice as many steps each time.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._ask, self._wait = 0, ASKED_FIRST
        self._due = [0] * (len(KNOTS) + 1)
        self._patience = [TRIAL_FIRST] * (len(KNOTS) + 1)

    def turn(
        self,
        cost: CostModel,
        plan: Plan,
        survival: FloatArray,
        costs: FloatArray,
        base: int,
        latency: bool,
        most_cost: float,
    ) -> Plan | None:
        """A longer plan for this step, or None for the one that was made.

        Args:
            cost: the model that ``costs`` are from.
            plan: what was made for them.
            survival, costs, latency, most_cost: as for :func:`specplug.control.plan.spend`.
            base: tokens of the step without drafts.
        """
        if plan.total >= len(costs) - 1:
            return None
        self._steps += 1
        if self._steps < self._ask:
            return None
        self._ask = self._steps + self._wait
        self._wait = min(2 * self._wait, ASKED_MOST)
        hopeful = np.maximum(costs - HOPE * cost.doubt(base, len(costs) - 1), costs[0])
        hopeful[1:][costs[1:] > most_cost] = np.inf  # a promised step time is kept by what is known
        other = spend(survival, hopeful, margin=WORTH - 1.0, latency=latency)
        if other.total <= plan.total or other.ratio < WORTH * plan.ratio:
            return None
        place = int(np.searchsorted(KNOTS, base + other.total))
        if self._steps < self._due[place]:
            return None
        self._ask, self._wait = 0, ASKED_FIRST
        self._due[place] = self._steps + self._patience[place]
        self._patience[place] = min(2 * self._patience[place], TRIAL_MOST)
        return other._replace(ratio=other.ratio * float(hopeful[other.total] / costs[other.total]))
