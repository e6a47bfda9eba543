"""Where built environments and models lie, and how concurrent builders keep out of each other's way."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_root() -> Path:
    """Return ``$SPECPLUG_CACHE``, or ``~/.cache/specplug``; outside every checkout, so clones share it.

    The same rule as ``specplug.kernels._jit``, which cannot be imported before there is an environment.
    """
    chosen = os.environ.get("SPECPLUG_CACHE")
    if chosen:
        return Path(chosen).resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "specplug"


def say(message: str) -> None:
    """Print progress on stderr at once; stdout is kept for results that a caller reads."""
    print(f"specplug: {message}", file=sys.stderr, flush=True)


@contextmanager
def exclusive(target: Path) -> Iterator[None]:
    """Hold the one right to build ``target`` (its lock is the file ``<target>.lock`` beside it).

    The kernel drops the lock when the holder dies, so an interrupted build never blocks the next one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(target.name + ".lock"), "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that is building {target.name}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
