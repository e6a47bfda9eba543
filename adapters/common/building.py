"""How an adapter builds its proposer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specplug import registry
from specplug.adapters.common import host_logger
from specplug.errors import HostMismatchError
from specplug.protocols import Proposer
from specplug.types import Context


def build_proposer(name: str, context: Context, options: Mapping[str, Any], host: str) -> Proposer:
    """A proposer for ``host``.

    Raises:
        HostMismatchError: it needs the target's hidden states, which no adapter hands over so far.
        UnknownProposerError, InvalidProposerError, SettingsError: see :func:`specplug.registry.build`.
    """
    proposer = registry.build(name, context, options)
    if proposer.capabilities.target_states:
        raise HostMismatchError(
            f"{name} needs the target's hidden states (Capabilities.target_states), which the adapter for {host} "
            "does not hand over; choose another proposer"
        )
    if options.get("tree") and not context.trees:
        host_logger(host.lower()).warning(
            "specplug: %s drafts chains, option 'tree' is without effect: trees are not verified here",
            name,
        )
    return proposer
