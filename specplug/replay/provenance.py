"""Where a figure comes from: what is needed to repeat it, or to distrust it."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specplug.machine import usable_cores


def provenance(packages: Sequence[str], seed: int | None = None) -> dict[str, Any]:
    """Command, commit, versions, processor, seed, and how busy the machine is.

    Args:
        packages: distributions whose version matters.
        seed: of the random numbers, or None where nothing is drawn at random.
    """
    program = Path(sys.argv[0]).name
    return {
        "command": shlex.join([program, *sys.argv[1:]]),
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in packages},
        "cpu": cpu(),
        "cores": usable_cores(),
        "load_average": round(os.getloadavg()[0], 2),
        "seed": seed,
    }


def commit() -> str | None:
    """Of the checkout that this package lies in, with ``-dirty`` if files differ from it; None if it is in none."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def cpu() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
