"""Speculative decoding without a draft model, plugged into vLLM and SGLang.

The public names load on first use, so that ``import specplug`` costs about a millisecond: a plugin is imported
in every process of its host, most of which never draft.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specplug._version import __version__

if TYPE_CHECKING:
    from specplug.protocols import Controller, Proposer
    from specplug.session import Session
    from specplug.types import Capabilities, Context, DraftBuffers, Observed, Request

_HOME = {
    "Capabilities": "specplug.types",
    "Context": "specplug.types",
    "Controller": "specplug.protocols",
    "DraftBuffers": "specplug.types",
    "Observed": "specplug.types",
    "Proposer": "specplug.protocols",
    "Request": "specplug.types",
    "Session": "specplug.session",
}

__all__ = [
    "Capabilities",
    "Context",
    "Controller",
    "DraftBuffers",
    "Observed",
    "Proposer",
    "Request",
    "Session",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(
        f"module 'specplug' has no attribute {name!r}; public names: {', '.join(__all__)}"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
