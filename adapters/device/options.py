"""Where drafts are looked up, from what a user writes: ``"lookup": "device"``, or the same with options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from specplug.adapters.device.lookup import check
from specplug.errors import SettingsError, did_you_mean

#: The key among a proposer's options; it is the adapter's.
KEY = "lookup"
PLACES = ("host", "device")
#: Methods that have look-ups on the device.
METHODS = ("suffix",)


def read(options: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The options of look-ups on the device, all of them; None for look-ups on the host, the default.

    Args:
        options: what the user wrote for the proposer.
        name: the proposer.

    Raises:
        SettingsError: an unknown place or option, a method without look-ups on the device, or options that only those
            on the host have.
    """
    given = options.get(KEY, "host")
    where = f"specplug.{name}, option {KEY!r}"
    if isinstance(given, Mapping):
        place, own = given.get("name"), {k: v for k, v in given.items() if k != "name"}
    else:
        place, own = given, {}
    if not isinstance(place, str) or place not in PLACES:
        hint = did_you_mean(place, PLACES) if isinstance(place, str) else ""
        raise SettingsError(
            f'{where}: write "host", "device" or {{"name": "device", ...}}, got {given!r}; {hint}'.rstrip(
                "; "
            )
        )
    if place == "host":
        if own:
            raise SettingsError(
                f"{where}: 'host' has no options, got {sorted(own)[0]!r}; remove it"
            )
        return None
    if name not in METHODS:
        raise SettingsError(
            f"{where}: only {', '.join('specplug.' + m for m in METHODS)} can be looked up on the device; "
            f"remove {KEY!r} and {name} drafts on the host"
        )
    foreign = sorted(key for key in options if key not in (KEY, "controller"))
    if foreign:
        raise SettingsError(
            f"specplug.{name}: the option {foreign[0]!r} is one of look-ups on the host; with {KEY!r} on the device "
            f'remove it (options of the device go into "{KEY}": {{"name": "device", ...}})'
        )
    return asdict(check(own, where))
