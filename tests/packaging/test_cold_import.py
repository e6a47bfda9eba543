"""``import specplug`` is paid in every process of an engine, most of which never draft."""

from __future__ import annotations

import subprocess
import sys

#: Loading any of these costs from 0.1 to several seconds.
HEAVY = (
    "numba",
    "llvmlite",
    "torch",
    "vllm",
    "sglang",
    "transformers",
    "scipy",
    "hypothesis",
    "pytest",
)
#: Milliseconds, best of five fresh interpreters. About ten times what it takes on a slow machine.
LIMIT_MS = 50.0

PROBE = f"""
import sys, time
start = time.perf_counter()
import specplug
elapsed = 1000 * (time.perf_counter() - start)
print(elapsed, *sorted(set({HEAVY!r}) & set(sys.modules)))
"""


def _probe() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROBE], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_import_loads_nothing_heavy() -> None:
    _, *loaded = _probe()
    assert loaded == []


def test_import_is_fast() -> None:
    best = min(float(_probe()[0]) for _ in range(5))
    assert best < LIMIT_MS, f"import specplug took {best:.1f} ms"


def test_the_lazy_names_exist() -> None:
    import specplug

    for name in specplug.__all__:
        assert getattr(specplug, name) is not None
