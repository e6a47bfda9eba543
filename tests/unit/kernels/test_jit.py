"""Machine code is kept where it can be, under a name that changes with everything it was made from."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core import config

from specplug.kernels import _jit
from specplug.reference.streams import mix as ref_mix

KERNELS = Path(_jit.__file__).parent
SOURCES = sorted(path for path in KERNELS.glob("*.py") if path.name != "__init__.py")

#: The digest itself: the function that users call remembers it per path.
digest = _jit.source_digest.__wrapped__


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the kernel sources that may be changed."""
    shutil.copytree(KERNELS, tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "kernels"


def imports_of(path: Path) -> set[str]:
    """Kernel modules that a file imports, in whatever form, found by parsing it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("specplug.kernels")}
        elif isinstance(node, ast.ImportFrom) and node.module == "specplug.kernels":
            found |= {f"specplug.kernels.{a.name}" for a in node.names}
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("specplug.kernels"):
            found.add(str(node.module))
    return {name.removeprefix("specplug.kernels.") for name in found}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_import_of_a_kernel_file_is_overlooked(path: Path) -> None:
    expected, waiting = {path}, [path]
    while waiting:
        for name in imports_of(waiting.pop()):
            other = KERNELS / f"{name}.py"
            if other not in expected:
                expected.add(other)
                waiting.append(other)
    assert _jit.imported_kernels(path) == expected


def test_imports_are_followed_to_the_end() -> None:
    names = {path.stem for path in _jit.imported_kernels(KERNELS / "drafting.py")}
    assert {"drafting", "match", "ranking", "store", "streams", "layout", "_jit"} <= names
    assert "accept" not in names


@pytest.mark.parametrize("changed", ["drafting", "streams", "layout", "_jit"])
def test_the_digest_changes_with_a_file_it_imports(copied: Path, changed: str) -> None:
    before = digest(copied / "drafting.py")
    with (copied / f"{changed}.py").open("a") as file:
        file.write("# changed\n")
    assert digest(copied / "drafting.py") != before


def test_the_digest_stays_when_an_unrelated_file_changes(copied: Path) -> None:
    before = digest(copied / "drafting.py")
    (copied / "accept.py").write_text("changed = True\n")
    (copied / "new.py").write_text("new = True\n")
    assert digest(copied / "drafting.py") == before


def test_the_digest_does_not_depend_on_the_folder(copied: Path) -> None:
    for path in SOURCES:
        assert digest(copied / path.name) == digest(path)


def test_different_kernel_files_have_different_digests() -> None:
    assert len({digest(path) for path in SOURCES}) == len(SOURCES)


def test_the_digest_changes_with_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(KERNELS / "streams.py")
    monkeypatch.setattr(numba, "__version__", "0.0.1")
    assert digest(KERNELS / "streams.py") != before


def load(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KERNEL = """
from specplug.kernels._jit import kernel

@kernel
def double(number):
    return 2 * number
"""


@pytest.mark.compiled
def test_machine_code_lands_in_the_folder_of_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "doubling.py"
    source.write_text(KERNEL)
    monkeypatch.setattr(_jit, "CACHE_FOLDER", tmp_path / "cache")
    assert load(source, "doubling").double(21) == 42
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [digest(source)]
    assert list((tmp_path / "cache").rglob("doubling.double-*.nbc"))


@pytest.mark.compiled
def test_numba_is_configured_as_before_once_a_kernel_is_decorated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "somebody else's folder")
    monkeypatch.setattr(_jit, "CACHE_FOLDER", tmp_path)
    compiled: Any = _jit.kernel(lambda number: number)
    assert config.CACHE_DIR == "somebody else's folder"
    assert compiled.targetoptions["nogil"] is True
    assert not compiled.targetoptions.get("fastmath")


def test_numba_is_configured_as_before_if_decorating_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: Any) -> Any:
        assert config.CACHE_DIR.startswith(str(tmp_path))
        raise RuntimeError("no compiler today")

    monkeypatch.setattr(config, "CACHE_DIR", "somebody else's folder")
    monkeypatch.setattr(_jit, "CACHE_FOLDER", tmp_path)
    monkeypatch.setattr(numba, "njit", refuse)
    with pytest.raises(RuntimeError, match="no compiler today"):
        _jit.kernel(lambda number: number)
    assert config.CACHE_DIR == "somebody else's folder"


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )


def test_kernels_work_with_a_warning_where_no_cache_can_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("not a folder")
    code = (
        "import numpy as np\n"
        "from specplug.kernels import _jit, streams\n"
        "print(_jit.CACHE_FOLDER, int(streams.mix(np.uint64(2166136261), 7)))\n"
    )
    done = run(code, SPECPLUG_CACHE=str(blocked))
    assert done.stdout.split() == ["None", str(ref_mix(2166136261, 7))]
    assert done.stderr.count("no writable kernel cache") == 1
    assert "Set SPECPLUG_CACHE to a writable folder" in done.stderr
    assert blocked.read_text() == "not a folder"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SPECPLUG_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"SPECPLUG_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/specplug"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/specplug"),
        ({"HOME": "/c"}, "/c/.cache/specplug"),
    ],
)
def test_the_cache_lies_where_the_user_wants_it(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPECPLUG_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _jit.cache_root() == Path(expected)


def test_folders_that_nobody_used_for_long_are_removed(tmp_path: Path) -> None:
    """One folder per digest, so that every release and every edit of a checkout would leave some for ever."""
    now = 1e9
    ages = {"0" * 16: 40.0, "1" * 16: 29.0, "2" * 16: 31.0, "a folder of others": 400.0}
    for name, days in ages.items():
        (tmp_path / name / "deeper").mkdir(parents=True)
        (tmp_path / name / "deeper" / "kernel.nbc").write_bytes(b"x")
        os.utime(tmp_path / name, (now - days * 86400, now - days * 86400))
    assert _jit.prune(tmp_path, now) == 2
    assert sorted(os.listdir(tmp_path)) == ["1" * 16, "a folder of others"]
    assert _jit.prune(tmp_path, now) == 0


def test_a_folder_that_another_process_removes_meanwhile_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ("0" * 16)).mkdir()
    os.utime(tmp_path / ("0" * 16), (0, 0))

    def gone(self: Path, target: Path) -> Path:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "rename", gone)
    assert _jit.prune(tmp_path, 1e9) == 0


@pytest.mark.compiled
def test_a_start_marks_what_it_uses_and_clears_out_the_rest(tmp_path: Path) -> None:
    def run() -> str:
        code = "from specplug.kernels.streams import mix; print(mix(1, 2))"
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "SPECPLUG_CACHE": str(tmp_path)},
        )
        return done.stdout

    folder = tmp_path / "kernels"
    stale = folder / ("f" * 16)
    stale.mkdir(parents=True)
    os.utime(stale, (0, 0))
    first = run()
    assert not stale.exists(), "the first new folder of a process clears out old ones"
    used = [path for path in folder.iterdir() if any(path.rglob("*.nbi"))]
    assert used
    for path in used:
        os.utime(path, (0, 0))
    assert run() == first
    assert all(path.stat().st_mtime > 1e9 for path in used), "in use, so it must not be removed"
