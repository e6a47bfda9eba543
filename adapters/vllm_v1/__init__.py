"""vLLM (V1 model runner) as a host. Loaded by vLLM's plugin loader in every one of its processes.

vLLM's own door for foreign proposers is ``method="custom_class"``. All this adapter adds at load time is one
wrapper around ``EngineArgs.create_speculative_config``, which turns ``{"method": "specplug.suffix", ...}`` into
that form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specplug.adapters.vllm_v1.proposer import VllmProposer


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``: cheap, idempotent, never raises."""
    try:
        from specplug.adapters import vllm_v2
        from specplug.adapters.vllm_v1.install import install

        install()
        if vllm_v2.possible():
            vllm_v2.install()
    except Exception:  # noqa: BLE001  vLLM runs plugins unguarded: raising would take the engine down
        from specplug.adapters.common import host_logger

        host_logger("vllm").exception(
            'specplug inactive: its vLLM plugin could not be installed; "method": "specplug.*" will be '
            "unknown to vLLM"
        )


def active() -> list[VllmProposer]:
    """The proposers that run in this process (normally one, and only in a worker), newest last."""
    from specplug.adapters.vllm_v1.proposer import running

    return running()
