"""Faults of the host that make speculation wrong, tested for and repaired when the proposer is built.

vLLM on the CPU (0.32 and 0.33, vllm-project/vllm#55005): ``expand_batch_to_tokens`` gives temperature, top-k and top-p
of each draft position to the rejection sampler. Its CPU kernel writes into an int64 *copy* of the result and drops the
copy, so for the float32 and int32 tensors that it is called with the result is uninitialised memory: every request
that samples draws from a wrong distribution as soon as there are drafts in its batch.

The same versions, also on the CPU only: the top-k filter takes the maximum of the k of all draft positions,
which does not exist on a step without drafts. A request with ``top_k`` and no ``top_p`` ends the engine that way.

And once more on the CPU: every engine that starts in a process registers the same kernels again and for that scans all
loaded modules, in a way that numba's (which our kernels, and vLLM's own ``ngram``, load) do not survive. A second
engine in one process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``) therefore dies at start.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

MODULE = "vllm.v1.sample.rejection_sampler"
DISPATCHER = "vllm.triton_utils.dispatcher"
_MARK = "_specplug_repair"

#: Odd values: uninitialised memory must not contain them by chance.
_VALUES = (3, 77, 0, 41, 13)
_LENGTHS = (2, 0, 5, 1, 3)


def is_sound(expand: Callable[..., Any]) -> bool:
    """Whether an ``expand_batch_to_tokens`` repeats values right, for each dtype the sampler uses, with replacement."""
    import torch

    cumulative = torch.tensor(_LENGTHS, dtype=torch.int32).cumsum(0).to(torch.int32)
    total = sum(_LENGTHS)
    for dtype in (torch.float32, torch.int32, torch.int64):
        for replace_from, replace_to in ((0, 0), (0, 1), (41, 9)):
            values = torch.tensor(_VALUES, dtype=dtype)
            try:
                found = expand(values, cumulative, total, replace_from, replace_to)
            except Exception:  # noqa: BLE001  a host function that cannot even run does not work either
                return False
            expected = [
                float(replace_to if value == replace_from else value)
                for value, length in zip(_VALUES, _LENGTHS, strict=True)
                for _ in range(length)
            ]
            if found.dtype != dtype or found.tolist() != expected:
                return False
    return True


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    """``x`` (tensor ``[batch]``) repeated to one value per draft token, ``[num_tokens]``.

    The stand-in for the host's function, with its signature: request ``i`` owns the positions
    ``cu_num_tokens[i - 1] .. cu_num_tokens[i]``; values equal to ``replace_from`` become ``replace_to``.
    """
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    expanded = torch.repeat_interleave(x, counts.to(torch.int64), output_size=num_tokens)
    if replace_from != replace_to:
        expanded = expanded.masked_fill(expanded == replace_from, replace_to)
    return expanded


def filters_nothing(apply_top_k_top_p: Callable[..., Any]) -> bool:
    """Whether the host's top-k filter accepts the logits of a step without drafts, ``[0, vocabulary]``."""
    import torch

    try:
        found = apply_top_k_top_p(torch.zeros(0, 8), torch.zeros(0, dtype=torch.int32), None)
    except Exception:  # noqa: BLE001  however the host fails, it fails the request too
        return False
    return tuple(found.shape) == (0, 8)


def guard_empty(apply_top_k_top_p: Callable[..., Any]) -> Callable[..., Any]:
    """The host's filter, asked only where there is something to filter."""

    @functools.wraps(apply_top_k_top_p)
    def guarded(logits: Any, *args: Any, **kwargs: Any) -> Any:
        return apply_top_k_top_p(logits, *args, **kwargs) if logits.shape[0] else logits

    setattr(guarded, _MARK, True)
    return guarded


def _repair_filter(module: Any, log: logging.Logger) -> None:
    host = getattr(module, "apply_top_k_top_p", None)
    if host is None or getattr(host, _MARK, False) or filters_nothing(host):
        return
    module.apply_top_k_top_p = guard_empty(host)
    log.warning(
        "specplug: %s.apply_top_k_top_p of this vLLM fails on the CPU for requests with top_k on steps without "
        "drafts; guarded in this process",
        MODULE,
    )


def register_once(
    register_kernels: Callable[..., Any], registry: Mapping[str, tuple[Any, Any]]
) -> Callable[..., Any]:
    """The host's function, asked only for kernels that are not registered yet with the same implementation."""

    @functools.wraps(register_kernels)
    def register(overrides: Mapping[str, Callable[..., Any]]) -> None:
        new = {
            name: implementation
            for name, implementation in overrides.items()
            if name not in registry or registry[name][1] is not implementation
        }
        if new:
            register_kernels(new)

    setattr(register, _MARK, True)
    return register


def repair_registration(log: logging.Logger) -> None:
    from importlib import import_module

    try:
        module = import_module(DISPATCHER)
    except ImportError:
        return
    host = getattr(module, "register_kernels", None)
    registry = getattr(module, "_registry", None)
    if host is None or not isinstance(registry, dict) or getattr(host, _MARK, False):
        return
    module.register_kernels = register_once(host, registry)  # type: ignore[attr-defined]
    log.debug("specplug: %s.register_kernels skips what is registered already", DISPATCHER)


def repair(log: logging.Logger) -> str:
    """Test the host functions and replace those that fail.

    Returns ``sound``, ``repaired`` or ``absent``, of the expansion.

    Only to be called on the CPU platform: on a GPU the Triton kernel is right and this test would launch it.
    """
    from importlib import import_module

    try:
        module = import_module(MODULE)
    except ImportError:
        return "absent"
    _repair_filter(module, log)
    repair_registration(log)
    host = getattr(module, "expand_batch_to_tokens", None)
    if host is None:
        return "absent"
    if getattr(host, _MARK, False):
        return "repaired"
    if is_sound(host):
        return "sound"
    setattr(expand_batch_to_tokens, _MARK, True)
    module.expand_batch_to_tokens = expand_batch_to_tokens  # type: ignore[attr-defined]
    log.warning(
        "specplug: %s.expand_batch_to_tokens of this vLLM returns uninitialised memory on the CPU, which makes "
        "sampling with drafts draw from a wrong distribution (vllm-project/vllm#55005); replaced in this process",
        MODULE,
    )
    return "repaired"
