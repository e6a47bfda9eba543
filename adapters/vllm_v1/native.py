"""The controller over vLLM's methods that draft with a model: it tells them the length before they draft.

vLLM's own dynamic schedule has a table from batch size to draft length, which its scheduler reads at the end of every
``schedule()``; what stands there reaches the drafter of ``draft_model``, ``eagle``, ``eagle3`` and ``mtp``. With a
schedule of one entry the table exists, and the governor writes the length of this step into it, for all requests.
With a length of 0 the drafter still sees the new tokens (one pass), so that it can go on later.

What drafting costs is part of a step's time like what verifying costs, so that the cost model learns both together. A
step that verifies one length and drafts another tells neither, and is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from specplug.adapters.vllm_v1.governing import (
    Account,
    Guard,
    Slots,
    attach,
    context_of,
    controller,
    request_of,
)
from specplug.control.cost import StepFacts
from specplug.types import LENGTH_DTYPE, Context


class LengthGovernor:
    """Decides the draft length of every step; requests by vLLM's internal id.

    Attributes:
        controller: the controller, which plans without looking at drafts.
    """

    def __init__(
        self, control: Mapping[str, Any], width: int, requests: int, scheduler: Any = None
    ) -> None:
        self._scheduler = scheduler
        context = Context(1 << 30, 1 << 30, width, max_requests=requests)
        self.controller = controller(control, context, scheduler, tuple(range(width + 1)))
        self.account = Account(self.controller, context)
        self._width = width
        self._slots = Slots(requests)
        # Steps that were put together and not yet done; with async scheduling there may be two.
        self._begun: deque[tuple[int, int]] = deque()
        self._length = width
        self._done = 0
        attach(self)

    def length(self, request_ids: Sequence[str]) -> int:
        """The draft length for a step of these requests."""
        began = perf_counter_ns()
        known = [self._slots.meet(request_id, self._begin) for request_id in request_ids]
        rows = [slot for slot in known if slot is not None]
        slots = np.array(rows, LENGTH_DTYPE)
        limits = np.full(len(rows), self._width, LENGTH_DTYPE)
        ceilings = np.zeros(len(rows), LENGTH_DTYPE)
        self.controller.plan(slots, limits, ceilings)
        self._length = int(ceilings.max(initial=0))
        self.account.publish(perf_counter_ns() - began)
        return self._length

    def scheduled(self, output: Any) -> None:
        """A step was put together."""
        self._slots.release(output.finished_req_ids)
        if output.num_scheduled_tokens:
            self._begun.append((perf_counter_ns(), self._length))

    def sampled(self, scheduled: Any, output: Any) -> None:
        """A step is done: how long it took, and what became of the drafts."""
        sampled = output.sampled_token_ids or []
        drafts = scheduled.scheduled_spec_decode_tokens
        if scheduled.num_scheduled_tokens:
            self._time(scheduled, drafts, sum(1 for tokens in sampled if not len(tokens)))
        rows = []
        for request_id, row in output.req_id_to_index.items():
            slot, drafted = self._slots.of(request_id), len(drafts.get(request_id, ()))
            if slot is not None and drafted and row < len(sampled) and len(sampled[row]):
                rows.append((slot, drafted, min(len(sampled[row]) - 1, drafted)))
        if rows:
            slots, lengths, accepted = map(list, zip(*rows, strict=True))
            self.controller.observe(*np.array((slots, lengths, accepted), LENGTH_DTYPE))
            self.account.drafted(lengths, lengths)
            self.account.sources.count_drafted(slots, lengths)
            self.account.stats.accepted += sum(accepted)
            self.account.sources.count_accepted(slots, accepted)

    def _time(self, scheduled: Any, drafts: Mapping[str, Any], waiting: int) -> None:
        # From the later of two: when it was put together (the engine may have idled before that), and when the step
        # before it was done (with async scheduling it was put together earlier).
        now = perf_counter_ns()
        started, length = self._begun.popleft() if self._begun else (now, 0)
        begun, self._done = max(started, self._done), now
        counts = scheduled.num_scheduled_tokens
        tokens = sum(counts.values())
        verified = sum(len(d) for d in drafts.values())
        prefill = max(0, tokens - len(counts) - verified)
        if not prefill and verified != length * len(counts):
            return
        context = context_of(self._scheduler, counts)
        ahead = prefill if waiting else 0
        self.controller.timed(
            StepFacts((now - begun) / 1e9, tokens, len(counts), context, prefill, 0.0, ahead)
        )

    def _begin(self, slot: int, request_id: str) -> None:
        self.account.stats.started += 1
        self.controller.begin(slot, request_of(self._scheduler, request_id))


def length_scheduler(base: type, control: Mapping[str, Any]) -> type:
    """A subclass of vLLM's scheduler that writes the draft length of every step into vLLM's own table."""

    class LengthScheduler(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            governor = LengthGovernor(
                control,
                max(1, int(self.num_spec_tokens)),
                int(self.scheduler_config.max_num_seqs),
                self,
            )
            self.governor = Guard(governor, "draft lengths stay at the configured one")

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            running = [request.request_id for request in self.running]
            length = self.governor("length", running) if running else None
            if self.dynamic_sd_lookup is not None:
                whole = self.num_spec_tokens if length is None else length
                self.dynamic_sd_lookup[:] = [whole] * len(self.dynamic_sd_lookup)
            output = super().schedule(*args, **kwargs)
            self.governor("scheduled", output)
            return output

        def update_from_output(self, scheduled: Any, output: Any, *args: Any) -> Any:
            self.governor("sampled", scheduled, output)
            return super().update_from_output(scheduled, output, *args)

    return LengthScheduler
