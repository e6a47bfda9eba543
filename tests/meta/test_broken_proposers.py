"""The kit catches every broken proposer, by the check that is there for it, and lets the right ones through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specplug.testing.conformance import check_proposer
from specplug.testing.report import ConformanceError
from specplug.testing.subject import CHECKS
from specplug.testing.toys import ConstantProposer, CopyProposer
from specplug.testing.toys_sampled import SampledProposer, SampledTreeProposer, TreeProposer

from .broken_drawn import model_of
from .broken_proposers import CAUGHT


@pytest.mark.parametrize("broken", list(CAUGHT), ids=lambda b: b.__name__)
def test_broken_proposer_is_caught(broken: Callable[..., Any]) -> None:
    check, words = CAUGHT[broken]
    with pytest.raises(ConformanceError) as caught:
        check_proposer(broken, only=[check], max_examples=200, shrink=False)
    assert [o.check for o in caught.value.report.failures] == [check]
    assert words in str(caught.value)


def drawn(context: Any) -> SampledProposer:
    """A right proposer of drawn chains."""
    return SampledProposer(context, model_of(context), lambda law: 0)


def drawn_tree(context: Any) -> SampledTreeProposer:
    """A right proposer of drawn trees."""
    return SampledTreeProposer(context, model_of(context), lambda law: 0, (-1, -1, 0))


def fixed_tree(context: Any) -> TreeProposer:
    """A right proposer of deterministic trees, but one that copies nothing and so knows no separators."""
    return TreeProposer(context, (-1, -1, 0, 2), (0, 1, 1, 0))


@pytest.mark.parametrize("right", [CopyProposer, ConstantProposer, drawn, drawn_tree, fixed_tree])
def test_right_proposers_pass(right: Callable[..., Any]) -> None:
    report = check_proposer(right, max_examples=8)
    assert {o.status for o in report.outcomes} <= {"passed", "skipped"}


def test_every_check_catches_something() -> None:
    assert {check for check, _ in CAUGHT.values()} == set(CHECKS)


def test_the_documentation_lists_all_culprits() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "verification-maths.md"
    text = page.read_text(encoding="utf-8")
    for broken, (check, _) in CAUGHT.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{check}` |"))
        assert f"`{broken.__name__}`" in row, f"{broken.__name__} is missing in the row of {check}"
    assert f"{len(CAUGHT)}\nproposers" in text
