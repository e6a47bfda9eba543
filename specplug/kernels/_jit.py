"""The only place that compiles: how kernels are built and where their machine code is kept.

Numba keys a cached function by its own file alone, so machine code that inlined an old version of another
kernel would survive an upgrade. The cache of a kernel file therefore lies in a folder named by a digest over that
file and all kernel files that it imports, directly or not (and numba's version): whatever changes, a new folder
is used. It lies outside of the installed package, which may be read-only and must leave nothing behind when it is
uninstalled. Where no such folder can be written, kernels compile without a cache.

Kernels start no threads: a proposer decides how many of its own call them (``Context.threads``).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config

Function = TypeVar("Function", bound=Callable[..., Any])

log = logging.getLogger("specplug")

_IMPORT = re.compile(r"^from specplug\.kernels\.(\w+) import", re.MULTILINE)

#: Environment variable that moves every cache of the package.
CACHE_VARIABLE = "SPECPLUG_CACHE"


def imported_kernels(path: Path) -> set[Path]:
    """``path`` and every kernel file that it imports, directly or not."""
    found = {path}
    waiting = [path]
    while waiting:
        for name in _IMPORT.findall(waiting.pop().read_text(encoding="utf-8")):
            other = path.with_name(f"{name}.py")
            if other not in found and other.exists():
                found.add(other)
                waiting.append(other)
    return found


@functools.cache
def source_digest(path: Path) -> str:
    """Hex digest over the names and contents of a kernel file and all that it imports, and numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(imported_kernels(path)):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def cache_root() -> Path:
    """The folder that holds every cache of the package; need not exist."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) / "specplug" if base else Path.home() / ".cache" / "specplug"


def _writable_root() -> Path | None:
    try:
        folder = cache_root() / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        log.warning(
            "specplug: no writable kernel cache (%s); kernels are compiled in every process. "
            "Set %s to a writable folder.",
            error,
            CACHE_VARIABLE,
        )
        return None


#: Where compiled kernels are kept, one folder per digest; None if they are not kept.
CACHE_FOLDER: Path | None = _writable_root()


#: False where NUMBA_DISABLE_JIT makes every kernel plain Python (coverage runs).
COMPILED: bool = not getattr(config, "DISABLE_JIT", False)


def _compile(function: Function, **options: Any) -> Function:
    settings: Any = (
        config  # numba fills this module at run time; its names are unknown to type checkers
    )
    before = settings.CACHE_DIR
    if CACHE_FOLDER is not None:
        settings.CACHE_DIR = str(CACHE_FOLDER / source_digest(Path(function.__code__.co_filename)))
    try:
        compiled: Any = numba.njit(
            nogil=True, error_model="numpy", cache=CACHE_FOLDER is not None, **options
        )(function)
    finally:
        settings.CACHE_DIR = before
    typed: Function = compiled
    return typed


def kernel(function: Function) -> Function:
    """Compile ``function`` on first use, without the interpreter lock and without fast-math."""
    return _compile(function)


def lean_kernel(function: Function) -> Function:
    """Like :func:`kernel`, for functions that create no array: compiled without reference counting.

    Counting the references of arrays that are only borrowed costs an atomic operation for each mention, five times the
    work of the suffix drafter itself.
    """
    return _compile(function, _nrt=False)
