"""Every registered proposer leaves the law of the output alone, exactly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specplug import registry
from specplug.errors import SettingsError
from specplug.protocols import Proposer
from specplug.testing import strategies
from specplug.testing.cells import Verifier
from specplug.testing.law import Arrival, Scenario, check_law
from specplug.testing.lawcheck import Sessions, check_random_law
from specplug.testing.targets import MarkovTarget, SampledTarget
from specplug.testing.toys import ConstantProposer, CopyProposer
from specplug.testing.verifiers import DETERMINISTIC, GREEDY
from specplug.types import Capabilities, Context

TOYS: dict[str, Callable[[Context], Proposer]] = {
    "copy": CopyProposer,
    "constant": ConstantProposer,
}


@pytest.mark.parametrize("name", registry.names())
@given(data=st.data())
def test_registered_proposer_keeps_the_law(name: str, data: st.DataObject, datastore: str) -> None:
    entry = registry.load(name)
    options = data.draw(strategies.options(entry.settings_type), label="options")
    if name in ("rest", "hybrid"):
        options["datastore"] = datastore

    def build(context: Context) -> Proposer:
        try:
            return registry.build_entry(entry, context, options)
        except SettingsError:
            assume(False)
            raise

    capabilities = build(Context(2, max_length=32, max_draft=4)).capabilities
    if capabilities.target_states:
        pytest.skip("needs a model's hidden states; tested with the engine")
    check_random_law(data, build, capabilities)


@pytest.mark.parametrize("verifier", [*DETERMINISTIC.values(), GREEDY], ids=lambda v: v.name)
def test_the_law_is_kept_while_drafts_are_accepted_and_rejected(verifier: Verifier) -> None:
    # Guards the properties above against saying nothing: here text repeats, and drafts must come.
    table = np.array([[0.05, 0.9, 0.05], [0.1, 0.1, 0.8], [0.7, 0.2, 0.1]])
    target = SampledTarget(MarkovTarget(table), temperature=0.0 if verifier.greedy else 1.0)
    entry = registry.load("suffix")
    # Two at a time: what the last burst of a request accepted is never observed.
    sessions = Sessions(
        lambda context: registry.build_entry(entry, context, {"store_mb": 0.1}),
        Context(3, max_length=32, max_draft=4, max_requests=2),
        lambda: strategies.ScriptedLengths((2,)),
    )
    prompt = (0, 1, 2) * 4
    scenario = Scenario((Arrival(prompt, 4), Arrival(prompt, 2, step=99)))
    check_law(sessions, scenario, target, verifier)
    assert 0 < sessions.accepted <= sessions.drafted
    assert verifier.greedy or sessions.accepted < sessions.drafted


@pytest.mark.parametrize("name", sorted(TOYS))
@given(data=st.data())
def test_toy_proposer_keeps_the_law(name: str, data: st.DataObject) -> None:
    check_random_law(data, TOYS[name], Capabilities())
