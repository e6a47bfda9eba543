"""The speculative worker that SGLang's scheduler drives."""

from __future__ import annotations

import time
import weakref
from typing import Any

import numpy as np

from specplug.adapters.common import host_logger
from specplug.adapters.common.timing import StepTimes
from specplug.adapters.sglang_srt import setup
from specplug.adapters.sglang_srt.accept import Kept, root_path
from specplug.adapters.sglang_srt.drafting import MAX_FAULTS, Drafter, Drafts, no_drafts
from specplug.adapters.sglang_srt.layout import Layout, chain_mask, full_mask, lay_out
from specplug.adapters.sglang_srt.metrics import Metrics
from specplug.adapters.sglang_srt.relay import late_tokens
from specplug.adapters.sglang_srt.steps import StepClock, controller_facts
from specplug.adapters.sglang_srt.verify import Step, draw_by_host, transform, verify
from specplug.registry import PREFIX
from specplug.session import Session
from specplug.types import TokenArray

_running: weakref.WeakSet[Any] = weakref.WeakSet()


def running() -> list[Any]:
    """The workers alive in this process."""
    return list(_running)


def worker_class(name: str) -> type:
    """The class for the proposer ``name``, as SGLang's scheduler wants it. Imports SGLang and torch."""
    from sglang.srt.speculative.base_spec_worker import BaseSpecWorker

    return type("SpecplugWorker", (WorkerParts, BaseSpecWorker), {"proposer": name})


