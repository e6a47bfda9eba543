"""The table of checks in docs/writing-a-proposer.md is true; every point of the contract has a check and a culprit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specplug.testing import contract, isolation, lawcheck  # noqa: F401  they register their checks
from specplug.testing.subject import CHECKS

from .broken_proposers import CAUGHT

PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-proposer.md"

#: What a proposer promises: the checks that hold it to that, and a proposer that breaks the promise.
PROMISES = {
    "no draft is longer than allowed": ("valid_drafts", "TooLong"),
    "a ceiling of zero": ("nothing_asked", "NeedsRows"),
    "the context is never overrun": ("full_context", "OverrunsContext"),
    "stop tokens and limits end the output as in plain decoding": (
        "output_law",
        "ReportsAnotherLaw",
    ),
    "ids are in the vocabulary": ("valid_drafts", "OnePastTheEnd"),
    "large vocabularies": ("large_ids", "SixteenBits"),
    "separators and placeholders are not drafted": ("valid_drafts", "DraftsSeparators"),
    "separators and placeholders are not crossed": ("separators", "CrossesSeparators"),
    "state is reset when a slot is used again": ("forgets_unkept", "StaleSlot"),
    "slots may be used again at once": ("slot_reuse", "NeverLetsGo"),
    "the order of rows does not matter": ("row_order", "DependsOnRow"),
    "nor does the rest of the batch": ("batch_composition", "DependsOnBatch"),
    "determinism": ("deterministic", "UsesGlobalGenerator"),
    "the byte budget": ("memory_budget", "IgnoresBudget"),
    "no leak": ("no_leak", "Leaks"),
    "rejected tokens are rolled back": ("rollback", "RecordsDrafts"),
    "recovery after misses": ("recovery", "OnlyEverShorter"),
    "no history at all": ("empty_history", "NeedsHistory"),
    "namespaces": ("namespaces", "IgnoresNamespaces"),
}


def rows() -> dict[str, str]:
    """From each check named in the first column to the last column of its row."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == 3:
            for name in re.findall(r"`(\w+)`", cells[0]):
                assert name not in found, f"{name} stands in two rows"
                found[name] = cells[2]
    return found


def test_the_table_names_every_check_and_no_other() -> None:
    assert set(rows()) == set(CHECKS)


def test_known_bugs_are_named_by_project_and_number() -> None:
    cited = [bug for bugs in set(rows().values()) for bug in bugs.strip(" |").split(", ") if bug]
    assert len(cited) > 20
    for bug in cited:
        assert re.fullmatch(r"[\w.-]+ \d+|multimodal placeholders in SGLang", bug), bug
    assert len(cited) == len(set(cited)) + 1, (
        "ArcticInference 60 is about two checks, the others about one"
    )


@pytest.mark.parametrize("promise", PROMISES)
def test_every_promise_has_a_check_that_catches_its_breach(promise: str) -> None:
    check, culprit = PROMISES[promise]
    assert check in CHECKS
    caught = {broken.__name__: by for broken, (by, _) in CAUGHT.items()}
    assert caught[culprit] == check
