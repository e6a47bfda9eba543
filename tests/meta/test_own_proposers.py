"""Our own proposers pass the kit by the very call that everybody else uses; whoever registers one is among them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from specplug import registry
from specplug.testing import check_proposer

TESTS = Path(__file__).resolve().parents[1]
#: The files that run their properties for all registered proposers.
FOR_ALL = ("property/test_proposer_laws.py", "meta/test_own_proposers.py")


@pytest.mark.parametrize("name", registry.names())
def test_registered_proposer_passes_the_kit(name: str, datastore: str) -> None:
    examples = settings().max_examples // 4  # there are 22 checks
    options = {"datastore": datastore} if name in ("rest", "hybrid") else {}
    report = check_proposer(name, options, max_examples=examples)
    assert {o.status for o in report.outcomes} <= {"passed", "skipped"}


def test_trees_from_a_datastore_pass_the_kit(datastore: str) -> None:
    options = {"datastore": datastore, "tree": True}
    report = check_proposer("rest", options, max_examples=settings().max_examples // 4)
    assert {o.status for o in report.outcomes} <= {"passed", "skipped"}


def test_a_newly_registered_proposer_gets_all_of_this_without_a_line(tmp_path: Path) -> None:
    info = tmp_path / "newcomer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: newcomer\nVersion: 1.0\n")
    point = "newcomer = specplug.testing.toys:CopyProposer"
    (info / "entry_points.txt").write_text(f"[specplug.proposers]\n{point}\n")
    run = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
        + [str(TESTS / file) for file in FOR_ALL],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for test in (
        "test_registered_proposer_keeps_the_law[newcomer]",
        "test_registered_proposer_passes_the_kit[newcomer]",
    ):
        assert test in run.stdout
