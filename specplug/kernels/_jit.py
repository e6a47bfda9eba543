"""The only place that compiles: how kernels are built and where their machine code is kept.

Numba keys a cached function by its own file alone, so machine code that inlined an old version of another
kernel would survive an upgrade. The cache of a kernel file therefore lies in a folder named by a digest over that
file and all kernel files that it imports, directly or not (and numba's version): whatever changes, a new folder
is used. It lies outside of the installed package, which may be read-only and must leave nothing behind when it is
uninstalled. Where no such folder can be written, kernels compile without a cache.

Kernels start no threads: a proposer decides how many of its own call them (``Context.threads``).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config

Function = TypeVar("Function", bound=Callable[..., Any])

log = logging.getLogger("specplug")

#: A cache folder that no process has used for so long is removed.
KEPT_DAYS = 30.0
_DIGEST = re.compile("[0-9a-f]{16}")

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


def prune(folder: Path, now: float, days: float = KEPT_DAYS) -> int:
    """Remove the folders of digests that no process has used for ``days``; returns how many.

    Every release, and every edit of a checkout, makes new ones. Safe beside other processes: a process marks what it
    uses when it starts, and what it compiles it has compiled long before; renaming is atomic.
    """
    removed = 0
    for old in folder.iterdir():
        try:
            if not _DIGEST.fullmatch(old.name) or now - old.stat().st_mtime < days * 86400:
                continue
            doomed = old.with_name(f".{old.name}-{os.getpid()}")
            old.rename(doomed)
        except OSError:  # another process was faster
            continue
        shutil.rmtree(doomed, ignore_errors=True)
        removed += 1
    return removed


@functools.cache
def _folder_for(root: Path, source: Path) -> Path:
    """The cache folder of a kernel file, marked as in use; the first new one of a process clears out old ones."""
    folder = root / source_digest(source)
    with contextlib.suppress(OSError):
        if folder.exists():
            os.utime(folder)
        else:
            folder.mkdir()
            _prune_once(root)
    return folder


@functools.cache
def _prune_once(root: Path) -> None:
    prune(root, time.time())


def _compile(function: Function, **options: Any) -> Function:
    settings: Any = (
        config  # numba fills this module at run time; its names are unknown to type checkers
    )
    before = settings.CACHE_DIR
    if CACHE_FOLDER is not None:
        source = Path(function.__code__.co_filename)
        settings.CACHE_DIR = str(_folder_for(CACHE_FOLDER, source))
    try:
        compiled: Any = numba.njit(
            nogil=True, error_model="numpy", cache=CACHE_FOLDER is not None, **options
        )(function)
    finally:
        settings.CACHE_DIR = before
    typed: Function = compiled
    return typed


def direct(function: Function) -> Function:
    """The compiled code of a kernel that has been called with arguments of one kind only, without its dispatcher.

    Looking at the types of the arguments takes 0.1 us per call, and nothing here looks at them any more: arrays must
    be contiguous and of the dtype that the kernel was compiled for. An interpreted kernel is returned as it is.
    """
    compiled = list(getattr(function, "overloads", {}).values())
    return compiled[0].entry_point if len(compiled) == 1 else function


def kernel(function: Function) -> Function:
    """Compile ``function`` on first use, without the interpreter lock and without fast-math."""
    return _compile(function)


def lean_kernel(function: Function) -> Function:
    """Like :func:`kernel`, for functions that create no array: compiled without reference counting.

    Counting the references of arrays that are only borrowed costs an atomic operation for each mention, five times the
    work of the suffix drafter itself.
    """
    return _compile(function, _nrt=False)


def inlined_kernel(function: Function) -> Function:
    """Like :func:`lean_kernel`, for functions small or called in one place: their code goes where the call stands.

    A call costs some ten nanoseconds, because an array is handed over as seven numbers; LLVM shares a function
    that is called in several places.
    """
    return _compile(function, _nrt=False, forceinline=True)
