"""A one-page stand-in for vLLM's V1 model runner: drives the adapter's proposer without vLLM.

It keeps the same arrays and calls the same methods in the same order as the real runner, its habits included: rows move
when requests leave, a preempted request comes back in another row, finished ids arrive one step late.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from specplug.types import TOKEN_DTYPE, TokenArray

#: The next token after a history, int32 ``[n]``: the greedy target.
Target = Callable[[TokenArray], int]


def periodic_target(history: TokenArray) -> int:
    """A target that is copied easily: period seven, with a mistake at every 23rd position."""
    n = len(history)
    return 900 + n % 5 if n % 23 == 0 else 10 + n % 7


def plain_continuation(target: Target, prompt: Sequence[int], length: int) -> list[int]:
    """``prompt`` continued to ``length`` tokens without any speculation."""
    tokens = list(prompt)
    while len(tokens) < length:
        tokens.append(target(np.array(tokens, TOKEN_DTYPE)))
    return tokens


class GPUModelRunner:
    """What the adapter touches of vLLM's class of this name."""

    def __init__(self, max_requests: int, max_length: int) -> None:
        self.max_model_len = max_length
        self.effective_drafter_max_model_len = max_length
        self.drafter: Any = None
        self.requests: dict[str, Any] = {}
        self.input_batch = SimpleNamespace(
            req_ids=[],
            num_tokens_no_spec=np.zeros(max_requests, np.int32),
            token_ids_cpu=np.zeros((max_requests, max_length), TOKEN_DTYPE),
        )

    def _update_states(self, scheduler_output: Any) -> None:
        for request_id in scheduler_output.finished_req_ids:
            self.requests.pop(request_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            self.requests[new.req_id] = new.state


class DefaultParams(SimpleNamespace):
    """Sampling parameters of a request, as far as the adapter reads them."""

    def __init__(self, **given: Any) -> None:
        base: dict[str, Any] = {
            "stop_token_ids": [],
            "eos_token_id": None,
            "ignore_eos": False,
            "max_tokens": None,
            "temperature": 0.0,
            "extra_args": None,
        }
        super().__init__(**{**base, **given})


@dataclass
class _Running:
    tokens: list[int]
    prompt_length: int
    state: Any
    target: Target
    prefill_left: int = 0
    draft: list[int] = field(default_factory=list)
    attached: dict[str, Any] = field(default_factory=dict)
    new: bool = True


class StubHost:
    """Scheduler and runner in one: requests come and go, and every :meth:`step` verifies drafts greedily.

    Attributes:
        finished: tokens of requests that ended, by id.
        accepted: draft tokens accepted so far.
    """

    def __init__(self, target: Target, max_requests: int = 8, max_length: int = 512) -> None:
        self.target = target
        self.runner = GPUModelRunner(max_requests, max_length)
        self.running: dict[str, _Running] = {}
        self.preempted: dict[str, _Running] = {}
        self.finished: dict[str, list[int]] = {}
        self.accepted = 0
        self._ended: set[str] = set()

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        prefill_steps: int = 0,
        target: Target | None = None,
        attached: dict[str, Any] | None = None,
        **given: Any,
    ) -> None:
        """A request arrives; its prompt takes ``prefill_steps`` steps before the one that samples.

        ``target`` overrides the host's for this request, ``given`` are its sampling parameters.
        ``attached`` is what other parts of a plugin hung on the scheduler's view of the request.
        """
        extra = {
            k: given.pop(k) for k in ("mm_features", "lora_request", "prompt_embeds") if k in given
        }
        state = SimpleNamespace(
            num_prompt_tokens=len(prompt), sampling_params=DefaultParams(**given), **extra
        )
        self.running[request_id] = _Running(
            list(prompt),
            len(prompt),
            state,
            target or self.target,
            prefill_steps,
            attached=attached or {},
        )

    def end(self, request_id: str) -> None:
        """A request ends or is aborted; the runner learns it with the next step."""
        entry = self.running.pop(request_id, None) or self.preempted.pop(request_id)
        self.finished[request_id] = entry.tokens
        if not entry.new:
            self._ended.add(request_id)

    def preempt(self, request_id: str) -> None:
        """A request loses its row; its drafts are void."""
        entry = self.running.pop(request_id)
        entry.draft = []
        self.preempted[request_id] = entry

    def resume(self, request_id: str) -> None:
        """A preempted request comes back, in the last row."""
        self.running[request_id] = self.preempted.pop(request_id)

    def shuffle(self, order: Sequence[str]) -> None:
        """Rows in another order."""
        self.running = {request_id: self.running[request_id] for request_id in order}

    def step(self, propose: bool = True, planned: int | None = None) -> list[list[int]]:
        """One engine step; returns the drafts per row. Without ``propose`` the drafter is not asked."""
        new = [(rid, e) for rid, e in self.running.items() if e.new]
        self.runner._update_states(
            SimpleNamespace(
                finished_req_ids=self._ended,
                scheduled_new_reqs=[
                    SimpleNamespace(req_id=r, state=e.state, **e.attached) for r, e in new
                ],
                num_scheduled_tokens={
                    r: len(e.tokens) if e.new else 1 + len(e.draft) for r, e in self.running.items()
                },
                scheduled_spec_decode_tokens={
                    r: list(e.draft) for r, e in self.running.items() if e.draft and not e.new
                },
                **({} if planned is None else {"num_spec_tokens_to_schedule": planned}),
            )
        )
        self._ended = set()
        for _, entry in new:
            entry.new = False
        sampled = [self._sample(entry) for entry in self.running.values()]
        self._fill_batch()
        if not propose:
            return []
        batch = self.runner.input_batch
        drafts: list[list[int]] = self.runner.drafter.propose(
            sampled, batch.num_tokens_no_spec, batch.token_ids_cpu, slot_mappings=None
        )
        for entry, draft in zip(self.running.values(), drafts, strict=True):
            entry.draft = draft
        return drafts

    def _sample(self, entry: _Running) -> list[int]:
        """Verify the draft: accepted tokens and the target's own, up to the model's length."""
        if entry.prefill_left:
            entry.prefill_left -= 1
            return []
        emitted: list[int] = []
        room = self.runner.max_model_len - len(entry.tokens)
        for position in range(len(entry.draft) + 1):
            if len(emitted) == room:
                break
            token = entry.target(np.array(entry.tokens + emitted, TOKEN_DTYPE))
            emitted.append(token)
            if position == len(entry.draft) or entry.draft[position] != token:
                break
        self.accepted += max(0, len(emitted) - 1)
        entry.draft = []
        entry.tokens += emitted
        return emitted

    def _fill_batch(self) -> None:
        batch = self.runner.input_batch
        batch.req_ids = list(self.running)
        for row, entry in enumerate(self.running.values()):
            batch.token_ids_cpu[row, : len(entry.tokens)] = entry.tokens
            batch.num_tokens_no_spec[row] = len(entry.tokens)


