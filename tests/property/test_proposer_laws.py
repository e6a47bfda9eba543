"""Every registered proposer leaves the law of the output alone, exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from specplug import registry
from specplug.errors import SettingsError
from specplug.protocols import Proposer
from specplug.session import Session
from specplug.testing import strategies
from specplug.testing.law import check_law
from specplug.testing.paths import Oracle
from specplug.testing.toys import ConstantProposer, CopyProposer
from specplug.testing.verifiers import DETERMINISTIC, GREEDY
from specplug.types import Context

TOYS: dict[str, Callable[[Context], Proposer]] = {
    "copy": CopyProposer,
    "constant": ConstantProposer,
}


def check_random_law(
    data: st.DataObject, build: Callable[[Context], Proposer], max_draft: int = 4
) -> None:
    """Draw a target and a scenario, and compare the exact laws with and without drafts."""
    vocab_size = data.draw(st.sampled_from([2, 3]), label="vocabulary")
    target = data.draw(strategies.sampled_targets(vocab_size), label="target")
    scenario = data.draw(strategies.scenarios(vocab_size), label="scenario")
    rule, script = data.draw(strategies.LENGTH_RULES, label="draft lengths")
    names = ["greedy"] if target.greedy else sorted(DETERMINISTIC)
    verifier = data.draw(st.sampled_from(names), label="verifier")
    context = Context(vocab_size, max_length=32, max_draft=max_draft, max_requests=2)
    drafted = 0

    def sessions(oracle: Oracle) -> Session:
        nonlocal drafted
        session = Session(build(context), context, controller=rule(script), on_fault="raise")
        step = session.step

        def counting(*rows: Any) -> Any:
            nonlocal drafted
            out = step(*rows)
            drafted += int(out.lengths.sum())
            return out

        session.step = counting  # type: ignore[method-assign]
        return session

    check_law(sessions, scenario, target, DETERMINISTIC.get(verifier, GREEDY))
    event("drafted" if drafted else "nothing drafted")


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


@pytest.mark.parametrize("name", sorted(TOYS))
@given(data=st.data())
def test_toy_proposer_keeps_the_law(name: str, data: st.DataObject) -> None:
    check_random_law(data, TOYS[name])
