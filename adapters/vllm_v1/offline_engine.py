"""The vLLM side of :mod:`specplug.testing.engine_process`: ``python -m specplug.adapters.vllm_v1.offline_engine``.

The options are those of ``vllm.LLM``; :mod:`specplug.adapters.offline_host` says how to talk to it.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

from specplug.adapters.offline_host import serve, token_ids

#: What tests and demos always want; the caller's options win. Eager: the C++ compiler of
#: inductor needs minutes on a CPU, for every new shape.
DEFAULTS = {"enforce_eager": True, "disable_log_stats": False, "seed": 0}

COUNTERS = {
    "drafted_steps": "vllm:spec_decode_num_drafts",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
    "generated_tokens": "vllm:generation_tokens",
    "preemptions": "vllm:num_preemptions",
}
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


class OfflineEngine:
    """One ``vllm.LLM`` and the commands it answers (the public methods)."""

    def __init__(self, options: dict[str, Any]) -> None:
        begin = time.perf_counter()
        from vllm import LLM

        self.llm = LLM(**{**DEFAULTS, **options})
        self.engine = self.llm.llm_engine
        self.tokenizer = self.llm.get_tokenizer()
        self.batches = 0
        self.broken = ""
        self.internal_ids: list[str] = []
        self.steps: dict[str, list[tuple[list[int], list[int]]]] = {}
        self._watch_requests()
        self.scheduler = _local_scheduler(self.engine)
        if self.scheduler is not None:
            self._watch_scheduler()
        self.start_seconds = time.perf_counter() - begin

    def info(self) -> dict[str, Any]:
        """Facts about the engine and its model."""
        import torch
        import vllm

        config = self.engine.vllm_config
        # The model's end tokens: chat models often have more than the tokenizer's one.
        ends = config.model_config.try_get_generation_config().get("eos_token_id")
        speculative = config.speculative_config
        return {
            "start_seconds": round(self.start_seconds, 2),
            "versions": {"vllm": vllm.__version__, "torch": torch.__version__},
            "threads": torch.get_num_threads(),
            "dtype": str(config.model_config.dtype),
            "vocab_size": config.model_config.get_vocab_size(),
            "eos_token_id": self.tokenizer.eos_token_id if ends is None else ends,
            "max_model_len": config.model_config.max_model_len,
            "kv_blocks": config.cache_config.num_gpu_blocks,
            "block_size": config.cache_config.block_size,
            "method": None if speculative is None else speculative.method,
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "pid": os.getpid(),
        }

    def tokenize(self, prompt: Any) -> dict[str, Any]:
        """Token ids of a text, of a chat (with the generation prompt), or of token ids (as they are)."""
        return {"token_ids": token_ids(self.tokenizer, prompt)}

    def metrics(self) -> dict[str, Any]:
        """Totals of the scheduler's counters since the start, summed over engines."""
        found: dict[str, Any] = dict.fromkeys(COUNTERS, 0)
        found["accepted_per_position"] = []
        names = {metric: ours for ours, metric in COUNTERS.items()}
        for metric in self.llm.get_metrics():
            if metric.name in names:
                found[names[metric.name]] += int(metric.value)
            elif metric.name == PER_POSITION:
                found["accepted_per_position"] = [int(v) for v in metric.values]
        found["own"] = own_counters()
        return found

    def run(self, target: str, **arguments: Any) -> dict[str, Any]:
        """Call ``module:function`` with the LLM and the arguments, for tests that must act inside."""
        module, _, name = target.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return {"value": function(self.llm, **arguments)}

    def generate(
        self,
        prompts: list[Any],
        params: list[dict[str, Any]],
        abort_after: dict[str, int],
        raw_seed: int | None,
    ) -> dict[str, Any]:
        """Serve all prompts together; see :class:`specplug.testing.engine_protocol.Driver`."""
        if self.broken:
            raise RuntimeError(f"this engine serves nothing any more: {self.broken}")
        if raw_seed is not None:
            self._reseed(raw_seed)
        self.batches += 1
        names = [f"{self.batches}.{i}" for i in range(len(prompts))]
        tokens = [token_ids(self.tokenizer, prompt) for prompt in prompts]
        sampling = [_sampling_params(p, final_only=not abort_after) for p in params]
        self.steps.clear()
        begin = time.perf_counter()
        internal = self._submit(names, tokens, sampling)
        limits = {names[int(i)]: n for i, n in abort_after.items()}
        try:
            outputs, aborted, count = self._serve(names, limits)
        except BaseException as error:
            # A step that failed leaves the scheduler with requests that can never end.
            self.broken = f"an earlier step failed with {type(error).__name__}: {error}"
            raise
        seconds = time.perf_counter() - begin
        results = [
            self._result(outputs.get(name), ids, internal[name], name in aborted)
            for name, ids in zip(names, tokens, strict=True)
        ]
        return {"results": results, "seconds": seconds, "engine_steps": count}

    def _submit(
        self, names: list[str], tokens: list[list[int]], sampling: list[Any]
    ) -> dict[str, list[str]]:
        """Hand all requests over; the engine's own ids of each, one per completion."""
        internal = {}
        try:
            for name, ids, params in zip(names, tokens, sampling, strict=True):
                self.internal_ids.clear()
                self.engine.add_request(name, {"prompt_token_ids": ids}, params)
                internal[name] = list(self.internal_ids)
        except ValueError:
            # A refused request must not leave its companions behind in the engine.
            self.engine.abort_request(list(internal))
            raise
        return internal

    def _serve(
        self, names: list[str], limits: dict[str, int]
    ) -> tuple[dict[str, Any], set[str], int]:
        outputs: dict[str, Any] = {}
        aborted: set[str] = set()
        count = 0
        while self.engine.has_unfinished_requests():
            count += 1
            for output in self.engine.step():
                name = output.request_id
                if name in aborted:
                    continue
                outputs[name] = output
                longest = max((len(c.token_ids) for c in output.outputs), default=0)
                if not output.finished and name in limits and longest >= limits[name]:
                    aborted.add(name)
                    self.engine.abort_request([name])
        return outputs, aborted, count

    def _result(
        self, output: Any, prompt: list[int], internal: list[str], aborted: bool
    ) -> dict[str, Any]:
        completions = []
        for choice in [] if output is None else sorted(output.outputs, key=lambda c: c.index):
            logprobs = choice.logprobs
            completions.append(
                {
                    "token_ids": [int(t) for t in choice.token_ids],
                    "text": choice.text,
                    "finish_reason": "abort" if aborted else choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                    "logprobs": None
                    if logprobs is None
                    else [{t: v.logprob for t, v in at.items()} for at in logprobs],
                    "steps": self.steps.get(internal[choice.index], []),
                }
            )
        return {
            "prompt_token_ids": prompt,
            "completions": completions,
            "cached_tokens": (output.num_cached_tokens or 0) if output is not None else 0,
        }

    def _reseed(self, seed: int) -> None:
        if self.scheduler is None:
            raise ValueError("raw_seed needs the engine in one process (in_process=True)")
        from vllm.utils.torch_utils import set_random_seed

        set_random_seed(seed)

    def _watch_requests(self) -> None:
        """Note the engine's own id of every submitted sequence: results and steps meet by it."""
        add = self.engine.engine_core.add_request

        def noted(request: Any) -> Any:
            self.internal_ids.append(request.request_id)
            return add(request)

        self.engine.engine_core.add_request = noted

    def _watch_scheduler(self) -> None:
        """Note what each step verified and sampled; works only where the scheduler is in this process."""
        update = self.scheduler.update_from_output

        def noted(scheduled: Any, output: Any) -> Any:
            drafts = scheduled.scheduled_spec_decode_tokens
            for name, row in output.req_id_to_index.items():
                sampled = output.sampled_token_ids[row] if output.sampled_token_ids else []
                if len(sampled):
                    step = ([int(t) for t in drafts.get(name, [])], [int(t) for t in sampled])
                    self.steps.setdefault(name, []).append(step)
            return update(scheduled, output)

        self.scheduler.update_from_output = noted


def own_counters() -> dict[str, Any]:
    """What specplug's proposer in this process counts; empty if there is none."""
    from specplug.adapters.vllm_v1 import active

    proposers = active()
    if not proposers:
        return {}
    newest = proposers[-1]
    session = newest.session
    return {**newest.snapshot(), "live_requests": 0 if session is None else session.live}


def _local_scheduler(engine: Any) -> Any:
    """The scheduler, if the engine core runs in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0)."""
    return getattr(getattr(engine.engine_core, "engine_core", None), "scheduler", None)


def _sampling_params(params: dict[str, Any], final_only: bool) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    params = dict(params)
    schema = params.pop("json_schema", None)
    if schema is not None:
        params["structured_outputs"] = StructuredOutputsParams(json=schema)
    if params.get("logit_bias") is not None:
        # JSON has no integer keys.
        params["logit_bias"] = {int(t): float(v) for t, v in params["logit_bias"].items()}
    kind = RequestOutputKind.FINAL_ONLY if final_only else RequestOutputKind.CUMULATIVE
    return SamplingParams(**params, output_kind=kind)


def main() -> None:
    """Answer commands until the input ends."""
    serve(OfflineEngine)


if __name__ == "__main__":
    main()
