"""The SGLang side of ``specplug.testing.engine_process``: ``python -m specplug.adapters.sglang_srt.offline_engine``.

The options are those of ``sglang.Engine``; :mod:`specplug.adapters.offline_host` says how to talk to it.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import threading
import time
from multiprocessing.context import ForkContext
from typing import Any

from specplug.adapters.offline_host import serve, token_ids
from specplug.adapters.sglang_srt.offline_probe import KEY, METHOD, scheduler_process

#: What tests and demos on a CPU always want; the caller's options win.
DEFAULTS = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_overlap_schedule": True,
    "disable_cuda_graph": True,
    "skip_server_warmup": True,
    # An idle scheduler otherwise keeps one core busy.
    "sleep_on_idle": True,
    # Other processes take memory between SGLang's two measurements, so the cache is capped by tokens instead.
    "mem_fraction_static": 0.85,
    "max_total_tokens": 16384,
    "log_level": "info",
    "random_seed": 0,
}
#: What SGLang calls the options that both engines have.
OPTIONS = {
    "model": "model_path",
    "max_model_len": "context_length",
    "max_num_seqs": "max_running_requests",
}
#: And the sampling parameters.
PARAMETERS = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "include_stop_str_in_output": "no_stop_trim",
    "extra_args": "custom_params",
    "seed": "sampling_seed",
}
#: What a caller may ask of the other engine, and why it cannot be had here.
LACKS = {
    "bad_words": "SGLang has no list of forbidden words; logit_bias forbids single tokens",
    "seed": "SGLang draws with seeds in its deterministic mode only, which needs a GPU",
}


class _Forking(ForkContext):
    """SGLang's processes as copies of this one: they need not import everything again, most of the time to start.

    SGLang itself spawns them, as an initialised GPU demands.
    """

    def set_start_method(self, method: str | None, force: bool = False) -> None:
        """SGLang asks for ``spawn``."""


class OfflineEngine:
    """One ``sglang.Engine`` and the commands it answers (the public methods)."""

    def __init__(self, options: dict[str, Any]) -> None:
        begin = time.perf_counter()
        # A crashed scheduler takes the whole group along; SGLang's default is minutes of py-spy.
        os.environ.setdefault("SGLANG_KILLPG_ON_SCHEDULER_EXCEPTION", "1")
        named = {OPTIONS.get(name, name): value for name, value in options.items()}
        from sglang.srt.entrypoints import engine

        class Probed(engine.Engine):  # type: ignore[misc]
            run_scheduler_process_func = staticmethod(scheduler_process)

        settings = {**DEFAULTS, **named}
        if settings["device"] == "cpu":
            engine.mp = _Forking()
        self.engine = Probed(**settings)
        self.manager = self.engine.tokenizer_manager
        self.tokenizer = self.manager.tokenizer
        self.ends = self.manager.model_config.hf_eos_token_id or {self.tokenizer.eos_token_id}
        self.batches = 0
        self.generated = 0
        self.totals: dict[str, Any] = {
            "drafted_steps": 0,
            "draft_tokens": 0,
            "accepted_tokens": 0,
            "accepted_per_position": [],
        }
        self.start_seconds = time.perf_counter() - begin
        self.state: dict[str, Any] = {}
        _end_with(self.engine.get_all_child_pids())
        self._look()

    def info(self) -> dict[str, Any]:
        """Facts about the engine and its model."""
        import sglang
        import torch

        config = self.manager.model_config
        return {
            "start_seconds": round(self.start_seconds, 2),
            "versions": {"sglang": sglang.__version__, "torch": torch.__version__},
            "threads": torch.get_num_threads(),
            "dtype": str(config.dtype),
            "vocab_size": config.vocab_size,
            "eos_token_id": min(self.ends),
            "max_model_len": config.context_len,
            "block_size": self.state["page_size"],
            "method": self.state["speculative_algorithm"],
            "pid": os.getpid(),
            "lacks": LACKS,
        }

    def tokenize(self, prompt: Any) -> dict[str, Any]:
        """Token ids of a text, of a chat (with the generation prompt), or of token ids (as they are)."""
        return {"token_ids": token_ids(self.tokenizer, prompt)}

    def metrics(self) -> dict[str, Any]:
        """Totals since the start: what the probe in the scheduler saw, and the worker's own counters."""
        probe = self._look()
        return {
            **self.totals,
            "generated_tokens": self.generated,
            "preemptions": probe["preemptions"],
            "own": probe["own"],
        }

    def run(self, target: str, **arguments: Any) -> dict[str, Any]:
        """Call ``module:function`` in the scheduler's process, with the scheduler and the arguments."""
        self._call(target, arguments)
        return {"value": self._look()["value"]}

    def generate(
        self,
        prompts: list[Any],
        params: list[dict[str, Any]],
        abort_after: dict[str, int],
        raw_seed: int | None,
    ) -> dict[str, Any]:
        """Serve all prompts together; see :class:`specplug.testing.engine_protocol.Driver`."""
        tokens = [token_ids(self.tokenizer, prompt) for prompt in prompts]
        requests = [_request(ids, p) for ids, p in zip(tokens, params, strict=True)]
        if raw_seed is not None:
            self._call(f"{scheduler_process.__module__}:seed", {"value": raw_seed})
        self.batches += 1
        before = self._look()["engine_steps"]
        begin = time.perf_counter()
        limits = {int(i): n for i, n in abort_after.items()}
        answers = self.engine.loop.run_until_complete(self._serve(requests, limits))
        seconds = time.perf_counter() - begin
        probe = self._look()
        self._count(probe["steps"])
        results = [
            self._result(answer, ids, probe["steps"])
            for answer, ids in zip(answers, tokens, strict=True)
        ]
        count = probe["engine_steps"] - before
        return {"results": results, "seconds": seconds, "engine_steps": count}

    async def _serve(self, requests: list[dict[str, Any]], limits: dict[int, int]) -> list[Any]:
        """All answers, in order; a refused request takes its companions with it."""
        names = [f"{self.batches}.{i}" for i in range(len(requests))]
        tasks = [
            asyncio.ensure_future(self._one(name, request, limits.get(i)))
            for i, (name, request) in enumerate(zip(names, requests, strict=True))
        ]
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [task for task in done if task.exception() is not None]
        if failed:
            self.manager.abort_request(abort_all=True)
            await asyncio.wait(waiting, timeout=30) if waiting else None
            raise failed[0].exception()  # type: ignore[misc]
        return [task.result() for task in tasks]

    async def _one(self, name: str, request: dict[str, Any], limit: int | None) -> Any:
        # A name is one request's; SGLang names several completions of one itself.
        several = request["sampling_params"].get("n", 1) > 1
        given = {} if several else {"rid": name}
        if limit is None:
            return await self.engine.async_generate(**request, **given)
        latest = None
        stream = await self.engine.async_generate(**request, **given, stream=True)
        async for latest in stream:
            if len(latest["output_ids"]) >= limit and not latest["meta_info"]["finish_reason"]:
                self.manager.abort_request(name)
        return latest

    def _result(self, answer: Any, prompt: list[int], steps: dict[str, Any]) -> dict[str, Any]:
        choices = answer if isinstance(answer, list) else [answer]
        self.generated += sum(len(choice["output_ids"]) for choice in choices)
        return {
            "prompt_token_ids": prompt,
            "completions": [_completion(c, steps, self.ends) for c in choices],
            "cached_tokens": choices[0]["meta_info"].get("cached_tokens") or 0,
        }

    def _count(self, steps: dict[str, list[tuple[list[int], list[int]]]]) -> None:
        """Add the steps of a batch to the totals."""
        for draft, sampled in (step for request in steps.values() for step in request):
            if not draft:
                continue
            accepted = len(sampled) - 1
            self.totals["drafted_steps"] += 1
            self.totals["draft_tokens"] += len(draft)
            self.totals["accepted_tokens"] += accepted
            per_position = self.totals["accepted_per_position"]
            per_position += [0] * (len(draft) - len(per_position))
            for position in range(accepted):
                per_position[position] += 1

    def _call(self, target: str, arguments: dict[str, Any]) -> None:
        self.engine.collective_rpc(METHOD, target=target, arguments=arguments)

    def _look(self) -> dict[str, Any]:
        """Fetch the scheduler's state; returns the probe's part."""
        states = self.engine.loop.run_until_complete(self.manager.get_internal_state())
        self.state = states[0]
        probe: dict[str, Any] = self.state[KEY]
        return probe


