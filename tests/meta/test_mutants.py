"""The list of equivalent mutants names mutants that exist; the tool itself runs by hand (``tools/mutation.py``)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    """``tools/mutants.py``, which is no package."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


@pytest.mark.thorough
def test_every_listed_mutant_exists_and_has_a_reason(mutants: ModuleType) -> None:
    lines = (ROOT / "tests/meta/equivalent_mutants.txt").read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    known: dict[str, set[str]] = {}
    for entry in entries:
        key, _, why = entry.rpartition(" | ")
        path = key.partition(" | ")[0]
        if path not in known:
            known[path] = {mutant.key for mutant in mutants.mutants_of(path)}
        assert key in known[path], f"no such mutant (was the code changed?): {key}"
        assert len(why) > 20, entry
    assert len(entries) == len(set(entries))


def test_a_mutant_changes_one_line_of_one_function(mutants: ModuleType) -> None:
    changed = list(mutants.mutants_of("specplug/verify/verdict.py"))
    assert {m.function for m in changed} == {"Verdict.row", "blank_verdict"}
    assert all(m.before != m.after for m in changed)
    assert any("accepted[index] - 1" in m.after for m in changed)
