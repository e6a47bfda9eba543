"""The names of SGLang that this adapter relies on, and the versions it was run with.

SGLang renames internals between patch releases, so a release that is not in the list is refused unless the user says
otherwise: what is checked here are names, not meanings.
"""

from __future__ import annotations

from specplug._host import HostSymbol
from specplug.adapters.common.host import HostRequirements

_SPEC = "sglang.srt.speculative"
_BATCH = "sglang.srt.managers.schedule_batch"
_SAMPLING = "sglang.srt.sampling.sampling_batch_info"
_CONTEXT = "sglang.srt.runtime_context"
_RUNNER = "sglang.srt.model_executor.model_runner"
_READ = "read"


def _read(module: str, *names: str, required: bool = True) -> tuple[HostSymbol, ...]:
    return tuple(HostSymbol(module, name, purpose=_READ, required=required) for name in names)


SYMBOLS: tuple[HostSymbol, ...] = (
    HostSymbol(
        f"{_SPEC}.spec_info",
        "SpeculativeAlgorithm.register",
        ("name",),
        "front end",
        "called: the algorithms specplug.*",
    ),
    HostSymbol(
        f"{_SPEC}.spec_info",
        "SpeculativeAlgorithm.from_string",
        ("name",),
        "front end",
        "wrapped: a wrong specplug.* name is explained",
    ),
    HostSymbol(
        f"{_SPEC}.spec_registry", "CustomSpecAlgo", process="front end", purpose="subclassed"
    ),
    HostSymbol(f"{_SPEC}.base_spec_worker", "BaseSpecWorker", purpose="subclassed"),
    HostSymbol(
        f"{_SPEC}.base_spec_worker", "BaseSpecWorker.note_request_finished", purpose="overridden"
    ),
    HostSymbol(
        f"{_SPEC}.base_spec_worker", "BaseSpecWorker.clear_cache_pool", purpose="overridden"
    ),
    HostSymbol(
        f"{_SPEC}.base_spec_worker",
        "BaseSpecWorker.alloc_memory_pool",
        ("memory_pool_config", "req_to_token_pool", "token_to_kv_pool_allocator"),
        purpose="overridden",
    ),
    HostSymbol(
        f"{_SPEC}.ngram_info",
        "NgramVerifyInput.__init__",
        ("draft_token", "custom_mask", "positions", "retrieve_index", "retrieve_next_token"),
        purpose="built: the verify input, and what is relayed to the next step",
    ),
    HostSymbol(
        f"{_SPEC}.spec_utils", "build_grammar_vocab_mask", purpose="called: structured output"
    ),
    HostSymbol(f"{_SPEC}.spec_utils", "GrammarTree.from_host", purpose="called: structured output"),
    HostSymbol(
        f"{_SPEC}.spec_utils",
        "move_accept_tokens_to_target_kvcache",
        ("batch", "accept_index", "num_correct_drafts", "token_to_kv_pool_allocator"),
        purpose="called: the accepted branch of a tree",
    ),
    HostSymbol(f"{_SPEC}.spec_utils", "record_stream_for_v2_verify", purpose="called"),
    HostSymbol(f"{_SPEC}.spec_utils", "prepare_mamba_track_for_verify", purpose="called"),
    HostSymbol(f"{_SPEC}.spec_utils", "commit_mamba_states_after_verify", purpose="called"),
    HostSymbol(
        "sglang.srt.layers.logprob_processor",
        "compute_spec_logprobs",
        ("batch", "logits_output", "predict", "accept_index", "chain_stride"),
        purpose="called: log-probabilities",
    ),
    HostSymbol(
        "sglang.srt.layers.sampler",
        "Sampler.forward",
        ("logits_output", "sampling_info", "return_logprob"),
        purpose="called: samples with seeds, and steps whose verification failed",
    ),
    HostSymbol("sglang.srt.managers.overlap_utils", "FutureMap", purpose="built"),
    HostSymbol("sglang.srt.managers.utils", "GenerationBatchResult", purpose="built"),
    HostSymbol(
        "sglang.srt.managers.scheduler",
        "GenerationBatchResult",
        purpose="built: what a step emits",
        required=False,
    ),
    HostSymbol("sglang.srt.model_executor.forward_batch_info", "ForwardMode", purpose=_READ),
    *_read(_CONTEXT, "get_spec", "get_device", "get_schedule", "get_parallel", "get_exec"),
    *_read(_CONTEXT, "attention_backends"),
    *_read(
        _BATCH,
        *("Req.rid", "Req.origin_input_ids", "Req.output_ids", "Req.sampling_params"),
        *("ScheduleBatch.reqs", "ScheduleBatch.seq_lens", "ScheduleBatch.seq_lens_cpu"),
        *("ScheduleBatch.spec_info", "ScheduleBatch.sampling_info", "ScheduleBatch.has_grammar"),
        *("ScheduleBatch.out_cache_loc", "ScheduleBatch.grammar_needs_sync"),
    ),
    *_read(
        _BATCH,
        *("Req.eos_token_ids", "Req.cache_salt", "Req.lora_id", "Req.extra_key"),
        "Req.is_retracted",
        required=False,
    ),
    *_read(
        _SAMPLING,
        *("SamplingBatchInfo.temperatures", "SamplingBatchInfo.top_ks", "SamplingBatchInfo.top_ps"),
        *("SamplingBatchInfo.min_ps", "SamplingBatchInfo.is_all_greedy"),
        *("SamplingBatchInfo.need_min_p_sampling", "SamplingBatchInfo.logit_bias"),
        *("SamplingBatchInfo.sampling_seed", "SamplingBatchInfo.custom_logit_processor"),
    ),
    HostSymbol(
        "sglang.srt.layers.attention.torch_native_backend",
        "TorchNativeAttnBackend.forward_extend",
        ("q", "k", "v", "layer", "forward_batch"),
        purpose="wrapped if this backend is used: it cannot verify drafts",
        required=False,
    ),
)

REQUIREMENTS = HostRequirements(
    host="SGLang",
    package="sglang",
    distributions=("sglang",),
    tested=("0.5.23",),
    symbols=SYMBOLS,
    variable="SPECPLUG_SGLANG_UNTESTED",
    default_policy="refuse",
)
