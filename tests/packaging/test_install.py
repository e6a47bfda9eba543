"""A real install, from the wheel and editable, in a fresh environment: names, entry points, subprocesses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Python = Callable[..., str]

LOCATIONS = """
import specplug, specplug.adapters, specplug.proposers
for module in (specplug, specplug.adapters, specplug.proposers):
    print(module.__file__)
"""

ENTRY_POINTS = """
from importlib.metadata import entry_points
for group in ("specplug.proposers", "specplug.adapters", "vllm.general_plugins", "sglang.srt.plugins"):
    for point in entry_points(group=group):
        if point.dist.name == "specplug":
            print(group, point.name, point.load().__module__)
"""

SPAWN = """
import multiprocessing
from importlib.metadata import entry_points

def work(results):
    import specplug.proposers.null
    names = [point.name for point in entry_points(group="specplug.proposers")]
    results.put((specplug.proposers.null.__file__, "null" in names))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    worker = context.Process(target=work, args=(results,))
    worker.start()
    path, found = results.get(timeout=60)
    worker.join()
    import specplug.proposers.null
    assert path == specplug.proposers.null.__file__, path
    assert found, "the worker does not see our entry points"
    print("same")
"""

ONE_COPY = """
import sys
from importlib.metadata import entry_points
for group in ("specplug.proposers", "specplug.adapters", "vllm.general_plugins", "sglang.srt.plugins"):
    for point in entry_points(group=group):
        if point.dist.name == "specplug":
            point.load()
assert "proposers" not in sys.modules and "adapters" not in sys.modules
engines = {"vllm", "sglang", "torch"} & set(sys.modules)
assert not engines, f"loading our entry points imported {engines}"
"""


@pytest.fixture(params=["wheel", "editable"])
def python(request: pytest.FixtureRequest) -> Python:
    """Runs Python in each kind of install."""
    name = {"wheel": "installed", "editable": "editable"}[request.param]
    fixture: Python = request.getfixturevalue(name)
    return fixture


def test_entry_points_load(python: Python) -> None:
    assert sorted(python("-c", ENTRY_POINTS).splitlines()) == [
        "sglang.srt.plugins specplug specplug.adapters.sglang_srt",
        "specplug.adapters sglang specplug.adapters.sglang_srt.report",
        "specplug.adapters vllm specplug.adapters.vllm_v1.report",
        "specplug.proposers hybrid specplug.proposers.hybrid",
        "specplug.proposers null specplug.proposers.null",
        "specplug.proposers rest specplug.proposers.rest",
        "specplug.proposers suffix specplug.proposers.suffix",
        "vllm.general_plugins specplug specplug.adapters.vllm_v1",
    ]


def test_entry_points_load_no_engine_and_no_second_copy(python: Python) -> None:
    python("-c", ONE_COPY)


def test_spawned_workers_import_the_same_files(python: Python, tmp_path: Path) -> None:
    script = tmp_path / "spawn.py"
    script.write_text(SPAWN)
    assert python(script) == "same\n"


def test_console_script_and_module_say_the_same(
    python: Python, run: Callable[..., str], tmp_path: Path
) -> None:
    prefix = Path(python("-c", "import sys; print(sys.prefix)").strip())
    by_script = run(prefix / "bin" / "specplug", "--version", cwd=tmp_path)
    by_module = python("-c", "import specplug; print(specplug.__version__)")
    assert by_module.strip() in by_script


def test_wheel_lies_in_site_packages(installed: Python, checkout: Path) -> None:
    paths = installed("-c", LOCATIONS).splitlines()
    assert len(paths) == 3
    assert all("site-packages/specplug/" in path for path in paths)
    assert not any(path.startswith(str(checkout)) for path in paths)


def test_editable_sees_new_modules_at_once(editable: Python, editable_source: Path) -> None:
    expected = [
        editable_source / name / "__init__.py" for name in ("specplug", "adapters", "proposers")
    ]
    assert editable("-c", LOCATIONS).splitlines() == [str(path) for path in expected]
    for folder, module in (
        ("adapters", "specplug.adapters"),
        ("specplug/kernels", "specplug.kernels"),
    ):
        (editable_source / folder / "brand_new.py").write_text("VALUE = 7\n")
        code = f"import {module}.brand_new as new; print(new.VALUE)"
        assert editable("-c", code) == "7\n"