class WorkerParts:
    """Everything of the worker that is ours; :func:`worker_class` puts SGLang's base class behind it.

    Contract with the scheduler: it restores the batch after each call, so the batch may be changed freely, and only
    what is returned survives. ``seq_lens`` counts tokens whose keys and values are in the cache; the newest token of
    each row, its root, is not among them yet.
    """

    proposer: str

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        super().__init__()
        started = time.perf_counter()
        self.log = host_logger("sglang")
        self.name = PREFIX + self.proposer
        self._target_worker = target_worker
        self.model_runner = target_worker.model_runner
        self.facts = setup.facts(self.proposer, self.model_runner)
        self.device = self.facts.device
        self.ranks = self.facts.ranks
        self.metrics = Metrics()
        self.verify_times = StepTimes()
        self.verify_faults = 0
        self._silent = False
        build = self._session if self.ranks.drafts_here else None
        self.drafter = Drafter(
            build,
            self.facts.context.vocab_size,
            self.facts.context.max_draft,
            self.facts.trees,
            self.log,
        )
        self.clock = StepClock()
        if self.ranks.drafts_here:  # every rank counts the same steps
            setup.start_metrics(self.metrics, self.proposer, self.log)
        controller = type(self.session.controller).__name__ if self.session else "elsewhere"
        _running.add(self)
        self.log.info(
            "%s ready in %.2f s: options %s, controller %s, at most %d draft tokens, vocabulary %d, %s, overlap %s",
            *(self.name, time.perf_counter() - started, dict(self.facts.choice.options)),
            *(controller, self.facts.context.max_draft, self.facts.context.vocab_size),
            "width fixed" if self.facts.fixed_width else "width of the longest draft",
            "on" if self.facts.overlap else "off",
        )

    # What SGLang asks of a worker.

    @property
    def draft_worker(self) -> None:
        """There is no draft model."""
        return None

    def alloc_memory_pool(self, **pools: Any) -> None:
        """The target's pools exist now."""
        self.req_to_token_pool, self.token_to_kv_pool_allocator = (
            self._target_worker.get_memory_pool()
        )

    def clear_cache_pool(self) -> None:
        """The prefix cache was flushed."""
        self.drafter.flush()

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        """A request that was decoding has ended."""
        self.drafter.finished(rid)
        self._publish(ended=True)

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, pp_proxy_tensors: Any = None
    ) -> Any:
        """One step of SGLang: a prefill passes through, decoding verifies drafts."""
        if not batch.forward_mode.is_decode():
            return self._prefill(batch, on_publish, pp_proxy_tensors)
        return self._decode(batch, on_publish, pp_proxy_tensors)

    # For tests, benchmarks and the curious.

    @property
    def session(self) -> Session | None:
        """The session; None on a rank that takes its drafts from another."""
        return self.drafter.session

    def snapshot(self) -> dict[str, Any]:
        """Everything worth reporting, as plain values."""
        session = self.session
        return {
            "method": self.name,
            "options": dict(self.facts.choice.options),
            "num_speculative_tokens": self.facts.context.max_draft,
            "adapter_faults": self.drafter.faults,
            "verify_faults": self.verify_faults,
            "host_time": self.drafter.times.as_dict(),
            "verify_time": self.verify_times.as_dict(),
            "counters": self.metrics.as_dict(),
            "session": None if session is None else session.stats.as_dict(),
            "controller": controller_facts(session),
        }

    # The steps of a step.

    def _session(self) -> Session:
        return setup.session(self.proposer, self.facts)

    def _prefill(self, batch: Any, on_publish: Any, pp_proxy_tensors: Any) -> Any:
        import torch

        self.clock.interrupt()
        result = self._target_worker.forward_batch_generation(
            batch, pp_proxy_tensors=pp_proxy_tensors
        )
        rows = len(batch.reqs)
        seq_lens = batch.seq_lens.clone()
        relay = torch.zeros(rows, self.facts.width, dtype=torch.int32, device=self.device)
        if result.next_token_ids is not None:
            relay[:, 0] = result.next_token_ids
        if on_publish is not None:
            on_publish(seq_lens)
        ones = torch.ones(rows, dtype=torch.int32, device=self.device)
        return self._result(result, result.next_token_ids, ones, seq_lens, relay, self.facts.width)

    def _decode(self, batch: Any, on_publish: Any, pp_proxy_tensors: Any) -> Any:
        started = time.perf_counter_ns()
        self.clock.begin(started, self.session)
        drafts, histories, roots = self._draft(batch)
        spent = time.perf_counter_ns() - started
        self.drafter.times.add(spent)
        self.metrics.step(spent)
        width = self._width(drafts)
        self.clock.shape(len(histories), width, sum(map(len, histories)), spent)
        drafts = Drafts(
            drafts.tokens[:, : width - 1],
            drafts.lengths,
            None if drafts.parents is None else drafts.parents[:, : width - 1],
        )
        layout = lay_out(roots, drafts)
        self._set_up(batch, layout)
        result = self._target_worker.forward_batch_generation(
            batch, pp_proxy_tensors=pp_proxy_tensors, is_verify=True
        )
        started = time.perf_counter_ns()
        kept = self._verify(batch, result.logits_output, drafts, layout, histories)
        made = self._emit(batch, result, kept, width, on_publish)
        # Read by tests: a result says how many drafts were accepted, not how many there were.
        made.specplug_drafts = [
            t[:n] for t, n in zip(drafts.tokens, drafts.lengths.tolist(), strict=True)
        ]
        self.verify_times.add(time.perf_counter_ns() - started)
        self._count(drafts)
        return made

    def _draft(self, batch: Any) -> tuple[Drafts, list[TokenArray], Any]:
        """Drafts, all tokens of each row, and the newest token of each row (int64 ``[B]``)."""
        extras, sound = late_tokens(batch, self.facts.overlap)
        histories = self.drafter.histories(batch.reqs, extras)
        roots = np.fromiter(
            (
                extra[-1] if extra else (req.output_ids or req.origin_input_ids)[-1]
                for req, extra in zip(batch.reqs, extras, strict=True)
            ),
            np.int64,
            len(batch.reqs),
        )
        if self.verify_faults >= MAX_FAULTS:
            sound = [False] * len(sound)
        drafts = self.drafter.draft(batch.reqs, histories, sound)
        return self.ranks.share(drafts, self.facts.trees), histories, roots

    def _width(self, drafts: Drafts) -> int:
        if self.facts.fixed_width:
            return self.facts.width
        return 1 + int(drafts.lengths.max(initial=0))

    def _set_up(self, batch: Any, layout: Layout) -> None:
        """Turn the batch into a verification."""
        import torch
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.speculative.ngram_info import NgramVerifyInput
        from sglang.srt.speculative.spec_utils import (
            prepare_mamba_track_for_verify,
            record_stream_for_v2_verify,
        )

        device = self.device
        if str(device) != "cpu":
            stream = torch.get_device_module(device).current_stream()
            record_stream_for_v2_verify(batch, None, stream)
        rows, width = layout.tokens.shape
        lengths = batch.seq_lens.to(torch.int64)
        places = torch.arange(width, device=device)
        slots = lengths[:, None] + places
        table = self.req_to_token_pool.req_to_token
        tokens = torch.from_numpy(layout.tokens).to(device, non_blocking=True).flatten()
        depths = torch.from_numpy(layout.depths).to(device, non_blocking=True)
        sees = torch.from_numpy(chain_mask(rows, width) if layout.sees is None else layout.sees).to(
            device, non_blocking=True
        )
        if str(device) == "cpu":
            mask = sees.flatten()
        else:
            cached = int(batch.seq_lens_cpu.sum())
            mask = full_mask(sees, lengths, (cached + rows * width) * width)
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.input_ids = tokens
        batch.out_cache_loc = (
            table[batch.req_pool_indices[:, None], slots].flatten().to(torch.int64)
        )
        prepare_mamba_track_for_verify(batch)
        batch.spec_info = NgramVerifyInput(
            draft_token=tokens,
            custom_mask=mask,
            positions=(lengths[:, None] + depths).flatten(),
            retrieve_index=torch.arange(rows * width, device=device).view(rows, width),
            retrieve_next_token=torch.from_numpy(layout.next_token).to(device, non_blocking=True),
            retrieve_next_sibling=torch.from_numpy(layout.next_sibling).to(
                device, non_blocking=True
            ),
            draft_token_num=width,
        )

    def _verify(
        self, batch: Any, output: Any, drafts: Drafts, layout: Layout, histories: list[TokenArray]
    ) -> Kept:
        from sglang.srt.utils.async_probe import sanitize_nan_logits

        rows, width = layout.tokens.shape
        sanitize_nan_logits(output.next_token_logits, "verify: target model logits")
        logits = output.next_token_logits.view(rows, width, -1)
        # For the fallback: the first position is what plain decoding would have seen.
        plain = logits[:, 0].clone()
        try:
            step = self._step(batch, logits, drafts, layout, histories)
            kept = verify(step, self.model_runner.sampler, self.facts.sampling_backend)
        except Exception:  # noqa: BLE001  a fault of ours must cost this step its drafts, not the server its life
            self._fault()
            logits[:, 0] = plain
            kept = self._plain(batch, logits, layout, histories)
            if drafts.parents is not None:  # ranks without the fault send the path of a tree
                kept = kept._replace(path=root_path(kept.tokens))
        self.ranks.agree(*(part for part in kept if part is not None))
        return kept

    def _step(
        self,
        batch: Any,
        logits: Any,
        drafts: Drafts,
        layout: Layout,
        histories: list[TokenArray],
    ) -> Step:
        import torch

        device = logits.device
        return Step(
            batch,
            logits,
            drafts,
            torch.from_numpy(layout.tokens[:, 1:].copy()).to(device, non_blocking=True),
            torch.from_numpy(drafts.lengths.astype(np.int64)).to(device, non_blocking=True),
            histories,
            setup.grammar_mask(batch, layout) if batch.has_grammar else None,
        )

    def _plain(self, batch: Any, logits: Any, layout: Layout, histories: list[TokenArray]) -> Kept:
        """The first position of each row only, drawn by SGLang's own sampler, as without drafts."""
        import torch

        rows, width, _ = logits.shape
        nothing = no_drafts(rows, 0)
        first = lay_out(layout.tokens[:, 0], nothing)
        step = self._step(batch, logits[:, :1], nothing, first, histories)
        transform(step)
        tokens = torch.zeros(rows, width, dtype=torch.int64, device=logits.device)
        tokens[:, :1] = draw_by_host(step, self.model_runner.sampler)
        return Kept(tokens, torch.zeros(rows, dtype=torch.int64, device=logits.device))

    def _fault(self) -> None:
        self.verify_faults += 1
        self.metrics.counts["fallbacks"] += 1
        if self.verify_faults == 1:
            self.log.exception(
                "specplug: verification failed; the step was decoded plainly, answers are not affected (later "
                "failures are only counted)"
            )
        if self.verify_faults == MAX_FAULTS:
            self.log.error(
                "specplug: %d failures, nothing is drafted any more in this process", MAX_FAULTS
            )

    def _emit(self, batch: Any, result: Any, kept: Kept, width: int, on_publish: Any) -> Any:
        """Commit what was kept, and hand it to the scheduler."""
        import torch
        from sglang.srt.layers.logprob_processor import compute_spec_logprobs
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        rows = len(batch.reqs)
        accept_lens = (kept.accepted + 1).to(torch.int32)
        seq_lens = batch.seq_lens + accept_lens
        tokens = kept.tokens.to(torch.int32)
        setup.commit_states(self._target_worker, batch, kept, accept_lens, width)
        if kept.path is not None:
            setup.move_branch(batch, kept, self.token_to_kv_pool_allocator)
        if batch.return_logprob and kept.path is None:
            compute_spec_logprobs(batch, result.logits_output, tokens.flatten(), chain_stride=width)
        elif batch.return_logprob:
            setup.tree_logprobs(batch, result.logits_output, kept)
        if on_publish is not None:
            on_publish(seq_lens)
        relay = torch.zeros(rows, self.facts.width, dtype=torch.int32, device=self.device)
        relay[:, :width] = tokens
        batch.forward_mode = ForwardMode.DECODE
        return self._result(result, tokens.flatten(), accept_lens, seq_lens, relay, width)

    def _result(
        self, result: Any, tokens: Any, accept_lens: Any, seq_lens: Any, relay: Any, stride: int
    ) -> Any:
        from sglang.srt.managers.utils import GenerationBatchResult
        from sglang.srt.speculative.ngram_info import NgramVerifyInput

        following = NgramVerifyInput(
            draft_token_num=self.facts.width,
            new_seq_lens=seq_lens,
            accept_tokens=relay.flatten(),
            accept_lens=accept_lens,
        )
        return GenerationBatchResult(
            logits_output=result.logits_output,
            next_token_ids=tokens,
            can_run_cuda_graph=result.can_run_cuda_graph,
            accept_lens=accept_lens,
            new_seq_lens=seq_lens,
            next_draft_input=following,
            speculative_num_draft_tokens=stride,
        )

    def on_verify_complete_cpu(
        self, num_correct_drafts_per_req: list[int], batch_size: int = 0
    ) -> None:
        """The scheduler has the counts of a step on the host (a step late with overlap)."""
        self.metrics.counts["accepted_tokens"] += sum(num_correct_drafts_per_req)
        self._publish()

    def _publish(self, ended: bool = False) -> None:
        try:
            try:
                self.metrics.look(self.session, self.drafter.faults, ended)
            finally:
                self.metrics.publish()
        except Exception as error:  # noqa: BLE001  memory() of a foreign proposer may raise anything
            if not self._silent:
                self.log.warning("specplug: not all numbers reach /metrics: %r", error)
            self._silent = True

    def _count(self, drafts: Drafts) -> None:
        counts = self.metrics.counts
        counts["steps"] += 1
        counts["rows"] += len(drafts.lengths)
        counts["drafted_rows"] += int((drafts.lengths > 0).sum())
        counts["drafted_tokens"] += int(drafts.lengths.sum())
        counts["unserved_rows"] = self.drafter.withheld
