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


def test_reading_the_options_of_vllm_compiles_nothing() -> None:
    """With numba loaded before its worker, vLLM 0.32 fails: it takes llvmlite's library for a Triton kernel."""
    inner = {"method": "ngram", "prompt_lookup_max": 4}
    probe = f"""
import sys
import specplug.adapters.vllm_v1.install
from specplug.adapters.vllm_v1 import adaptive, options
options.translate({{"method": "specplug.layerskip", "num_speculative_tokens": 3, "specplug": {{"exit_layer": 2}}}})
options.translate({{"method": "specplug.suffix", "num_speculative_tokens": 3}})
adaptive.translate({{"method": "specplug.adaptive", "num_speculative_tokens": 3, "specplug": {{"inner": {inner!r}}}}})
print(*sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", probe], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
