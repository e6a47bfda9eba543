"""What a person reads when the law is broken: a small example, and both laws side by side.

The expected messages lie in ``tests/golden/``; ``SPECPLUG_RENEW_GOLDEN=1`` writes them anew, to be read before they
are committed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.session import Session
from specplug.testing import check_proposer, strategies
from specplug.testing.law import Arrival, LawViolationError, Scenario, check_law
from specplug.testing.properties import explore_examples
from specplug.testing.report import ConformanceError
from specplug.testing.targets import SampledTarget
from specplug.testing.toys import ConstantProposer
from specplug.types import Context

from .broken_drawn import ReportsAnotherLaw
from .broken_proposers import StaleSlot
from .broken_verifiers import BROKEN

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def compare(name: str, message: str) -> None:
    """Hold a message against its file."""
    path = GOLDEN / name
    if os.environ.get("SPECPLUG_RENEW_GOLDEN"):
        path.write_text(f"{message}\n", encoding="utf-8")
    assert message == path.read_text(encoding="utf-8").rstrip("\n")


def test_a_proposer_that_reports_a_wrong_law() -> None:
    with pytest.raises(ConformanceError) as caught:
        check_proposer(ReportsAnotherLaw, only=["output_law"])
    compare("proposer_reports_another_law.txt", str(caught.value))


def test_a_proposer_that_remembers_what_it_should_forget() -> None:
    with pytest.raises(ConformanceError) as caught:
        check_proposer(StaleSlot, only=["forgets_unkept"])
    compare("proposer_keeps_a_stale_slot.txt", str(caught.value))


def test_a_verification_without_residual() -> None:
    broken = next(b for b in BROKEN if b.name == "missing residual, one-hot")

    @explore_examples(200)
    @given(
        target=strategies.sampled_targets(2),
        drafts=st.lists(st.integers(0, 1), min_size=1, max_size=3),
        limit=st.integers(1, 3),
    )
    def kept(target: SampledTarget, drafts: list[int], limit: int) -> None:
        context = Context(2, max_length=16, max_draft=3)
        check_law(
            lambda oracle: Session(ConstantProposer(context, tuple(drafts)), context),
            Scenario((Arrival((0,), limit, tell_limit=False),)),
            target,
            broken.verifier(),
        )

    with pytest.raises(LawViolationError) as caught:
        kept()
    compare(
        "verification_without_residual.txt",
        "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())]),
    )
