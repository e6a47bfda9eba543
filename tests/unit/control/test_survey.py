"""Trials of longer plans, where their cost is in doubt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specplug.control.plan import Plan
from specplug.control.survey import Trials

ROWS, LONGEST = 8, 4


@pytest.mark.parametrize("doubt", [0.15, 0.5])
def test_what_a_trial_is_said_to_bring_is_what_the_cost_model_expects(doubt: float) -> None:
    """Not what it would bring if the doubt were right, which is only why it is tried."""
    survival = np.tile(0.95 ** np.arange(1, LONGEST + 1), (ROWS, 1))
    costs = 1.0 + 0.125 * np.arange(ROWS * LONGEST + 1)
    cost: Any = SimpleNamespace(doubt=lambda _, most: np.full(most + 1, doubt))
    none = Plan(np.zeros(ROWS, np.int32), 0, 0.0, 1.0)
    found = Trials().turn(cost, none, survival, costs, ROWS, latency=False, most_cost=np.inf)
    assert found is not None
    assert found.total > 0
    expected = (ROWS + found.expected) / ROWS * costs[0] / costs[found.total]
    assert found.ratio == pytest.approx(expected)
