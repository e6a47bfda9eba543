"""Drafts that are drawn at random: rejection sampling and block verification keep the law, exactly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from specplug.session import Session
from specplug.testing import strategies
from specplug.testing.cells import emitted_cells
from specplug.testing.law import Arrival, Scenario, check_law
from specplug.testing.paths import Oracle
from specplug.testing.targets import DraftRow
from specplug.testing.toys_sampled import ConfidentProposer, SampledProposer
from specplug.testing.verifiers import SAMPLED_CHAINS
from specplug.types import Context


@pytest.mark.parametrize("verifier", sorted(SAMPLED_CHAINS))
@pytest.mark.parametrize("proposer", [SampledProposer, ConfidentProposer])
@given(data=st.data())
def test_the_law_is_kept(
    proposer: type[SampledProposer], verifier: str, data: st.DataObject
) -> None:
    vocab_size = data.draw(st.sampled_from([2, 3]), label="vocabulary")
    target = data.draw(strategies.sampled_targets(vocab_size), label="target")
    assume(not target.greedy)
    model = data.draw(strategies.markov_targets(vocab_size, max_order=1), label="draft model")
    rule, script = data.draw(strategies.LENGTH_RULES, label="draft lengths")
    limit = data.draw(st.integers(1, 4 if vocab_size == 2 else 3), label="limit")
    stops = data.draw(st.frozensets(st.integers(0, vocab_size - 1), max_size=1), label="stops")
    arrival = Arrival((0,), limit, stops, tell_limit=data.draw(st.booleans(), label="tell limit"))
    context = Context(vocab_size, max_length=32, max_draft=3 if arrival.tell_limit else 2)
    drafted = []

    def sessions(oracle: Oracle) -> Session:
        def draw(law: np.ndarray) -> int:
            drafted.append(oracle.choose(law))
            return drafted[-1]

        built = proposer(context, model, draw)
        return Session(built, context, controller=rule(script), on_fault="raise")

    check_law(sessions, Scenario((arrival,)), target, SAMPLED_CHAINS[verifier])
    event("drafted" if drafted else "nothing drafted")


@pytest.mark.parametrize(
    ("verifier", "expected"), [("reject_sampled", 10 / 9), ("verify_block", 11 / 9)]
)
def test_mean_accepted_drafts_of_the_example_of_sun_et_al(verifier: str, expected: float) -> None:
    # Section 1 of the paper: target (1/3, 2/3), draft model (2/3, 1/3), two drafts.
    target = np.tile([1 / 3, 2 / 3], (3, 1))
    laws = np.tile([2 / 3, 1 / 3], (2, 1))
    mean = 0.0
    for tokens in itertools.product(range(2), repeat=2):
        draft = DraftRow(np.array(tokens, np.int32), None, laws)
        cells = emitted_cells(SAMPLED_CHAINS[verifier], target, draft)
        accepted = sum(weight * (len(emitted) - 1) for emitted, weight in cells.items())
        mean += laws[0, tokens[0]] * laws[1, tokens[1]] * accepted
    assert mean == pytest.approx(expected, abs=1e-14)
