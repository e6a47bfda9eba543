"""A target given as a table of conditional laws, and not as a Markov chain."""

from __future__ import annotations

import numpy as np
import pytest

from specplug.session import Session
from specplug.testing.cells import Verifier
from specplug.testing.law import Arrival, Scenario, check_law, emitted_law
from specplug.testing.paths import Oracle
from specplug.testing.targets import SampledTarget, TableTarget
from specplug.testing.toys import ConstantProposer
from specplug.testing.verifiers import DETERMINISTIC
from specplug.types import Context

#: What follows depends on the whole history: (0, 1) and (1, 1) differ, which no chain of order 1 can say.
TABLE = {
    (): np.array([0.3, 0.7]),
    (0,): np.array([0.9, 0.1]),
    (0, 1): np.array([0.2, 0.8]),
    (1, 1): np.array([1.0, 0.0]),
}
TARGET = SampledTarget(TableTarget(TABLE, np.array([0.5, 0.5])))
CONTEXT = Context(2, max_length=16, max_draft=2)
SCENARIO = Scenario((Arrival((), 3),))


def sessions(oracle: Oracle) -> Session:
    return Session(ConstantProposer(CONTEXT, (1, 1)), CONTEXT, on_fault="raise")


@pytest.mark.parametrize("verifier", DETERMINISTIC.values(), ids=lambda v: v.name)
def test_the_law_of_a_table_is_kept(verifier: Verifier) -> None:
    check_law(sessions, SCENARIO, TARGET, verifier)
    law = emitted_law(sessions, SCENARIO, TARGET, verifier)
    assert law[((0, 1, 0),)] == pytest.approx(0.3 * 0.1 * 0.2, abs=1e-14)
    assert law[((1, 0, 1),)] == pytest.approx(0.7 * 0.5 * 0.5, abs=1e-14)
    assert ((1, 1, 1),) not in law or law[((1, 1, 1),)] == 0.0
