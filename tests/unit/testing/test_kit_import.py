"""The kit needs hypothesis, and says so where it is missing."""

from __future__ import annotations

import subprocess
import sys


def test_a_missing_hypothesis_is_explained() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None; from specplug.testing import check_proposer"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "needs the package 'hypothesis'" in done.stderr
    assert "pip install 'specplug[test]'" in done.stderr
