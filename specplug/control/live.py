"""What the controllers of running engines decide, for ``specplug doctor --live``: rings of decisions in small files.

An engine's worker keeps its ring (:mod:`specplug.control.decisions`) in a memory-mapped file of 70 kB in a folder that
only its user can read. Another process of the user reads it at any time; the engine does not notice.
"""

from __future__ import annotations

import atexit
import csv
import logging
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.control.decisions import DECISION, REASONS, Decisions
from specplug.errors import SettingsError
from specplug.figures import new_figure

log = logging.getLogger("specplug")

#: Where the files lie; "off" for none.
VARIABLE = "SPECPLUG_LIVE_DIR"

_FILE = re.compile(r"(\d+)-(.+)\.npy")


class Live(NamedTuple):
    """A controller of a process that runs.

    Attributes:
        process: its id.
        name: of the method.
        decisions: structured array of :data:`specplug.control.decisions.DECISION`, oldest first.
    """

    process: int
    name: str
    decisions: NDArray[Any]


def folder() -> Path | None:
    """The folder of this user; None if it is switched off."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen.strip().lower() == "off":
        return None
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"specplug-live-{os.getuid()}"


def share(decisions: Decisions, name: str) -> Path | None:
    """Move a ring into a file that others can read; None, without an error, where that cannot be done."""
    place = folder()
    if place is None:
        return None
    path = place / f"{os.getpid()}-{re.sub(r'[^A-Za-z0-9_.]', '_', name)}.npy"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.stat().st_uid != os.getuid():
            raise PermissionError(f"{place} belongs to another user")
        ring = np.lib.format.open_memmap(path, "w+", DECISION, (len(decisions.ring),))
        ring[:] = decisions.ring
        decisions.ring = ring
    except (OSError, ValueError) as error:
        log.info("specplug: no decisions for 'specplug doctor --live': %s", error)
        return None
    owner = os.getpid()
    # A forked child must not take away the file of its parent.
    atexit.register(lambda: path.unlink(missing_ok=True) if os.getpid() == owner else None)
    return path


def running() -> list[Live]:
    """The controllers of this user's running processes; what a killed process left is removed."""
    place = folder()
    found = []
    for path in sorted(place.glob("*.npy")) if place is not None and place.is_dir() else ():
        match = _FILE.fullmatch(path.name)
        if match is None:
            continue
        process = int(match.group(1))
        if not _alive(process):
            path.unlink(missing_ok=True)
            continue
        try:
            ring: NDArray[Any] = np.load(path)
        except (OSError, ValueError):  # it ends, or begins, just now
            continue
        if ring.dtype == DECISION:
            found.append(Live(process, match.group(2), _in_order(ring)))
    return found


def read_log(path: Path) -> NDArray[Any]:
    """Decisions from a file that :meth:`specplug.control.decisions.Decisions.write` or ``--save`` wrote.

    Raises:
        SettingsError: it is no such file.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        decisions = np.zeros(len(rows), DECISION)
        for place, row in enumerate(rows):
            values = {**row, "reason": str(REASONS.index(row["reason"]))}
            decisions[place] = tuple(float(values[name]) for name in DECISION.names or ())
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise SettingsError(
            f"{path} is no log of decisions (a CSV file with the columns {', '.join(DECISION.names or ())}): {error}"
        ) from error
    return decisions


def write_log(decisions: NDArray[Any], path: Path) -> None:
    """Decisions as a CSV file with a header."""
    lines = [",".join(DECISION.names or ())]
    for row in decisions:
        values = list(row.item())
        values[-1] = REASONS[values[-1]]
        lines.append(",".join(str(value) for value in values))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def as_text(name: str, decisions: NDArray[Any], last: int = 12) -> str:
    """What was decided and why, for a terminal: sums over all decisions, and the newest one by one."""
    lines = [name]
    if not len(decisions):
        return f"{name}\n  no decision yet"
    sums = {key: int(decisions[key].sum()) for key in ("offered", "drafted", "accepted")}
    known = np.isfinite(decisions["predicted"]) & np.isfinite(decisions["measured"])
    predicted = float(decisions["predicted"][known].sum())
    measured = float(decisions["measured"][known].sum())
    lines.append(
        f"  {len(decisions)} steps: {sums['offered']} draft tokens offered, {sums['drafted']} verified, "
        f"{decisions['expected'].sum():.0f} expected to be accepted, {sums['accepted']} accepted"
    )
    if measured:
        lines.append(
            f"  step times: {predicted:.2f} s predicted, {measured:.2f} s measured ({predicted / measured:.2f})"
        )
    counts = np.bincount(decisions["reason"], minlength=len(REASONS))
    why = [
        f"{reason} {count}" for reason, count in zip(REASONS, counts.tolist(), strict=True) if count
    ]
    lines.append(f"  why: {', '.join(why)}")
    lines.append(
        f"  {'step':>8}{'requests':>9}{'offered':>8}{'budget':>7}{'drafted':>8}{'expected':>9}{'accepted':>9}"
        f"{'gain':>6}{'predicted ms':>13}{'measured ms':>12}  reason"
    )
    for row in decisions[-last:]:
        lines.append(
            f"  {row['step']:>8}{row['rows']:>9}{row['offered']:>8}{row['budget']:>7}{row['drafted']:>8}"
            f"{row['expected']:>9.2f}{row['accepted']:>9}{row['ratio']:>6.2f}{1e3 * row['predicted']:>13.2f}"
            f"{1e3 * row['measured']:>12.2f}  {REASONS[row['reason']]}"
        )
    return "\n".join(lines)


def as_values(decisions: NDArray[Any]) -> list[dict[str, Any]]:
    """Decisions as plain values; unknown times are None."""
    names = DECISION.names or ()
    found = []
    for row in decisions:
        values = dict(zip(names, row.item(), strict=True))
        values = {k: None if v != v else v for k, v in values.items()}  # NaN is not JSON
        found.append({**values, "reason": REASONS[values["reason"]]})
    return found


def plot(parts: Sequence[tuple[str, NDArray[Any]]], path: Path) -> None:
    """Draft tokens, accepted and expected ones, and step times over steps; one column per controller.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure, axes = new_figure(3, len(parts), (7 * len(parts), 7))
    for column, (name, rows) in enumerate(parts):
        steps = rows["step"]
        top, middle, bottom = axes[:, column]
        top.set_title(name, fontsize=9)
        for key in ("offered", "drafted"):
            top.plot(steps, rows[key], linewidth=0.8, label=key)
        for key in ("expected", "accepted"):
            middle.plot(steps, _smooth(rows[key]), label=f"{key} (mean of 20 steps)")
        for key in ("predicted", "measured"):
            bottom.plot(steps, 1e3 * rows[key], linewidth=0.8, label=f"{key} step, ms")
        for axis in (top, middle, bottom):
            axis.legend(fontsize=7)
        bottom.set_xlabel("step")
    figure.savefig(path)


def _smooth(values: NDArray[Any]) -> NDArray[np.float64]:
    window = min(20, len(values))
    return np.convolve(values.astype(np.float64), np.full(window, 1 / window), "same")


def _in_order(ring: NDArray[Any]) -> NDArray[Any]:
    ring = ring[ring["step"] >= 0]
    return ring[np.argsort(ring["step"], kind="stable")]


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to somebody else
        return True
    return True
