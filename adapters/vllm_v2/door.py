"""How our speculator gets into the V2 runner: three wrappers, each of which passes on what is not ours."""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from typing import Any

from specplug.adapters.vllm_v1.binding import bind
from specplug.adapters.vllm_v1.options import DOOR, Choice, unpack

PACKAGE = "vllm.v1.worker.gpu.spec_decode"
RUNNER = "vllm.v1.worker.gpu.model_runner"
_MARK = "_specplug"


class Held:
    """What a runner holds as its ``speculator`` if it is ours; the wrappers know it by this type."""

    def after_update(self, runner: Any, scheduler_output: Any) -> None:
        """The runner's request states are up to date for this step."""
        raise NotImplementedError

    def take(self) -> tuple[list[str], list[list[int]]] | None:
        """Request ids and drafts of the last step, once; None if there was none since."""
        raise NotImplementedError


def of_vllm(ours: type[Any], width: int) -> Any:
    """A subclass of ``ours`` that is vLLM's speculator too: what its runner calls, and no more.

    Args:
        ours: has ``empty(rows)``, for steps that vLLM makes up, and ``step(input_batch, num_sampled, most)`` for real
            ones; both give int64 ``[rows, K]``.
        width: most draft tokens, ``K``.
    """
    from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

    class Speculator(ours, BaseSpeculator):  # type: ignore[misc]
        """No model, no graphs, no draft probabilities: only :meth:`propose`."""

        supports_mm_inputs = False
        draft_logits = None
        num_speculative_steps = width

        def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
            """There is nothing to capture."""

        def capture(self) -> None:
            """There is nothing to capture."""

        def propose(
            self,
            input_batch: Any,
            attn_metadata: Any,
            slot_mappings: Any,
            last_hidden_states: Any,
            aux_hidden_states: Any,
            num_sampled: Any,
            *unused: Any,
            num_speculative_tokens: int | None = None,
            dummy_run: bool = False,
            is_profile: bool = False,
            **others: Any,
        ) -> Any:
            """Drafts, int64 ``[B, K]``."""
            if dummy_run or is_profile:
                return self.empty(input_batch.num_reqs)
            most = width if num_speculative_tokens is None else num_speculative_tokens
            return self.step(input_batch, num_sampled, most)

    return Speculator


def install() -> None:
    """Wrap ``init_speculator`` where it is defined, and where the runner has taken it already."""
    try:
        package = import_module(PACKAGE)
    except ImportError:  # a vLLM without V2: who wants a method of ours in it is told by prepare()
        return
    original = getattr(package, "init_speculator", None)
    if original is None:
        return
    wrapped = original if getattr(original, _MARK, False) else _wrap(original)
    package.init_speculator = wrapped  # type: ignore[attr-defined]
    runner = sys.modules.get(RUNNER)
    if runner is not None:
        runner.init_speculator = wrapped  # type: ignore[attr-defined]


def is_carried(speculative_config: Any) -> bool:
    """Whether a ``SpeculativeConfig`` carries a method of ours in the form for V2."""
    ours = str(getattr(speculative_config, "model", "")).rpartition(".")[0] == DOOR
    # For V1 the class path is the same.
    return ours and getattr(speculative_config, "method", "") != "custom_class"


def choice_of(vllm_config: Any) -> Choice | None:
    """The method of ours that a configuration names, if it does."""
    config = vllm_config.speculative_config
    return unpack(str(config.model).rpartition(".")[2]) if is_carried(config) else None


def bind_runner(runner_class: Any) -> None:
    """Wrap what tells of requests, and what hands drafts to the scheduler; once."""
    bind(runner_class, Held, "update_requests", "speculator")
    original = runner_class.take_draft_token_ids
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def take_draft_token_ids(self: Any) -> Any:
        speculator = getattr(self, "speculator", None)
        if not isinstance(speculator, Held):
            return original(self)
        taken = speculator.take()
        if taken is None:
            return None
        from vllm.v1.outputs import DraftTokenIds

        # V2's own would be num_speculative_tokens placeholders for every row, all of which would be verified.
        return DraftTokenIds(*taken)

    setattr(take_draft_token_ids, _MARK, True)
    runner_class.take_draft_token_ids = take_draft_token_ids


def _wrap(original: Any) -> Any:
    @functools.wraps(original)
    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
        choice = choice_of(vllm_config)
        if choice is None:
            return original(vllm_config, device, req_states)
        if choice.lookup is not None:
            from specplug.adapters.vllm_v2.device import build as build_device

            return build_device(vllm_config, device, req_states, choice)
        from specplug.adapters.vllm_v2.speculator import build

        return build(vllm_config, device, req_states, choice)

    setattr(init_speculator, _MARK, True)
    return init_speculator
