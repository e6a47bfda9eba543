"""What is known of a machine's step times beforehand: read from and written to a small JSON file."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger("specplug")

#: Token counts at which the cost is stated.
KNOTS = tuple(2**i for i in range(15))

VERSION = 1


@dataclass(frozen=True, slots=True)
class CostSeed:
    """Relative step costs.

    Attributes:
        relative: one number per entry of :data:`KNOTS`; what a step with so many tokens costs, in plain steps.
        machine: what the figures were measured on; see :func:`machine_name`.
        source: where the figures come from, for people.
    """

    relative: tuple[float, ...]
    machine: str = ""
    source: str = ""


def machine_name(device: str = "") -> str:
    """Processor (and device) of this machine, the key of a cost file."""
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            cpu = next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    return f"{device or 'cpu'}; {cpu}; {os.cpu_count()} threads"


def read_seed(path: Path, machine: str) -> CostSeed | None:
    """The seed in a cost file; None, with one warning, if it is of another machine, broken or missing.

    A wrong seed would cost speed only until the model has seen enough steps, but there is no need to start there.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        seed = seed_of(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("specplug: cost file %s is not used: %s: %s", path, type(error).__name__, error)
        return None
    if seed.machine != machine:
        log.warning(
            "specplug: cost file %s is not used: it is of %r, this machine is %r",
            path,
            seed.machine,
            machine,
        )
        return None
    return seed


def seed_of(found: Mapping[str, Any]) -> CostSeed:
    """Check the content of a cost file.

    Raises:
        ValueError, KeyError, TypeError: it is not one.
    """
    if found["version"] != VERSION:
        raise ValueError(f"version {found['version']!r}, expected {VERSION}")
    if tuple(found["tokens"]) != KNOTS:
        raise ValueError(f"the token counts must be {KNOTS}, got {found['tokens']!r}")
    relative = tuple(float(v) for v in found["relative"])
    if len(relative) != len(KNOTS) or not all(0 < v < math.inf for v in relative):
        raise ValueError(f"'relative' must hold {len(KNOTS)} positive numbers, got {relative!r}")
    return CostSeed(relative, str(found["machine"]), str(found.get("source", "")))


def is_measured(path: Path) -> bool:
    """Whether a file is of ``specplug calibrate``: it holds more than a controller knows, so none may replace it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "points" in found


def write_seed(path: Path, seed: CostSeed) -> None:
    """Write a cost file, whole or not at all."""
    content = {
        "version": VERSION,
        "machine": seed.machine,
        "source": seed.source,
        "tokens": list(KNOTS),
        "relative": list(seed.relative),
    }
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
