"""The V1 adapter's proposer, shown V2's requests and batches in the shapes that it reads."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from specplug.adapters.vllm_v1 import host_faults
from specplug.adapters.vllm_v1.options import Choice
from specplug.adapters.vllm_v1.proposer import VllmProposer
from specplug.adapters.vllm_v2.histories import Histories
from specplug.types import IntArray, TokenArray

#: Requests that vLLM makes up to warm its kernels; their tokens are nobody's text, their times no step's.
WARM_UP = ("_v2_mixed_warmup", "_warmup_", "_sparse_mla_v2_warmup")


class _Rows:
    """Histories of the batch, read as V1's ``token_ids_cpu[row, :length]``."""

    def __init__(self, histories: list[TokenArray]) -> None:
        self._histories = histories

    def __getitem__(self, place: tuple[int, slice]) -> TokenArray:
        row, columns = place
        return self._histories[row][columns]


class V2Proposer(VllmProposer):
    """Requests of the V2 runner, served by what serves those of V1.

    Attributes:
        histories: all tokens of the running requests.
    """

    def __init__(self, vllm_config: Any, choice: Choice) -> None:
        self.histories = Histories()
        self._preempted: set[str] = set()
        super().__init__(vllm_config, choice)
        # What V1's runner holds itself.
        self.runner = SimpleNamespace(input_batch=SimpleNamespace(req_ids=[]), requests={})

    def after_update(self, runner: Any, scheduler_output: Any) -> None:
        """Called by the wrapper around ``update_requests``: requests that arrived, ended or lost their place."""
        try:
            for request_id in scheduler_output.finished_req_ids:
                self.histories.end(request_id)
                self.runner.requests.pop(request_id, None)
                self._preempted.discard(request_id)
            self._preempted.update(scheduler_output.preempted_req_ids or ())
            if self.stopped:
                self.histories.clear()
        except Exception:  # noqa: BLE001  the runner must go on: without this, vLLM would fail every request
            self.failed("after_update", ())
        super().after_update(runner, scheduler_output)

    def drafts(
        self,
        request_ids: Sequence[str],
        lengths: IntArray,
        sampled: IntArray,
        tails: IntArray,
        read: Callable[[int], TokenArray],
        most: int,
    ) -> list[list[int]]:
        """Drafts for every row of the batch; does not raise.

        Args:
            request_ids: the ``B`` requests of the step.
            lengths: int32 ``[B]``, all tokens of each.
            sampled: int32 ``[B]``, how many of them the step made certain; 0 in prefill, where nothing is drafted.
            tails: int32 ``[B, w]``, the last tokens of each.
            read: all tokens of a row, from the device.
            most: tokens per draft at this step, whatever was heard of vLLM's schedule before.
        """
        if self.stopped:
            return [[] for _ in request_ids]
        began = time.perf_counter_ns()
        try:
            counts = sampled.tolist()
            every = zip(request_ids, lengths.tolist(), counts, tails, strict=True)
            histories = [
                self.histories.follow(request_id, length, count, tail, functools.partial(read, row))
                for row, (request_id, length, count, tail) in enumerate(every)
            ]
        except Exception:  # noqa: BLE001  a draft is never worth a request: this step decodes plainly
            self.failed("follow", request_ids)
            return [[] for _ in request_ids]
        self.runner.input_batch.req_ids = list(request_ids)
        # V1 asks of each row only how many tokens there are.
        new = [range(count) for count in counts]
        self._hook_time += time.perf_counter_ns() - began
        return [draft[:most] for draft in self.propose(new, lengths, _Rows(histories))]

    def failed(self, where: str, request_ids: Sequence[str]) -> None:
        """Called while an exception is handled: it is logged once and counted, and the requests begin anew."""
        self._fault(where, request_ids)

    def snapshot(self) -> dict[str, Any]:
        """As in V1, and how often a history had to be read anew."""
        return {**super().snapshot(), "runner": "V2", "histories_reread": self.histories.reread}

    def _arrived(self, new: Any) -> None:
        request_id = new.req_id
        # V2 sends a preempted request as a new one; its drafts and what is known of it stay.
        resumed = request_id in self._preempted and request_id in self.runner.requests
        self._preempted.discard(request_id)
        if not resumed:
            super()._arrived(new)
            self.runner.requests[request_id] = SimpleNamespace(
                num_prompt_tokens=new.prompt_len,
                sampling_params=new.sampling_params,
                mm_features=getattr(new, "mm_features", None),
                lora_request=getattr(new, "lora_request", None),
                prompt_embeds=getattr(new, "prompt_embeds", None),
            )
        if not self.stopped:
            self.histories.begin(request_id, new.prefill_token_ids)
        if request_id.startswith(WARM_UP):
            self._withheld.add(request_id)

    def _time(self, sampled: Any, lengths: Any) -> None:
        # vLLM warms up before it serves: a batch holds only such requests or none. (0.32 fetches no drafts then.)
        if not next(iter(self.runner.input_batch.req_ids), "").startswith(WARM_UP):
            super()._time(sampled, lengths)

    def _attach(self, runner: Any) -> None:
        """V2 asks its speculator at every step; there is nothing to change in the runner."""

    def _bind(self) -> None:
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner

        from specplug.adapters.vllm_v2.door import bind_runner

        bind_runner(GPUModelRunner)

    def _repair_host(self) -> str:
        # V2 has a rejection sampler of its own; the fault that V1 repairs is not in it.
        host_faults.repair_registration(self.log)
        return "not tested"
