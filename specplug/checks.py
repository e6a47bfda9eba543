"""What ``specplug doctor`` concludes from what it found: fine, a warning or a problem, with what to do."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from specplug.errors import SettingsError, did_you_mean
from specplug.machine import THREADS_VARIABLE, thread_share, usable_cores

State = Literal["ok", "warning", "problem"]
PREFIX = "SPECPLUG_"


class Check(NamedTuple):
    """One finding.

    Attributes:
        name: what was looked at.
        state: a problem means that something will not work, a warning that it may be slow or surprising.
        text: what was found, and what to do if that is not fine.
    """

    name: str
    state: State
    text: str


def run_checks(facts: Mapping[str, Any], environment: Mapping[str, str]) -> list[Check]:
    """Judge the facts of :func:`specplug.doctor.examine`."""
    return [
        _installation(),
        *_kernels(facts["kernels"]),
        _threads(environment),
        *_variables(environment),
        *(_proposer(p) for p in facts["proposers"] if p["problem"]),
        *(_adapter(a) for a in facts["adapters"]),
    ]


def datastore(folder: Path) -> Check:
    """Whether a datastore opens and its checksums are right. Reads all of it."""
    from specplug.errors import SpecplugError

    name = f"datastore {folder}"
    try:
        from specplug.index.datastore import Datastore

        store = Datastore(folder)
        store.verify(lambda size: None)
    except (SpecplugError, OSError) as error:
        return Check(name, "problem", str(error))
    header = store.header
    return Check(name, "ok", f"intact; {header.documents} documents, {header.tokens} tokens")


def set_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that change what specplug or an engine does with it."""
    heads = (PREFIX, "NUMBA_", "OMP_", "VLLM_PLUGINS", "VLLM_USE_V2", "CUDA_VISIBLE")
    return {k: v for k, v in sorted(environment.items()) if k.startswith(heads)}


def _installation() -> Check:
    if importlib.util.find_spec("specplug.adapters") is None:
        return Check(
            "installation",
            "problem",
            "specplug runs from a bare checkout, where its adapters and proposers have no names; pip install -e .",
        )
    return Check("installation", "ok", "adapters and proposers can be imported")


def _kernels(kernels: Mapping[str, Any]) -> list[Check]:
    if kernels["folder"] is None:
        return [Check("kernels", "problem", f"{kernels['state']}; reinstall numba and numpy")]
    found = [_arithmetic()]
    if str(kernels["state"]).startswith("not writable"):
        found.append(Check("kernel cache", "warning", f"{kernels['folder']}: {kernels['state']}"))
    elif not kernels["files"]:
        text = "empty: the next start compiles for half a minute to a minute, once"
        found.append(Check("kernel cache", "warning", text))
    else:
        found.append(Check("kernel cache", "ok", f"{kernels['files']} files"))
    return found


def _arithmetic() -> Check:
    """One kernel against its definition: a broken compiler would be found by nothing else before it costs speed."""
    import numpy as np

    from specplug.kernels.streams import mix
    from specplug.reference.streams import mix as definition

    try:
        same = int(mix(np.uint64(2166136261), 7)) == definition(2166136261, 7)
    except Exception as error:  # noqa: BLE001  whatever a broken compiler raises is the finding
        return Check(
            "kernels", "problem", f"cannot be compiled: {error}; reinstall numba and llvmlite"
        )
    if not same:
        return Check("kernels", "problem", "compute something else than defined; reinstall numba")
    return Check("kernels", "ok", "compile, and compute what they are defined to")


def _threads(environment: Mapping[str, str]) -> Check:
    try:
        share = thread_share(1)
    except SettingsError as error:
        return Check("threads", "problem", str(error))
    asked = environment.get(THREADS_VARIABLE, "").strip()
    if asked and share > usable_cores():
        text = f"{THREADS_VARIABLE} is {asked}, but this process may use {usable_cores()} cores; lower it"
        return Check("threads", "warning", text)
    return Check("threads", "ok", f"{share} for look-ups, of {usable_cores()} usable cores")


def _variables(environment: Mapping[str, str]) -> Iterable[Check]:
    """Names of ours that nothing reads: a misspelt one is silently without effect otherwise."""
    known = known_variables()
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known and not name.startswith("SPECPLUG_TEST_"):
            text = f"nothing reads {name}; {did_you_mean(name, known)}"
            yield Check("environment", "warning", text)


def known_variables() -> set[str]:
    """Every environment variable that the installed package mentions: read from its sources, so never out of date."""
    pattern = re.compile(rf"\b{PREFIX}[A-Z0-9_]+\b")
    found: set[str] = set()
    for package in ("specplug", "specplug.adapters", "specplug.proposers"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            for path in Path(folder).rglob("*.py"):
                found.update(pattern.findall(path.read_text(encoding="utf-8")))
    return found


def _proposer(entry: Mapping[str, Any]) -> Check:
    return Check("proposer", "problem", f"{entry['name']}: {entry['problem']}")


def _adapter(adapter: Mapping[str, Any]) -> Check:
    name = f"engine {adapter['host']}"
    if adapter["version"] is None:
        return Check(name, "ok", "not installed, so the adapter has nothing to do")
    if not adapter["active"]:
        reason = adapter["reason"] or "its adapter gives no reason"
        return Check(name, "problem", f"inactive in {adapter['version']}: {reason}")
    tested = adapter["tested"]
    if not any(_is_of(str(adapter["version"]), series) for series in tested):
        text = f"active in {adapter['version']}, which was not tested (tested: {', '.join(tested)})"
        return Check(name, "warning", text)
    return Check(name, "ok", f"active in {adapter['version']}, a tested version")


def _is_of(version: str, series: str) -> bool:
    """Whether 0.32.1+cpu belongs to 0.32; 0.320 does not."""
    return version == series or (version.startswith(series) and not version[len(series)].isdigit())


def memory() -> dict[str, int]:
    """Bytes of this machine's memory, in all and free; empty where the system does not say."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return {
            "total": page * os.sysconf("SC_PHYS_PAGES"),
            "free": page * os.sysconf("SC_AVPHYS_PAGES"),
        }
    except (ValueError, OSError, AttributeError):
        return {}
