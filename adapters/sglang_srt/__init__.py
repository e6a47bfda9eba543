"""SGLang (``sglang.srt``) as a host. Loaded by SGLang's plugin loader in every one of its processes.

Every registered proposer becomes a speculative algorithm, ``--speculative-algorithm specplug.<name>``. SGLang logs and
swallows what a plugin raises, so whatever is wrong is said by the algorithm itself as soon as somebody asks for it.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Entry point of the group ``sglang.srt.plugins``: cheap, idempotent, never raises."""
    try:
        from specplug.adapters.sglang_srt.install import install

        install()
    except Exception:  # noqa: BLE001  SGLang would swallow it with a line that does not say what follows from it
        from specplug.adapters.common import host_logger

        host_logger("sglang").exception(
            "specplug inactive: its SGLang plugin could not be installed; --speculative-algorithm specplug.* will "
            "be unknown to SGLang. `specplug doctor` says what is missing"
        )


def active() -> list[Any]:
    """The workers of ours that run in this process (one in a scheduler process, none elsewhere)."""
    from specplug.adapters.sglang_srt.worker import running

    return running()
