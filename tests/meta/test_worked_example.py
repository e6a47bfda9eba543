"""The example of docs/writing-a-proposer.md passes its own conformance test, run as its author would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "custom_proposer"


@pytest.mark.thorough
def test_the_worked_example_passes_the_kit() -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--specplug-max-examples",
            "10",
        ],
        cwd=EXAMPLE,
        # Not installed here, so its folder stands in for the installation.
        env={**os.environ, "PYTHONPATH": str(EXAMPLE)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "21 passed, 1 skipped" in run.stdout
