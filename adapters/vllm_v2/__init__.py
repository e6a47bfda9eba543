"""vLLM's V2 model runner as a host, where ``VLLM_USE_V2_MODEL_RUNNER=1`` asks for it.

V2 has no door for foreign proposers. What the user writes is translated as for V1, and in the worker
``init_speculator``, which knows vLLM's own methods only, is wrapped: for a method of ours it returns our speculator.
Drafts are looked up on the host, by the V1 adapter's proposer; this package translates between it and V2.
"""

from __future__ import annotations

import os
from typing import Any

#: vLLM's own switch between its model runners.
VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def chosen() -> bool:
    """Whether the user asked for the V2 runner. Without that, vLLM runs a method of ours in V1."""
    return os.environ.get(VARIABLE, "").strip().lower() in ("1", "true")


def prepare(engine_args: Any) -> None:
    """Refuse what cannot work, in the caller's process and before the model loads; the worker's part is installed.

    Raises:
        HostMismatchError: this vLLM's V2 runner lacks what is relied on.
        SettingsError: several GPUs for one model.
    """
    from specplug.adapters.common import host_logger
    from specplug.adapters.vllm_v2 import requirements

    warning = requirements.require()
    if warning:
        host_logger("vllm").warning("specplug: %s", warning)
    requirements.refuse(engine_args)
    install()


def install() -> None:
    """Wrap ``init_speculator`` in this process, once; called where the plugin is loaded, so in every worker.

    A V2 runner that lacks it is left alone: :func:`prepare` says so to those who want a method of ours.
    """
    from specplug.adapters.vllm_v2.door import install as install_door

    install_door()
