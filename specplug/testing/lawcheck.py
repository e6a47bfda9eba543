"""The check that matters most: with drafts, the exact law of the output is that of plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st

from specplug.protocols import Controller, Proposer
from specplug.session import Session
from specplug.stats import SessionStats
from specplug.testing import strategies
from specplug.testing.cells import Verifier
from specplug.testing.law import Arrival, Scenario, check_law
from specplug.testing.paths import Oracle
from specplug.testing.subject import Subject, check, use_draw
from specplug.testing.tree_verifiers import GREEDY_TREE, ONE_HOT_TREE, SAMPLED_TREE
from specplug.testing.verifiers import DETERMINISTIC, GREEDY, SAMPLED_CHAINS
from specplug.testing.watch import Watched
from specplug.types import Capabilities, Context, ProbArray


def verifiers_for(capabilities: Capabilities, greedy: bool) -> list[Verifier]:
    """The verifications that fit the drafts of a proposer."""
    if capabilities.sampled:
        return [SAMPLED_TREE] if capabilities.trees else list(SAMPLED_CHAINS.values())
    if capabilities.trees:
        return [GREEDY_TREE] if greedy else [ONE_HOT_TREE]
    return [GREEDY] if greedy else list(DETERMINISTIC.values())


@dataclass
class Sessions:
    """Builds a session for each path, and adds up what all of them drafted.

    Only the counters are kept: there may be a thousand paths, and the tables of a proposer take megabytes.
    """

    build: Callable[[Context], Proposer]
    context: Context
    controller: Callable[[], Controller] = lambda: strategies.ScriptedLengths((4,))
    stats: list[SessionStats] = field(default_factory=list)

    def __call__(self, oracle: Oracle) -> Session:
        proposer = self.build(self.context)
        if proposer.capabilities.sampled:
            use_draw(proposer, _chooser(oracle))
        session = Session(
            Watched(proposer, self.context),
            self.context,
            controller=self.controller(),
            on_fault="raise",
        )
        self.stats.append(session.stats)
        return session

    @property
    def accepted(self) -> int:
        """Drafts that were accepted on all paths together, as far as a later step observed it."""
        return sum(stats.accepted for stats in self.stats)

    @property
    def drafted(self) -> int:
        """Drafts on all paths together."""
        return sum(stats.drafted for stats in self.stats)


def _chooser(oracle: Oracle) -> Callable[[ProbArray], int]:
    return lambda law: oracle.choose(np.asarray(law).tolist())


def check_random_law(
    data: st.DataObject,
    build: Callable[[Context], Proposer],
    capabilities: Capabilities,
    controller: Callable[[], Controller] | None = None,
) -> Sessions:
    """Draw a target, its sampling and a scenario, and compare the exact laws with and without drafts.

    Raises:
        LawViolationError: they differ; both are in the message.
    """
    vocab_size = data.draw(st.sampled_from([2, 3]), label="vocabulary")
    target = data.draw(strategies.sampled_targets(vocab_size), label="target")
    scenario = data.draw(_scenarios(vocab_size, capabilities), label="scenario")
    if controller is None:
        rule, script = data.draw(strategies.LENGTH_RULES, label="draft lengths")
        controller = lambda: rule(script)  # noqa: E731  a def would shadow the parameter
    fitting = verifiers_for(capabilities, target.greedy)
    verifier = data.draw(st.sampled_from(fitting), label="verifier")
    width = 2 if capabilities.sampled else 4
    context = Context(vocab_size, max_length=32, max_draft=width, max_requests=2)
    sessions = Sessions(build, context, controller)
    check_law(sessions, scenario, target, verifier)
    event("accepted" if sessions.accepted else "drafted" if sessions.drafted else "nothing drafted")
    return sessions


def _scenarios(vocab_size: int, capabilities: Capabilities) -> st.SearchStrategy[Scenario]:
    if not capabilities.sampled:
        return strategies.scenarios(vocab_size)
    # Every draw doubles or triples the paths, so drawn drafts get one short request.
    return st.builds(
        lambda prompt, limit, stops, tell: Scenario(
            (Arrival(prompt, limit, stops, tell_limit=tell),)
        ),
        strategies.histories(vocab_size, max_size=6),
        st.sampled_from([1, 2, 3]),
        st.frozensets(st.integers(0, vocab_size - 1), max_size=1),
        st.booleans(),
    )


@check(
    "The exact law of the output is that of plain decoding, for every target, sampling and scenario."
)
def check_output_law(subject: Subject) -> None:
    @subject.explore()
    @given(data=st.data())
    def kept(data: st.DataObject) -> None:
        check_random_law(data, subject.build, subject.capabilities)

    kept()