def _end_with(children: list[int]) -> None:
    """End this process and its group as soon as one of its children ends: the others would wait for it forever."""
    ends = select.poll()
    for child in children:
        ends.register(os.pidfd_open(child), select.POLLIN)

    def watch() -> None:
        ends.poll()
        sys.stderr.write("a process of the engine ended, so all of them end\n")
        sys.stderr.flush()
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _request(prompt: list[int], params: dict[str, Any]) -> dict[str, Any]:
    """One request in SGLang's words."""
    params = dict(params)
    for name, reason in LACKS.items():
        if name in params:
            raise ValueError(f"{name} cannot be had: {reason}")
    logprobs = params.pop("logprobs", None)
    schema = params.pop("json_schema", None)
    if schema is not None:
        params["json_schema"] = json.dumps(schema)
    if params.get("logit_bias") is not None:
        params["logit_bias"] = {str(t): float(v) for t, v in params["logit_bias"].items()}
    request: dict[str, Any] = {
        "input_ids": prompt,
        "sampling_params": {PARAMETERS.get(name, name): v for name, v in params.items()},
    }
    if logprobs is not None:
        request.update(return_logprob=True, top_logprobs_num=logprobs)
    return request


def _completion(choice: dict[str, Any], steps: dict[str, Any], ends: set[int]) -> dict[str, Any]:
    facts = choice["meta_info"]
    reason = facts["finish_reason"] or {"type": None}
    # The model's own end is no stop that the caller asked for.
    matched = None if reason.get("matched") in ends else reason.get("matched")
    logprobs = None
    if "output_token_logprobs" in facts:
        best = facts.get("output_top_logprobs") or [[]] * len(facts["output_token_logprobs"])
        logprobs = [
            {**{int(t): lp for lp, t, _ in top or []}, int(token): lp}
            for (lp, token, _), top in zip(facts["output_token_logprobs"], best, strict=True)
        ]
    return {
        "token_ids": [int(t) for t in choice["output_ids"]],
        "text": choice["text"],
        "finish_reason": reason["type"],
        "stop_reason": matched if reason["type"] == "stop" else None,
        "logprobs": logprobs,
        "steps": steps.get(facts["id"], []),
    }


def main() -> None:
    """Answer commands until the input ends."""
    serve(OfflineEngine)


if __name__ == "__main__":
    main()
