"""``tools/environments.py`` on a synthetic checkout: sharing, interruption, failure.

The synthetic lock file is empty and the synthetic build backend needs nothing, so nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "specplug"
version = "0.0.1"
"""

BACKEND = """
import pathlib, re, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    here = pathlib.Path(__file__).parent
    version = re.search('version = "(.*)"', (here / "pyproject.toml").read_text())[1]
    info = f"specplug-{version}.dist-info"
    files = {
        "specplug.pth": f"{here}\\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: specplug\\nVersion: {version}\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in files)
    name = f"specplug-{version}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name
"""
WHERE = "import specplug; print(specplug.__file__, specplug.NAME)"


def _clone(folder: Path, tools: Path) -> Path:
    """Write a small checkout; every clone differs only in what ``specplug.NAME`` says."""
    shutil.copytree(tools, folder / "tools")
    for name, text in {
        "pyproject.toml": PYPROJECT,
        "backend.py": BACKEND,
        "specplug/__init__.py": f"NAME = {folder.name!r}\n",
        "specplug/_version.py": "",
        "requirements/core.txt": "# nothing\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _start(clone: Path, cache: Path, code: str = WHERE) -> subprocess.Popen[str]:
    """Start ``environments.py run core -P -c code`` in a clone, without access to any index."""
    command = [sys.executable, "tools/environments.py", "run", "core", "-P", "-c", code]
    environment = {**os.environ, "SPECPLUG_CACHE": str(cache), "PIP_NO_INDEX": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=clone, env=environment, **pipes)  # type: ignore[call-overload,no-any-return]


def _finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.strip(), err


@pytest.fixture(scope="module")
def clones(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two clones that were started at the same moment on an empty cache, and the cache."""
    folder = tmp_path_factory.mktemp("clones")
    one, two = (_clone(folder / name, checkout / "tools") for name in ("one", "two"))
    running = [_start(clone, folder / "cache") for clone in (one, two)]
    for clone, process in zip((one, two), running, strict=True):
        out, _ = _finish(process)
        assert out == f"{clone}/specplug/__init__.py {clone.name}"
    return one, two, folder / "cache"


def test_clones_share_packages_but_not_the_checkout(clones: tuple[Path, Path, Path]) -> None:
    _, _, cache = clones
    assert len(list(cache.glob("envs/core-*/specplug-complete"))) == 1
    stamps = list(cache.glob("checkouts/core-*/specplug-complete"))
    assert {stamp.read_text().strip().rpartition("/")[2] for stamp in stamps} == {"one", "two"}


def test_a_second_run_builds_nothing(clones: tuple[Path, Path, Path]) -> None:
    one, _, cache = clones
    out, progress = _finish(_start(one, cache))
    assert out == f"{one}/specplug/__init__.py one"
    assert progress == ""


def test_new_packaging_metadata_is_installed_beside_the_old(
    clones: tuple[Path, Path, Path],
) -> None:
    one, _, cache = clones
    before = set(cache.glob("checkouts/core-*/specplug-complete"))
    (one / "pyproject.toml").write_text(PYPROJECT.replace("0.0.1", "0.0.2"))
    code = "from importlib.metadata import version; print(version('specplug'))"
    assert _finish(_start(one, cache, code))[0] == "0.0.2"
    assert before < set(cache.glob("checkouts/core-*/specplug-complete"))


def test_spawned_workers_stay_in_the_environment(clones: tuple[Path, Path, Path]) -> None:
    _, two, cache = clones
    code = (
        f"import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', {WHERE!r}]))"
    )
    assert f"{two}/specplug/__init__.py two" in _finish(_start(two, cache, code))[0]


def test_an_interrupted_build_is_built_again(clones: tuple[Path, Path, Path]) -> None:
    _, two, cache = clones
    stamps = list(cache.glob("checkouts/core-*/specplug-complete"))
    [stamp] = [stamp for stamp in stamps if stamp.read_text().strip() == str(two)]
    stamp.unlink()
    shutil.rmtree(stamp.parent / "lib")
    out, progress = _finish(_start(two, cache))
    assert out == f"{two}/specplug/__init__.py two"
    assert "installing this checkout" in progress


def test_a_failed_build_says_why_and_is_not_used(checkout: Path, tmp_path: Path) -> None:
    clone = _clone(tmp_path / "clone", checkout / "tools")
    (clone / "requirements" / "core.txt").write_text("specplug-has-no-such-package==1.0\n")
    process = _start(clone, tmp_path / "cache")
    out, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert out == ""
    assert "specplug-has-no-such-package" in err
    assert "the whole log is" in err
    assert list((tmp_path / "cache").glob("*/*/specplug-complete")) == []
