"""vLLM's V2 model runner as a host, where vLLM takes it by itself or ``VLLM_USE_V2_MODEL_RUNNER=1`` asks for it.

V2 has no door for foreign proposers. What the user writes is translated nearly as for V1, and in the worker
``init_speculator``, which knows vLLM's own methods only, is wrapped: for a method of ours it returns our speculator.
Drafts are looked up on the host, by the V1 adapter's proposer; this package translates between it and V2. Which of the
two runners it is, is decided in :mod:`.choice`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specplug.adapters.vllm_v2.choice import FORCED, VARIABLE, choose, wished

__all__ = [
    "CARRIER",
    "VARIABLE",
    "choose",
    "install",
    "possible",
    "prepare",
    "seal",
    "went_elsewhere",
]

#: A method that drafts without a model, known to V2.
CARRIER = "ngram"


def possible() -> bool:
    """Whether this process may come to run V2 with a method of ours; asked where the plugin is loaded."""
    said = wished()
    if said is not None:
        return said
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda_alike())


def prepare(engine_args: Any, translated: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse what cannot work, in the caller's process and before the model loads; what vLLM gets if it can.

    V2 refuses ``custom_class``, the form for V1, by name. So the method is called :data:`CARRIER`; the class path of
    ours in ``model``, which that method does not use, says in the worker what is meant.

    Raises:
        HostMismatchError: this vLLM's V2 runner lacks what is relied on.
        SettingsError: several GPUs for one model.
    """
    from specplug.adapters.vllm_v1.options import unpack
    from specplug.adapters.vllm_v2 import requirements

    requirements.require()
    requirements.refuse(engine_args)
    install()
    choice = unpack(str(translated["model"]).rpartition(".")[2])
    if choice is not None and choice.lookup is not None:
        from specplug.adapters.vllm_v2 import device

        return device.prepare(engine_args, translated, choice)
    return {**translated, "method": CARRIER, "prompt_lookup_min": 1, "prompt_lookup_max": 1}


def refuse_v1(translated: Mapping[str, Any]) -> None:
    """Refuse what only the V2 runner has, where V1 runs.

    Raises:
        SettingsError: look-ups on the device.
    """
    from specplug.adapters.vllm_v1.options import unpack
    from specplug.errors import SettingsError

    choice = unpack(str(translated["model"]).rpartition(".")[2])
    if choice is not None and choice.lookup is not None:
        raise SettingsError(
            f'specplug.{choice.name} with "lookup": "device" needs vLLM\'s V2 model runner, where the tokens are on '
            f'the device; set {VARIABLE}=1, or remove "lookup"'
        )


def seal(made: Any) -> Any:
    """A ``SpeculativeConfig`` of ours whose carrier cannot run by itself; others as they are.

    Without our plugin in the worker, vLLM would run its own method under our name. At length 0, which vLLM's check of
    the user's settings does not let in, that of the V2 runner refuses to start.
    """
    from specplug.adapters.vllm_v2.door import is_carried

    if is_carried(made):
        made.prompt_lookup_min = made.prompt_lookup_max = 0
    return made


def went_elsewhere(engine_args: Any, made: Any) -> bool:
    """Whether vLLM, whose reasons may be more than we know, runs what was made for V2 in V1; notes it if so.

    Args:
        engine_args: what the configuration was made of; asked again, :func:`choose` says V1.
        made: the complete ``VllmConfig``.
    """
    from specplug.adapters.vllm_v2.door import is_carried

    if not is_carried(made.speculative_config) or getattr(made, "use_v2_model_runner", True):
        return False
    setattr(engine_args, FORCED, "vLLM does not take V2 with these settings")
    return True


def install() -> None:
    """Wrap ``init_speculator`` in this process, once; called where the plugin is loaded, so in every worker.

    A V2 runner that lacks it is left alone: :func:`prepare` says so to those who want a method of ours.
    """
    from specplug.adapters.vllm_v2.door import install as install_door

    install_door()
