"""Built artefacts and fresh environments for the packaging tests; each is made once per run."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

Run = Callable[..., str]
Python = Callable[..., str]


def _run(*command: str | Path, cwd: Path) -> str:
    """Run ``command`` and return its standard output; on failure the message holds all it printed."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    shown = " ".join(str(part) for part in command)
    assert done.returncode == 0, f"{shown} gave {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Root of the source tree."""
    return CHECKOUT


@pytest.fixture(scope="session")
def run() -> Run:
    """``run(*command, cwd=folder)`` -> standard output; anything but exit code 0 fails the test."""
    return _run


@pytest.fixture(scope="session")
def tracked_files() -> list[str]:
    """Paths that git tracks and that exist, relative to the root, sorted."""
    if not (CHECKOUT / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of tracked files")
    names = _run("git", "ls-files", "-z", cwd=CHECKOUT).split("\0")
    return sorted(name for name in names if name and (CHECKOUT / name).is_file())


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory, tracked_files: list[str]) -> Path:
    """A copy of the tracked files: builds in it never see, or leave, anything in the checkout."""
    target = tmp_path_factory.mktemp("export")
    for name in tracked_files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(CHECKOUT / name, target / name)
    return target


def _build(kind: str, source: Path, target: Path) -> Path:
    build = [sys.executable, "-P", "-m", "build", "--no-isolation", f"--{kind}"]
    _run(*build, "--outdir", target, source, cwd=target)
    [artefact] = target.iterdir()
    return artefact


@pytest.fixture(scope="session")
def sdist(export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, a ``.tar.gz``."""
    return _build("sdist", export, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel(export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the tree."""
    return _build("wheel", export, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def wheel_from_sdist(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the unpacked source distribution, as a registry's users get it."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(sdist, unpacked, filter="data")
    [source] = unpacked.iterdir()
    return _build("wheel", source, tmp_path_factory.mktemp("wheel-from-sdist"))


def _fresh_python(folder: Path, *install: str | Path) -> Python:
    """Make a virtual environment, install into it, and return a function that runs Python in it.

    Third-party packages are shared through a plain ``.pth`` line: ``.pth`` files in that folder are then not
    obeyed, so an editable specplug that may lie there stays invisible.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    interpreter = folder / "bin" / "python"
    [site_packages] = folder.glob("lib/python*/site-packages")
    (site_packages / "third-party.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    pip = [sys.executable, "-P", "-m", "pip", "--python", interpreter, "install", "--quiet"]
    # --no-deps --no-index: nothing may be fetched. Build requirements come through the shared folder.
    _run(*pip, "--no-deps", "--no-index", "--no-build-isolation", *install, cwd=folder)

    def python(*arguments: str | Path, cwd: Path = folder) -> str:
        return _run(interpreter, "-P", *arguments, cwd=cwd)

    return python


@pytest.fixture(scope="session")
def fresh_python() -> Callable[..., Python]:
    """``fresh_python(folder, *install)`` -> a function that runs Python where these are installed."""
    return _fresh_python


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Python:
    """``installed(*arguments)`` runs Python where the wheel is installed, far from the checkout."""
    return _fresh_python(tmp_path_factory.mktemp("installed") / "venv", wheel)


@pytest.fixture(scope="session")
def editable_source(export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second copy of the tree, because an editable install writes into its source."""
    return Path(shutil.copytree(export, tmp_path_factory.mktemp("editable") / "source"))


@pytest.fixture(scope="session")
def editable(editable_source: Path) -> Python:
    """``editable(*arguments)`` runs Python where ``editable_source`` is installed editable."""
    return _fresh_python(editable_source.parent / "venv", "--editable", editable_source)
