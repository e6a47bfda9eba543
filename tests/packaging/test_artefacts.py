"""Wheel and sdist hold exactly what is tracked: a forgotten subpackage or a stray file fails here."""

from __future__ import annotations

import email
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest
import tomllib

FOLDERS = {
    "specplug": "specplug",
    "adapters": "specplug/adapters",
    "proposers": "specplug/proposers",
}


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def project(checkout: Path) -> dict[str, object]:
    """The ``[project]`` table."""
    table = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    assert isinstance(table, dict)
    return table


def test_wheel_holds_the_tracked_sources_and_nothing_else(
    wheel: Path, tracked_files: list[str]
) -> None:
    expected = []
    for name in tracked_files:
        folder, _, rest = name.partition("/")
        if folder in FOLDERS:
            expected.append(f"{FOLDERS[folder]}/{rest}")
    got = [name for name in _names(wheel) if ".dist-info/" not in name]
    assert sorted(set(expected) - set(got)) == [], "tracked, but missing in the wheel"
    assert sorted(set(got) - set(expected)) == [], "in the wheel, but not tracked"


def test_wheel_has_one_top_level_package_typed_and_licensed(wheel: Path) -> None:
    names = _names(wheel)
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"specplug"}
    assert "specplug/py.typed" in names
    assert [name for name in names if name.endswith("licenses/LICENSE")] != []


def test_wheel_from_the_sdist_is_the_same(wheel: Path, wheel_from_sdist: Path) -> None:
    assert wheel.name == wheel_from_sdist.name
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(wheel_from_sdist) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
        differing = [name for name in one.namelist() if one.read(name) != other.read(name)]
    assert differing == []


def test_sdist_holds_every_tracked_file(sdist: Path, tracked_files: list[str]) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert sorted(set(tracked_files) - names) == [], "tracked, but missing in the sdist"


def test_every_source_folder_is_a_package(tracked_files: list[str]) -> None:
    sources = [name for name in tracked_files if name.split("/")[0] in FOLDERS]
    folders = {str(Path(name).parent) for name in sources if name.endswith(".py")}
    assert folders >= set(FOLDERS)
    missing = sorted(folder for folder in folders if f"{folder}/__init__.py" not in sources)
    assert missing == [], (
        "add an __init__.py: setuptools ships such folders, type checkers skip them"
    )


def test_metadata_says_what_the_project_table_says(wheel: Path, project: dict[str, object]) -> None:
    from specplug import __version__

    metadata = _metadata(wheel)
    assert metadata["Name"] == project["name"] == "specplug"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == project["requires-python"]
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    assert metadata.get_all("Provides-Extra") == list(extras)
    assert {"vllm", "sglang", "test", "bench"} <= set(extras)
    unconditional = [
        text for text in metadata.get_all("Requires-Dist") or [] if "extra ==" not in text
    ]
    names = sorted(text.split(">")[0] for text in unconditional)
    assert names == ["numba", "numpy"], "the core depends on these two only"


def test_nothing_of_ours_is_loaded_by_every_pytest_run(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        text = archive.read(name).decode()
    assert "[specplug.proposers]" in text
    assert "[pytest11]" not in text, "a pytest11 entry point would run in every project of a user"


def test_every_dependency_bound_has_its_reason(checkout: Path) -> None:
    lines = (checkout / "pyproject.toml").read_text().splitlines()
    start = lines.index("dependencies = [")
    end = lines.index("[project.scripts]")
    bare = []
    for before, line in zip(lines[start:end], lines[start + 1 : end], strict=False):
        previous_is_reason = before.strip().startswith("#")
        if line.strip().startswith('"') and not (
            previous_is_reason or _shares_reason(before, line)
        ):
            bare.append(line.strip())
    assert bare == [], "write the reason of the bound in a comment above it"


def _shares_reason(before: str, line: str) -> bool:
    """The two lint tools stand under one comment; nothing else does."""
    return "mypy" in before and "ruff" in line
