"""The example of docs/writing-a-proposer.md, installed beside specplug as its author would install it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

Python = Callable[..., str]


@pytest.fixture(scope="module")
def source(export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, far from the checkout; building it writes into it."""
    target = tmp_path_factory.mktemp("example") / "source"
    return Path(shutil.copytree(export / "examples" / "custom_proposer", target))


@pytest.fixture(scope="module")
def python(fresh_python: Callable[..., Python], wheel: Path, source: Path) -> Python:
    """Runs Python where specplug and the example are installed."""
    return fresh_python(source.parent / "venv", wheel, source)


def test_it_is_registered_with_its_options(python: Python) -> None:
    listed = json.loads(python("-m", "specplug", "proposers", "--json"))
    [echo] = [entry for entry in listed if entry["name"] == "specplug.echo"]
    assert (echo["distribution"], echo["problem"]) == ("specplug-echo", "")
    assert [option["name"] for option in echo["options"]] == ["words", "trust"]


def test_its_conformance_test_passes(python: Python, source: Path) -> None:
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--specplug-max-examples", "5"]
    shown = python(*command, cwd=source)
    assert " passed" in shown
    assert "failed" not in shown


def test_by_its_registered_name_without_pytest(python: Python) -> None:
    code = (
        "from specplug.testing import check_proposer\n"
        "print(check_proposer('specplug.echo', {'words': 3}, max_examples=5))\n"
    )
    assert "0 failures" in python("-c", code)
