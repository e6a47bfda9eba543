"""Memory stays constant however many requests are served; ``benchmarks/soak.py`` does the same with a million."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def soak() -> Iterator[Any]:
    """The benchmark as a module."""
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"
    spec = importlib.util.spec_from_file_location("specplug_soak", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_nothing_grows_once_the_tables_are_full(soak: Any, tmp_path: Path) -> None:
    """In a process of its own: what other tests had left in the process of the tests grew by itself."""
    options = {"requests": 12_000, "store-mb": 0.2, "seed": 1, "points": 30, "remembered": 300}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    found = tmp_path / "soak.json"
    done = subprocess.run(
        [sys.executable, soak.__file__, *arguments, "--quiet", "--json", str(found)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    samples = [soak.Sample(**sample) for sample in json.loads(found.read_text())["samples"]]
    assert soak.growth(samples) == []
    assert samples[-1].stored == max(s.stored for s in samples)
    assert samples[-1].drafted > 1000


def test_a_leak_would_be_seen(soak: Any) -> None:
    steady = [soak.Sample(n, 10**8, 500, 70, 9, n, n) for n in range(100, 1100, 100)]
    assert soak.growth(steady) == []
    last = steady[-1]
    for name, more in (("arrays", 1 << 15), ("entries", 100), ("resident", 3 << 20)):
        leaking = [*steady[:-1], last._replace(**{name: getattr(last, name) + more})]
        assert len(soak.growth(leaking)) == 1, name
    early = [steady[0]._replace(entries=1), *steady[1:]]
    assert soak.growth(early) == [], "while tables fill, they grow"
    arrays, entries = soak.sizes({"a": [1, 2, 3]})
    assert (arrays, entries) == (0, 4)