def configuration(
    max_draft: int = 8, max_requests: int = 8, max_length: int = 512, vocab_size: int = 1000
) -> Any:
    """The parts of a ``VllmConfig`` that the adapter reads."""
    return SimpleNamespace(
        model_config=SimpleNamespace(get_vocab_size=lambda: vocab_size, max_model_len=max_length),
        speculative_config=SimpleNamespace(num_speculative_tokens=max_draft),
        scheduler_config=SimpleNamespace(max_num_seqs=max_requests),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1, data_parallel_size_local=1, distributed_executor_backend="uni"
        ),
    )


@contextmanager
def stub_vllm(tensor_parallel_rank: int = 0) -> Iterator[None]:
    """Within it, ``import vllm...`` finds what the adapter's proposer needs, and nothing else."""
    modules: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.platforms": {
            "current_platform": SimpleNamespace(is_cpu=lambda: False, is_cuda_alike=lambda: False)
        },
        "vllm.v1": {},
        "vllm.v1.worker": {},
        "vllm.v1.worker.gpu_model_runner": {"GPUModelRunner": GPUModelRunner},
        "vllm.distributed": {},
        "vllm.distributed.parallel_state": {
            "get_tensor_model_parallel_rank": lambda: tensor_parallel_rank
        },
    }
    with stub_modules(modules):
        yield


@contextmanager
def stub_modules(modules: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Within it, modules of these dotted names are imported with these members; afterwards all is as before."""
    before = {name: sys.modules.get(name) for name in modules}
    for name, members in modules.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module_before in before.items():
            if module_before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module_before
