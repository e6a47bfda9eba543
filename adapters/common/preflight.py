"""What a server asks before its model loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specplug import registry
from specplug.adapters.common.wishes import NAMESPACE_PARTS
from specplug.errors import SettingsError


def preflight(
    name: str,
    options: Mapping[str, Any],
    vocab_size: Callable[[], int] | None = None,
    tokenizer: Callable[[], str] | None = None,
) -> None:
    """:func:`specplug.registry.preflight`, and what only a server knows: how it writes the names of namespaces.

    Raises:
        SettingsError: it could not start, or ``common`` names what no request can have.
    """
    common = options.get("common")
    if name in ("suffix", "hybrid") and isinstance(common, str):
        _check_common(name, common, options)
    registry.preflight(name, options, vocab_size, tokenizer)


def _check_common(name: str, common: str, options: Mapping[str, Any]) -> None:
    where = f"{registry.PREFIX}{name}: option 'common'"
    if common and not common.startswith(tuple(f"{part}=" for part in NAMESPACE_PARTS)):
        raise SettingsError(
            f"{where} must be a namespace as servers write it, got {common!r}; did you mean 'namespace={common}'?"
        )
    if options.get("store_mb") == 0:
        raise SettingsError(
            f"{where} names text of the store, but 'store_mb' is 0, which keeps none; drop one of the two"
        )
