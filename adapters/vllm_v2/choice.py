"""Which of vLLM's two model runners a method of ours gets, and why."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any, NamedTuple

from specplug.errors import HostMismatchError, SettingsError

#: vLLM's own switch between its model runners.
VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
#: Set on ``EngineArgs`` of which vLLM, asked for V2, has made V1.
FORCED = "_specplug_v1"

#: Ranks verify in V2 what each drafted itself, so all would have to draft the same; measured times differ.
PARALLEL = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
)
#: V1 has none of it, and what was said of :data:`PARALLEL` holds for V2.
NOWHERE = "prefill_context_parallel_size"


class Door(NamedTuple):
    """The runner and the reason.

    Attributes:
        v2: V2, otherwise V1.
        reason: a clause that follows "because".
        asked: the user said so; then nothing else is taken in its place.
    """

    v2: bool
    reason: str
    asked: bool = False

    def __str__(self) -> str:
        return f"{'V2' if self.v2 else 'V1'} model runner, because {self.reason}"


def wished() -> bool | None:
    """What the user chose, read as vLLM does; None: nothing."""
    value = os.environ.get(VARIABLE)
    try:
        return None if value is None else bool(int(value))
    except ValueError:  # vLLM itself refuses to start
        return False


def by_itself(parallel: Any = None) -> Door:
    """What vLLM takes for a method that V2 knows where the user chose nothing.

    Args:
        parallel: its ``ParallelConfig``, if that is known.
    """
    try:
        from vllm.platforms import current_platform
        from vllm.triton_utils import HAS_TRITON
    except ImportError as error:  # another vLLM: V1 asks for neither
        return Door(False, f"this vLLM does not say where it runs ({error})")
    # On a CPU vLLM would, if there were a Triton for it; nobody wants that one for its speed.
    if not current_platform.is_cuda_alike():
        return Door(False, "V2 is chosen by itself on CUDA and ROCm only")
    if not HAS_TRITON:
        return Door(False, "V2 needs Triton, which does not work here")
    if getattr(parallel, "use_ubatching", False):
        return Door(False, "V2 does not know dual batch overlap")
    return Door(True, "vLLM takes it by itself here")


def choose(engine_args: Any, parallel: Any = None, only_v1: str = "") -> Door:
    """The runner for a method of ours with these ``EngineArgs``.

    Args:
        engine_args: what the user wrote.
        parallel: vLLM's ``ParallelConfig``, if that is known.
        only_v1: why the method cannot have V2, or an empty string.

    Raises:
        SettingsError: what neither runner can do with a method of ours.
    """
    size = int(getattr(engine_args, NOWHERE, 1) or 1)
    if size > 1:
        raise SettingsError(
            f"methods of specplug do not work with {NOWHERE}={size}: vLLM's V1 model runner does not have it, and in "
            "V2 specplug drafts for one GPU; use 1"
        )
    said = wished()
    if said is not None:
        return Door(said, f"{VARIABLE}={os.environ[VARIABLE]}", asked=True)
    forced = getattr(engine_args, FORCED, "")
    door = Door(False, forced) if forced else by_itself(parallel)
    if not door.v2:
        return door
    if only_v1:
        return Door(False, only_v1)
    several = ranks(engine_args)
    if several:
        return Door(False, f"in V2 specplug drafts for one GPU, and this is {several}")
    from specplug.adapters.vllm_v2 import requirements

    try:
        requirements.require()
    except HostMismatchError as error:
        return Door(False, str(error))
    return door


def ranks(engine_args: Any) -> str:
    """The setting that makes several ranks or replicas of an engine, or an empty string."""
    for name in PARALLEL:
        size = int(getattr(engine_args, name, 1) or 1)
        if size > 1:
            return f"{name}={size}"
    return ""


def expected(cpu_build: bool) -> Door:
    """What :func:`choose` will most likely say, found without importing vLLM: for ``specplug doctor``.

    Args:
        cpu_build: whether the installed vLLM is the one for CPUs.
    """
    said = wished()
    if said is not None:
        return Door(said, f"{VARIABLE}={os.environ[VARIABLE]}", asked=True)
    if cpu_build:
        return Door(False, f"this vLLM is built for CPUs; {VARIABLE}=1 chooses V2")
    if find_spec("triton") is None:
        return Door(False, "V2 needs Triton, which is not installed")
    from specplug.adapters.vllm_v2 import requirements

    try:
        requirements.require()
    except HostMismatchError as error:
        return Door(False, str(error))
    return Door(
        True,
        f"vLLM takes it by itself on a GPU; with several ranks it is V1, and {VARIABLE}=0 chooses V1",
    )
