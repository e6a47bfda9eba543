"""The names of vLLM's V2 model runner that this adapter relies on, and what is refused in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specplug._host import HostSymbol, SymbolReport
from specplug.adapters.vllm_v1.requirements import HOST as V1_HOST
from specplug.adapters.vllm_v2.choice import ranks
from specplug.errors import HostMismatchError, SettingsError

_RUNNER = "vllm.v1.worker.gpu.model_runner"
_STATES = "vllm.v1.worker.gpu.states"
_BATCH = "vllm.v1.worker.gpu.input_batch"
_OUTPUT = "vllm.v1.core.sched.output"

SYMBOLS: tuple[HostSymbol, ...] = (
    HostSymbol(
        "vllm.v1.worker.gpu.spec_decode",
        "init_speculator",
        ("vllm_config", "device", "req_states"),
        purpose="wrapped: returns our speculator for a method of ours",
    ),
    HostSymbol(
        _RUNNER, "init_speculator", purpose="replaced too: the runner knows it under its own name"
    ),
    HostSymbol(
        "vllm.v1.worker.gpu.spec_decode.speculator",
        "BaseSpeculator.propose",
        (
            *("input_batch", "attn_metadata", "slot_mappings", "last_hidden_states"),
            *("aux_hidden_states", "num_sampled"),
        ),
        purpose="implemented: asked for drafts after each step",
    ),
    HostSymbol(
        _RUNNER,
        "GPUModelRunner.update_requests",
        ("scheduler_output",),
        purpose="wrapped: requests arrive, end, are preempted and come back",
    ),
    HostSymbol(
        _RUNNER,
        "GPUModelRunner.add_requests",
        ("scheduler_output",),
        purpose="wrapped for look-ups on the device: requests arrive and come back",
    ),
    HostSymbol(
        _RUNNER,
        "GPUModelRunner.finish_requests",
        ("scheduler_output",),
        purpose="wrapped for look-ups on the device: requests are about to lose their rows",
    ),
    HostSymbol(_STATES, "RequestState.req_id_to_index", purpose="read: the row of a request"),
    HostSymbol(
        _RUNNER,
        "GPUModelRunner.take_draft_token_ids",
        purpose="wrapped: drafts are made here, and the scheduler gets them with their real lengths",
    ),
    HostSymbol(_RUNNER, "GPUModelRunner.speculator", purpose="read: is it ours"),
    HostSymbol(_STATES, "RequestState.all_token_ids", purpose="read: the tokens of each request"),
    HostSymbol(_STATES, "RequestState.total_len", purpose="read: how many they are"),
    HostSymbol(_STATES, "RequestState.draft_tokens", purpose="written: drafts, once they are made"),
    HostSymbol(_BATCH, "InputBatch.num_reqs", purpose="read: rows of the step"),
    HostSymbol(_BATCH, "InputBatch.req_ids", purpose="read: request of each row"),
    HostSymbol(_BATCH, "InputBatch.idx_mapping", purpose="read: where its state is"),
    HostSymbol(_OUTPUT, "NewRequestData.prefill_token_ids", purpose="read: tokens of a newcomer"),
    HostSymbol(_OUTPUT, "NewRequestData.prompt_len", purpose="read"),
    HostSymbol(_OUTPUT, "NewRequestData.sampling_params", purpose="read: stop ids, limits"),
    HostSymbol(_OUTPUT, "SchedulerOutput.preempted_req_ids", purpose="read: who will come back"),
    HostSymbol(
        "vllm.engine.arg_utils",
        "EngineArgs.create_engine_config",
        process="front end",
        purpose="wrapped: where vLLM takes V1 after all, what was made for V2 is made again for V1",
    ),
    HostSymbol(
        "vllm.config.vllm",
        "VllmConfig.use_v2_model_runner",
        process="front end",
        purpose="read: which runner it became",
    ),
    HostSymbol(
        "vllm.triton_utils", "HAS_TRITON", process="front end", purpose="read: V2 needs Triton"
    ),
    HostSymbol(
        "vllm.config.speculative",
        "SpeculativeConfig.model",
        purpose="carries proposer and options to the worker",
    ),
    HostSymbol(
        "vllm.v1.outputs",
        "DraftTokenIds",
        purpose="made: what the scheduler gets",
    ),
)

HOST = replace(V1_HOST, symbols=SYMBOLS)

_HINT = "or set VLLM_USE_V2_MODEL_RUNNER=0: vLLM then runs it in its V1 model runner"


def examine() -> tuple[SymbolReport, ...]:
    """Look for every symbol in the source of the installed vLLM; imports nothing of it."""
    return HOST.examine()


def require() -> None:
    """Refuse a vLLM whose V2 runner this adapter cannot work with. Of an untested version the V1 adapter warns.

    Raises:
        HostMismatchError: with the missing symbols and what to do.
    """
    usable, sentence = HOST.verdict(HOST.installed_version(), examine())
    if not usable:
        raise HostMismatchError(f"in the V2 model runner, {sentence}, {_HINT}")


def refuse(engine_args: Any) -> None:
    """Refuse combinations that are not supported in V2.

    Raises:
        SettingsError: more than one rank or replica, see :data:`.choice.PARALLEL`.
    """
    several = ranks(engine_args)
    if several:
        raise SettingsError(
            f"specplug in vLLM's V2 model runner drafts for one GPU so far, got {several}; use 1, {_HINT}"
        )
