"""What is done once, when a worker builds its proposer: limits, threads, host repairs."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from specplug.adapters.common import host_logger
from specplug.adapters.vllm_v1.options import PREFIX, Choice
from specplug.control import options as control
from specplug.control.fixed import FixedLength
from specplug.machine import thread_share
from specplug.protocols import Controller
from specplug.types import Capabilities, Context, IntArray
from specplug.vocabulary import vocabulary_digest

#: Executors whose scheduler takes drafts from one rank only; every other rank may save itself the look-ups.
_ONE_RANK_DRAFTS = ("mp", "ray", "uni")


def context(vllm_config: Any) -> Context:
    """The limits of this worker, from vLLM's configuration.

    ``vocab_size`` is the model's own, without the padding that vLLM adds to the embedding for tensor parallelism.
    """
    return Context(
        vocab_size=int(vllm_config.model_config.get_vocab_size()),
        max_length=int(vllm_config.model_config.max_model_len),
        max_draft=int(vllm_config.speculative_config.num_speculative_tokens),
        max_requests=int(vllm_config.scheduler_config.max_num_seqs),
        threads=threads(vllm_config),
        tokenizer=functools.partial(tokenizer_digest, vllm_config),
        saves=_tensor_rank(vllm_config) == 0,
        trees=False,
    )


def tokenizer_digest(vllm_config: Any) -> str:
    """Digest of the tokenizer's vocabulary, for files of token ids; "" if vLLM was told to load no tokenizer.

    Asked for only by proposers that have such a file, since a worker has no tokenizer by itself: loading one takes a
    second.
    """
    try:
        from vllm.tokenizers.registry import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(vllm_config.model_config)
        return "" if tokenizer is None else vocabulary_digest(tokenizer.get_vocab())
    except Exception as error:  # noqa: BLE001  a tokenizer fails in as many ways as there are kinds of them
        host_logger("vllm").warning(
            "specplug: the tokenizer cannot be read (%r); files of tokens are checked by vocabulary size only",
            error,
        )
        return ""


def threads(vllm_config: Any) -> int:
    """Threads for look-ups: this worker's share, the replicas on the same machine counted."""
    parallel = getattr(vllm_config, "parallel_config", None)
    return thread_share(int(getattr(parallel, "data_parallel_size_local", 1) or 1))


def controller(choice: Choice, limits: Context, capabilities: Capabilities, config: Any) -> HostCap:
    """The controller of the user's choice, under the draft length that vLLM allows."""
    inner: Controller = FixedLength()
    if choice.control is not None:
        inner = control.build(
            choice.control,
            limits,
            capabilities,
            captured=captured_sizes(config),
            device="" if on_cpu() else device_name(),
            name=PREFIX + choice.name,
        )
    return HostCap(limits.max_draft, inner)


def captured_sizes(config: Any) -> list[int]:
    """Token counts to which vLLM pads a step; none where it captures no graphs."""
    compilation = getattr(config, "compilation_config", None)
    mode = getattr(compilation, "cudagraph_mode", None)
    if on_cpu() or mode is None or getattr(mode, "name", str(mode)) == "NONE":
        return []
    return [int(size) for size in getattr(compilation, "cudagraph_capture_sizes", None) or ()]


def device_name() -> str:
    """The accelerator, as its driver calls it."""
    from vllm.platforms import current_platform

    try:
        return str(current_platform.get_device_name())
    except Exception:  # noqa: BLE001  a name in a file is worth no failure of whatever a platform raises
        return "unknown device"


def drafts_here(vllm_config: Any) -> bool:
    """Whether this rank's drafts reach a scheduler.

    vLLM's multiprocess and Ray executors take drafts from the first rank of the (last) tensor-parallel group and
    send them to all ranks with the next step; with an external launcher every rank has a scheduler of its own, so all
    must draft.
    """
    parallel = vllm_config.parallel_config
    if getattr(parallel, "distributed_executor_backend", None) not in _ONE_RANK_DRAFTS:
        return True
    return _tensor_rank(vllm_config) == 0


def replica(vllm_config: Any) -> int:
    """Which data-parallel replica this worker belongs to."""
    parallel = getattr(vllm_config, "parallel_config", None)
    return int(getattr(parallel, "data_parallel_rank", 0) or 0)


def _tensor_rank(vllm_config: Any) -> int:
    """This worker's place in its tensor-parallel group."""
    if int(getattr(getattr(vllm_config, "parallel_config", None), "tensor_parallel_size", 1)) <= 1:
        return 0
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())


def on_cpu() -> bool:
    """Whether vLLM runs on its CPU platform."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


class HostCap:
    """A controller under the draft length that vLLM's own dynamic schedule allows in this step.

    Attributes:
        inner: the controller; what it has beyond the protocol is found here too.
        trims: whether it cuts drafts after they are made.
    """

    def __init__(self, ceiling: int, inner: Controller | None = None) -> None:
        self.cap = ceiling
        self.inner: Any = inner or FixedLength()
        self.trims = bool(getattr(self.inner, "trims", False))

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not there yet: while it is unpickled, say
            raise AttributeError(name)
        return getattr(self.inner, name)

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        """The inner controller's plan, cut to the cap of the step."""
        self.inner.plan(slots, limits, ceilings)
        np.minimum(ceilings, self.cap, out=ceilings)
