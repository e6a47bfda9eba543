"""The only place that compiles: how kernels are built and where their machine code is kept.

Numba keys a cached function by its own file alone, so machine code that inlined an old version of another
kernel would survive an upgrade. The cache therefore lies in a folder named by a digest over *all* kernel sources
(and numba's version): whatever changes, a new folder is used. It lies outside of the installed package,
which may be read-only and must leave nothing behind when it is uninstalled. Where no such folder can be
written, kernels compile without a cache.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config

Function = TypeVar("Function", bound=Callable[..., Any])

log = logging.getLogger("specplug")

#: Environment variable that moves every cache of the package.
CACHE_VARIABLE = "SPECPLUG_CACHE"


def source_digest() -> str:
    """Hex digest over the names and contents of all kernel sources, and numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_root() -> Path:
    """The folder that holds every cache of the package; need not exist."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) / "specplug" if base else Path.home() / ".cache" / "specplug"


def _writable_cache() -> str | None:
    try:
        folder = cache_root() / "kernels" / source_digest()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        log.warning(
            "specplug: no writable kernel cache (%s); kernels are compiled in every process. "
            "Set %s to a writable folder.",
            error,
            CACHE_VARIABLE,
        )
        return None


#: Where compiled kernels are kept; None if they are not kept.
CACHE_FOLDER: str | None = _writable_cache()


def kernel(function: Function) -> Function:
    """Compile ``function`` on first use, without the interpreter lock and without fast-math."""
    settings: Any = (
        config  # numba fills this module at run time; its names are unknown to type checkers
    )
    before = settings.CACHE_DIR
    settings.CACHE_DIR = CACHE_FOLDER or before
    try:
        compiled: Any = numba.njit(nogil=True, error_model="numpy", cache=CACHE_FOLDER is not None)(
            function
        )
    finally:
        settings.CACHE_DIR = before
    typed: Function = compiled
    return typed


def thread_share(workers: int) -> int:
    """Threads that one of ``workers`` engine processes on this machine may use: its share of the usable cores."""
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, usable // max(1, workers))
