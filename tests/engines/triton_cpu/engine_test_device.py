"""Called inside the engine: does it run ahead, and does anything in our part of a step wait for the device."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

#: Tensor methods for which the host must wait until the device has done everything before.
WAITING = frozenset(
    {
        *("item", "tolist", "cpu", "numpy", "nonzero", "unique", "masked_select", "equal"),
        *("__bool__", "__int__", "__float__", "__index__", "is_nonzero", "allclose"),
    }
)

#: What :func:`watch` counts, by what was called.
counted: dict[str, list[str]] = {}


class Waits(TorchFunctionMode):
    """Counts calls for which the host would wait if the tensors were on an accelerator."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in WAITING:
            self.found.append(name)
        # To the host, or to anywhere without being told not to wait.
        if name in ("to", "copy_") and not kwargs.get("non_blocking", False):
            self.found.append(f"{name} without non_blocking")
        # A mask of booleans has as many elements as it says on the device.
        if name in ("__getitem__", "__setitem__"):
            keys = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(k, torch.Tensor) and k.dtype == torch.bool for k in keys):
                self.found.append(f"{name} by a mask")
        return func(*args, **kwargs)


def ahead(llm: Any) -> dict[str, Any]:
    """How vLLM schedules."""
    core = llm.llm_engine.engine_core.engine_core
    return {
        "async_scheduling": core.scheduler.vllm_config.scheduler_config.async_scheduling,
        "batches": core.batch_queue_size,
        "bases": [base.__name__ for base in type(core.scheduler).__mro__],
    }


def watch(llm: Any) -> None:
    """From now on, count what waits in our speculator."""
    from specplug.adapters.vllm_v1 import active

    [speculator] = active()[-1:]
    for name in ("propose", "before_finish", "after_update"):
        setattr(speculator, name, _counting(name, getattr(speculator, name)))


def _counting(name: str, method: Any) -> Any:
    counted[name] = []

    def called(*args: Any, **kwargs: Any) -> Any:
        with Waits() as waits:
            result = method(*args, **kwargs)
        counted[name].append(",".join(waits.found))
        return result

    return called


def waits(llm: Any) -> dict[str, Any]:
    """How often each was called, and what waited in it."""
    return {
        name: {"calls": len(found), "waited": [each for each in found if each]}
        for name, found in counted.items()
    }
