"""The exact law catches every broken verification, and the right ones pass on the same scenarios."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specplug.session import Session
from specplug.testing.cells import HiddenEdgeError, Verifier
from specplug.testing.law import Arrival, LawViolationError, Scenario, check_law
from specplug.testing.paths import Oracle
from specplug.testing.targets import MarkovTarget, SampledTarget
from specplug.testing.toys import ConstantProposer
from specplug.testing.toys_sampled import SampledProposer, SampledTreeProposer, TreeProposer
from specplug.testing.tree_verifiers import ONE_HOT_TREE, SAMPLED_TREE
from specplug.testing.verifiers import BLOCK, COMPARE, GREEDY, ONE_HOT, SAMPLED
from specplug.types import Context

from .broken_verifiers import BROKEN, Broken

#: Uneven, and different after every token, so that a position, a row or a token taken for another shows.
TABLE = np.array([[0.5, 0.3, 0.2], [0.15, 0.6, 0.25], [0.35, 0.05, 0.6]])
TIES = np.array([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4], [0.4, 0.2, 0.4]])
MODEL = MarkovTarget(np.array([[0.2, 0.5, 0.3], [0.4, 0.3, 0.3], [0.3, 0.6, 0.1]]))


def law_of(verifier: Verifier, drafts: str, width: int = 2) -> float:
    """Check the law of two tokens after a short prompt; raises as `check_law` does."""
    greedy = drafts == "greedy"
    target = SampledTarget(MarkovTarget(TIES if greedy else TABLE), temperature=float(not greedy))
    context = Context(3, max_length=16, max_draft=width)

    def sessions(oracle: Oracle) -> Session:
        built = {
            "one_hot": lambda: ConstantProposer(context, (1, 2)),
            "greedy": lambda: ConstantProposer(context, (0, 1)),
            "sampled": lambda: SampledProposer(context, MODEL, oracle.choose),
            "tree": lambda: TreeProposer(context, (-1, -1), (1, 2)),
            "sampled_tree": lambda: SampledTreeProposer(context, MODEL, oracle.choose, (-1, -1)),
        }[drafts]()
        return Session(built, context, on_fault="raise")

    scenario = Scenario((Arrival((0, 2, 1, 0), width + 1, tell_limit=False),))
    return check_law(sessions, scenario, target, verifier)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.name)
def test_broken_verifier_is_caught(broken: Broken) -> None:
    with pytest.raises(LawViolationError, match="differs from plain decoding by") as caught:
        law_of(broken.verifier(), broken.drafts, broken.width)
    assert "expected" in str(caught.value), "both laws stand side by side"


@pytest.mark.parametrize(
    ("verifier", "drafts"),
    [
        (ONE_HOT, "one_hot"),
        (COMPARE, "one_hot"),
        (GREEDY, "greedy"),
        (SAMPLED, "sampled"),
        (BLOCK, "sampled"),
        (ONE_HOT_TREE, "tree"),
        (SAMPLED_TREE, "sampled_tree"),
    ],
    ids=lambda v: getattr(v, "name", v),
)
def test_right_verifiers_pass_on_the_same_scenarios(verifier: Verifier, drafts: str) -> None:
    assert law_of(verifier, drafts) <= 1e-14


def test_a_forgotten_edge_is_noticed() -> None:
    blind = Verifier("blind", ONE_HOT.run, lambda target, draft: [np.zeros(0)] * 3, ONE_HOT.coins)
    with pytest.raises(HiddenEdgeError, match="its edges lack a point between them"):
        law_of(blind, "one_hot")


#: How the documentation calls the drafts of each kind.
KINDS = {
    "sampled": "drawn",
    "one_hot": "deterministic",
    "greedy": "greedy",
    "tree": "tree",
    "sampled_tree": "drawn tree",
}


def test_the_documentation_lists_all_of_them_by_their_drafts() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "verification-maths.md"
    text = page.read_text(encoding="utf-8")
    listed = {
        (name, kind)
        for kind in KINDS.values()
        for line in text.splitlines()
        if line.startswith("| ") and line.endswith(f" | {kind} |")
        for name in line.strip("| ").removesuffix(f" | {kind}").split("; ")
    }
    names = {(b.name.removesuffix(", one-hot"), KINDS[b.drafts]) for b in BROKEN}
    assert listed == names
    assert f"{len(BROKEN)} verifications" in text
