"""What ``specplug doctor`` says about SGLang, found without importing it."""

from __future__ import annotations

import os
from importlib.metadata import entry_points

from specplug._host import HostReport
from specplug.adapters.sglang_srt.requirements import REQUIREMENTS

GROUP = "sglang.srt.plugins"
_PLUGIN = "specplug"


def report() -> HostReport:
    """Whether ``--speculative-algorithm specplug.*`` works in the installed SGLang, and why not."""
    found = REQUIREMENTS.installed_version()
    if found is None:
        return HostReport("sglang", None, REQUIREMENTS.tested, False, "SGLang is not installed")
    symbols = REQUIREMENTS.examine()
    usable, reason = REQUIREMENTS.verdict(found, symbols)
    blocked = blocked_reason()
    if usable and blocked:
        usable, reason = False, blocked
    notes = [
        f"{s.problem}; {s.symbol.purpose}" for s in symbols if s.problem and not s.symbol.required
    ]
    notes.append("python -m specplug.adapters.sglang_srt loads the plugin as a server would")
    return HostReport("sglang", found, REQUIREMENTS.tested, usable, reason, symbols, tuple(notes))


def blocked_reason() -> str:
    """Why SGLang would not load our plugin, or an empty string."""
    allowed = os.environ.get("SGLANG_PLUGINS", "").strip()
    if allowed and _PLUGIN not in [name.strip() for name in allowed.split(",")]:
        return f"SGLANG_PLUGINS={allowed!r} does not list {_PLUGIN!r}, so SGLang does not load the plugin; add it"
    if not any(point.name == _PLUGIN for point in entry_points(group=GROUP)):
        return f"the entry point 'specplug' of group {GROUP!r} is not installed; reinstall specplug"
    return ""
