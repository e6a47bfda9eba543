"""Every registered proposer leaves the law of the output alone, exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from specplug import registry
from specplug.errors import SettingsError
from specplug.protocols import Proposer
from specplug.session import Session
from specplug.testing import strategies
from specplug.testing.cells import Verifier
from specplug.testing.law import Arrival, Scenario, check_law
from specplug.testing.paths import Oracle
from specplug.testing.targets import MarkovTarget, SampledTarget
from specplug.testing.toys import ConstantProposer, CopyProposer
from specplug.testing.verifiers import DETERMINISTIC, GREEDY
from specplug.types import Context

TOYS: dict[str, Callable[[Context], Proposer]] = {
    "copy": CopyProposer,
    "constant": ConstantProposer,
}


@dataclass
class Sessions:
    """Builds a session per path, and adds up what they drafted."""

    build: Callable[[Context], Proposer]
    context: Context
    rule: type[strategies.ScriptedLengths] = strategies.ScriptedLengths
    script: tuple[int, ...] = (4,)
    built: list[Session] = field(default_factory=list)

    def __call__(self, oracle: Oracle) -> Session:
        session = Session(
            self.build(self.context),
            self.context,
            controller=self.rule(self.script),
            on_fault="raise",
        )
        self.built.append(session)
        return session

    @property
    def accepted_and_drafted(self) -> tuple[int, int]:
        return (
            sum(session.stats.accepted for session in self.built),
            sum(session.stats.drafted for session in self.built),
        )


def check_random_law(data: st.DataObject, build: Callable[[Context], Proposer]) -> None:
    """Draw a target and a scenario, and compare the exact laws with and without drafts."""
    vocab_size = data.draw(st.sampled_from([2, 3]), label="vocabulary")
    target = data.draw(strategies.sampled_targets(vocab_size), label="target")
    scenario = data.draw(strategies.scenarios(vocab_size), label="scenario")
    rule, script = data.draw(strategies.LENGTH_RULES, label="draft lengths")
    names = ["greedy"] if target.greedy else sorted(DETERMINISTIC)
    verifier = data.draw(st.sampled_from(names), label="verifier")
    context = Context(vocab_size, max_length=32, max_draft=4, max_requests=2)
    sessions = Sessions(build, context, rule, script)
    check_law(sessions, scenario, target, DETERMINISTIC.get(verifier, GREEDY))
    accepted, drafted = sessions.accepted_and_drafted
    event("accepted" if accepted else "drafted" if drafted else "nothing drafted")


@pytest.mark.parametrize("name", registry.names())
@given(data=st.data())
def test_registered_proposer_keeps_the_law(name: str, data: st.DataObject) -> None:
    entry = registry.load(name)
    options = data.draw(strategies.options(entry.settings_type), label="options")

    def build(context: Context) -> Proposer:
        try:
            return registry.build(name, context, options)
        except SettingsError:
            assume(False)
            raise

    check_random_law(data, build)


@pytest.mark.parametrize("verifier", [*DETERMINISTIC.values(), GREEDY], ids=lambda v: v.name)
def test_the_law_is_kept_while_drafts_are_accepted_and_rejected(verifier: Verifier) -> None:
    # Guards the properties above against saying nothing: here text repeats, and drafts must come.
    table = np.array([[0.05, 0.9, 0.05], [0.1, 0.1, 0.8], [0.7, 0.2, 0.1]])
    target = SampledTarget(MarkovTarget(table), temperature=0.0 if verifier.greedy else 1.0)
    context = Context(3, max_length=32, max_draft=4, max_requests=2)
    # Two at a time: what the last burst of a request accepted is never observed.
    sessions = Sessions(
        lambda c: registry.build("suffix", c, {"store_mb": 0.1}), context, script=(2,)
    )
    prompt = (0, 1, 2) * 4
    scenario = Scenario((Arrival(prompt, 4), Arrival(prompt, 2, step=99)))
    check_law(sessions, scenario, target, verifier)
    accepted, drafted = sessions.accepted_and_drafted
    assert 0 < accepted <= drafted
    assert verifier.greedy or accepted < drafted


@pytest.mark.parametrize("name", sorted(TOYS))
@given(data=st.data())
def test_toy_proposer_keeps_the_law(name: str, data: st.DataObject) -> None:
    check_random_law(data, TOYS[name])
