"""Inside SGLang's scheduler process: what happened in each step, and a way for tests to act there.

:mod:`specplug.adapters.sglang_srt.offline_engine` starts its schedulers through :func:`scheduler_process`; a
server that SGLang starts itself never loads this. The answers travel with SGLang's own ``get_internal_state``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

#: The key of our part of the internal state, and the name of the method that tests call.
KEY = "specplug_probe"
METHOD = "specplug_probe_call"


class Probe:
    """What one scheduler did since the last :meth:`take`."""

    def __init__(self) -> None:
        #: Per request its steps: the draft and what was sampled.
        self.steps: dict[str, list[tuple[list[int], list[int]]]] = {}
        self.engine_steps = 0
        self.preemptions = 0
        #: What the last call of a test returned.
        self.value: Any = None

    def add(self, name: str, draft: list[int], sampled: list[int]) -> None:
        """One step of one request that sampled something."""
        self.steps.setdefault(name, []).append((draft, sampled))

    def take(self) -> dict[str, Any]:
        """Everything as plain data; the steps are forgotten, the totals stay."""
        steps, self.steps = self.steps, {}
        return {
            "steps": steps,
            "engine_steps": self.engine_steps,
            "preemptions": self.preemptions,
            "value": self.value,
            "own": own_counters(),
        }


PROBE = Probe()


def own_counters() -> dict[str, Any]:
    """What specplug's worker in this process counts; empty if there is none."""
    from specplug.adapters import sglang_srt

    workers = sglang_srt.active()
    if not workers:
        return {}
    newest = workers[-1]
    session = newest.session
    return {**newest.snapshot(), "live_requests": 0 if session is None else session.live}


def call(scheduler: Any, target: str, arguments: dict[str, Any]) -> None:
    """Call ``module:function`` with the scheduler first; the value is fetched with the internal state."""
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    PROBE.value = None
    PROBE.value = function(scheduler, **arguments)


def seed(scheduler: Any, value: int) -> None:
    """Reseed the global generator, from which requests without a seed draw."""
    import torch

    torch.manual_seed(value)


def _watch_results(processor: Any) -> None:
    """Note what each step verified and sampled, before ends of answers are cut off."""
    resolve = processor._resolve_spec_v2_tokens
    decode = processor.process_batch_result_decode
    prefill = processor.process_batch_result_prefill

    def verified(self: Any, result: Any, batch: Any) -> Any:
        open_before = [not (r.finished() or r.is_retracted) for r in batch.reqs]
        found = resolve(self, result, batch)
        # Our workers say what was drafted. Of others only the accepted part is known.
        drafts = getattr(result, "specplug_drafts", None)
        for i, (request, sampled) in enumerate(zip(batch.reqs, found, strict=True)):
            if open_before[i]:
                draft = sampled[:-1] if drafts is None else drafts[i]
                PROBE.add(request.rid, [int(t) for t in draft], [int(t) for t in sampled])
        return found

    def one_step(original: Callable[..., Any], drafted: bool) -> Callable[..., Any]:
        def noted(self: Any, batch: Any, result: Any) -> Any:
            PROBE.engine_steps += 1
            before = [len(r.output_ids) for r in batch.reqs]
            answer = original(self, batch, result)
            if drafted and not batch.spec_algorithm.is_none():
                return answer  # seen above
            for request, count in zip(batch.reqs, before, strict=True):
                new = request.output_ids[count:]
                if len(new):
                    PROBE.add(request.rid, [], [int(t) for t in new])
            return answer

        return noted

    processor._resolve_spec_v2_tokens = verified
    processor.process_batch_result_decode = one_step(decode, drafted=True)
    processor.process_batch_result_prefill = one_step(prefill, drafted=False)


def _watch_retraction(batch_class: Any) -> None:
    retract = batch_class.retract_decode

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        answer = retract(self, *arguments, **named)
        PROBE.preemptions += len(answer[0])
        return answer

    batch_class.retract_decode = counted


def _answer_with_state(controller: Any, scheduler: Any) -> None:
    state = controller.get_internal_state

    def with_probe(self: Any, request: Any) -> Any:
        answer = state(self, request)
        answer.internal_state[KEY] = PROBE.take()
        return answer

    controller.get_internal_state = with_probe
    setattr(scheduler, METHOD, call)


def scheduler_process(*arguments: Any, **named: Any) -> None:
    """SGLang's ``run_scheduler_process`` with the probe in place; its body in the new process."""
    from sglang.srt.managers import schedule_batch, scheduler
    from sglang.srt.managers.scheduler_components import batch_result_processor, internal_state
    from sglang.srt.plugins import load_plugins

    # First, as SGLang does: plugins may replace what is watched here.
    load_plugins()
    _watch_results(batch_result_processor.SchedulerBatchResultProcessor)
    _watch_retraction(schedule_batch.ScheduleBatch)
    _answer_with_state(internal_state.SchedulerInternalStateController, scheduler.Scheduler)
    scheduler.run_scheduler_process(*arguments, **named)
