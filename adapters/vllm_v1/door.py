"""Where vLLM's ``custom_class`` loader finds our proposer: every packed class name is an attribute here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specplug.adapters.vllm_v1.proposer import VllmProposer


def __getattr__(name: str) -> Callable[[Any], VllmProposer]:
    from specplug.adapters.vllm_v1.options import unpack

    choice = unpack(name)
    if choice is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def build(vllm_config: Any) -> VllmProposer:
        from specplug.adapters.vllm_v1.proposer import VllmProposer

        return VllmProposer(vllm_config, choice)

    return build
