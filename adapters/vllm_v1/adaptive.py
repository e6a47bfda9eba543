"""``specplug.adaptive``: the controller over a draft method of vLLM's own.

vLLM's scheduler receives the drafts of every request as a list before it schedules the next step. A subclass, chosen
by vLLM's own ``scheduler_cls``, shortens these lists to what pays. Nothing is patched; requests, sampling and
verification are vLLM's. Such methods give no estimates, so rates per position are learned, per request; what is cut
is still compared with what the target says next. Methods that draft with a model are told the length instead, see
:mod:`specplug.adapters.vllm_v1.native`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

import numpy as np

from specplug.adapters.vllm_v1.governing import (
    METHOD,
    Account,
    Guard,
    Slots,
    attach,
    context_of,
    controller,
    request_of,
    running,
)
from specplug.adapters.vllm_v1.native import length_scheduler
from specplug.adapters.vllm_v1.steps import StepClock
from specplug.control.options import check
from specplug.errors import SettingsError, did_you_mean
from specplug.steering import Offer, Steering
from specplug.types import (
    LENGTH_DTYPE,
    Capabilities,
    Context,
    allocate_drafts,
)

#: Methods whose drafts cost next to nothing and reach the scheduler as lists, so that cutting them is the whole gain.
INNER = ("ngram",)

#: Methods that draft with a model, to which vLLM's dynamic schedule applies.
WITH_MODEL = ("draft_model", "eagle", "eagle3", "mtp")

#: More requests than any batch has.
ANY_BATCH = 1 << 20

_PACKED = re.compile(r"Scheduler__((?:[0-9a-f]{2})+)")


def is_adaptive(config: Any) -> bool:
    """Whether a speculative_config asks for it."""
    return isinstance(config, Mapping) and config.get("method") == METHOD


def translate(config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """What vLLM shall get as speculative_config, and the dotted path of its scheduler class.

    Raises:
        SettingsError: no inner method, one that is not supported, or wrong options.
    """
    config = {str(key).replace("-", "_"): value for key, value in config.items()}
    options = config.get("specplug")
    inner = options.get("inner") if isinstance(options, Mapping) else None
    if not isinstance(options, Mapping) or not isinstance(inner, Mapping) or "method" not in inner:
        raise SettingsError(
            f'{METHOD}: write "specplug": {{"inner": {{"method": "ngram", ...}}}}, got {options!r}'
        )
    unknown = [key for key in options if key not in ("inner", "controller")]
    if unknown:
        raise SettingsError(
            f"{METHOD}: unknown option {unknown[0]!r}; {did_you_mean(unknown[0], ('inner', 'controller'))}"
        )
    if inner["method"] not in (*INNER, *WITH_MODEL):
        raise SettingsError(
            f"{METHOD}: the inner method must be one of {', '.join((*INNER, *WITH_MODEL))}, got {inner['method']!r}; "
            "vLLM's dynamic draft lengths do not reach others"
        )
    foreign = [key for key in config if key not in ("method", "num_speculative_tokens", "specplug")]
    if foreign:
        raise SettingsError(f"{METHOD}: put {foreign[0]!r} into the inner configuration")
    control = check(options.get("controller"))
    if control["name"] != "goodput":
        raise SettingsError(
            f"{METHOD}: the controller must be 'goodput', got {control['name']!r}; for a constant length use the "
            "inner method alone"
        )
    length = config.get("num_speculative_tokens", inner.get("num_speculative_tokens"))
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise SettingsError(
            f'{METHOD} needs "num_speculative_tokens" of at least 1, the most tokens drafted per step, got {length!r}'
        )
    translated = {**inner, "num_speculative_tokens": length}
    if inner["method"] in WITH_MODEL:
        if inner.get("num_speculative_tokens_per_batch_size") is not None:
            raise SettingsError(
                f"{METHOD} decides the length of every step; remove 'num_speculative_tokens_per_batch_size'"
            )
        # One entry, so that the table exists into which the lengths are written.
        translated["num_speculative_tokens_per_batch_size"] = [[1, ANY_BATCH, length]]
    return translated, scheduler_path(control, model=inner["method"] in WITH_MODEL)


def scheduler_path(control: Mapping[str, Any], *, model: bool) -> str:
    """The dotted path of a scheduler class with a controller: one that tells lengths (``model``), or one that cuts."""
    packed = {"control": dict(control), "model": model}
    payload = json.dumps(packed, separators=(",", ":"), sort_keys=True).encode().hex()
    return f"{__name__}.Scheduler__{payload}"


def refuse(parallel_replicas: int, inner: Mapping[str, Any], dynamic: bool) -> None:
    """Refuse what vLLM cannot do.

    Args:
        parallel_replicas: data-parallel replicas.
        inner: what :func:`translate` returned.
        dynamic: whether this vLLM has dynamic draft lengths.

    Raises:
        SettingsError: data parallelism, or a vLLM without dynamic lengths for a method that needs them.
    """
    if parallel_replicas > 1:
        raise SettingsError(
            f"{METHOD}: not with data parallelism (data_parallel_size {parallel_replicas}): replicas would choose "
            "different draft lengths, and vLLM's replicas wait for each other; start separate servers"
        )
    if "num_speculative_tokens_per_batch_size" in inner and not dynamic:
        raise SettingsError(
            f"{METHOD}: this vLLM has no dynamic draft lengths (num_speculative_tokens_per_batch_size), which "
            f"{inner['method']!r} needs; use vLLM 0.32 or the inner method 'ngram'"
        )


def refuse_v2(inner: str) -> None:
    """Refuse an inner method in the V2 model runner if its drafts do not reach the scheduler there.

    Raises:
        SettingsError: one of :data:`INNER`.
    """
    if inner in INNER:
        raise SettingsError(
            f"{METHOD}: in vLLM's V2 model runner the drafts of {inner!r} stay on the device, so that nothing can be "
            "learned from them and nothing cut; set VLLM_USE_V2_MODEL_RUNNER=0, and vLLM takes its V1 model runner"
        )


class Governor:
    """The controller beside one scheduler; requests by vLLM's internal id. Nothing in here raises.

    Attributes:
        controller: the controller.
        account: draft tokens let through, and drafted by the inner method, and what became of them.
    """

    def __init__(
        self, control: Mapping[str, Any], width: int, requests: int, scheduler: Any = None
    ) -> None:
        self._scheduler = scheduler
        context = Context(1 << 30, 1 << 30, width, max_requests=requests)
        self.controller = controller(control, context, scheduler)
        self.account = Account(self.controller, context)
        self.steering = Steering(
            self.controller, Capabilities(), raise_faults=False, sources=self.account.sources
        )
        self.clock = StepClock()
        self._width, self._requests = width, requests
        self._slots = Slots(requests)
        self._offers: dict[str, Offer] = {}
        self._buffers = allocate_drafts(requests, width)
        attach(self)

    def scheduled(self, output: Any) -> None:
        """A step was put together."""
        for request_id in output.finished_req_ids:
            self._offers.pop(request_id, None)
        self._slots.release(output.finished_req_ids)
        self.clock.begin(output)

    def sampled(self, output: Any) -> None:
        """A step is done: how long it took, and what became of the drafts."""
        sampled = output.sampled_token_ids or []
        waiting = sum(1 for tokens in sampled if not len(tokens))
        facts = self.clock.sampled(waiting, context_of(self._scheduler, output.req_id_to_index))
        if facts is not None:
            self.controller.timed(facts)
        judged = []
        for request_id, row in output.req_id_to_index.items():
            offer, slot = self._offers.pop(request_id, None), self._slots.of(request_id)
            if offer is not None and slot is not None and row < len(sampled) and len(sampled[row]):
                judged.append((slot, offer, list(sampled[row])))
        if judged:
            self.account.stats.accepted += self.steering.judge(judged)

    def cut(self, request_ids: list[str], drafts: list[list[int]]) -> list[list[int]]:
        """The drafts that are worth verifying."""
        began = perf_counter_ns()
        known = [self._slots.meet(request_id, self._begin) for request_id in request_ids]
        rows = [i for i, slot in enumerate(known) if slot is not None]
        slots = np.array([known[i] for i in rows], LENGTH_DTYPE)
        limits = np.array([min(len(drafts[i]), self._width) for i in rows], LENGTH_DTYPE)
        ceilings = np.zeros(len(rows), LENGTH_DTYPE)
        self.steering.plan(slots, limits, ceilings)
        out = self._buffers._replace(
            tokens=self._buffers.tokens[: len(rows)],
            lengths=ceilings,
            survival=self._buffers.survival[: len(rows)],
        )
        offered, left = self.steering.trim(slots, out)
        kept = list(drafts)
        for row, i in enumerate(rows):
            tokens, length = drafts[i], left[row]
            if offered[row]:
                self._offers[request_ids[i]] = Offer(list(tokens[: offered[row]]), None, length)
            kept[i] = tokens[:length]
        self.account.drafted(offered, left)
        spent = perf_counter_ns() - began
        self.clock.drafted(spent)
        self.account.publish(spent)
        return kept

    def _begin(self, slot: int, request_id: str) -> None:
        self.account.stats.started += 1
        self.steering.begin(slot, request_of(self._scheduler, request_id))


def report(_llm: Any = None) -> dict[str, Any]:
    """What the newest governor of this process did, as plain values; empty if there is none."""
    governors = running()
    if not governors:
        return {}
    return {**governors[-1].controller.as_dict(), "method": METHOD}


def scheduler_class(packed: Mapping[str, Any]) -> type:
    """A subclass of vLLM's scheduler with a governor of these options."""
    from vllm.v1.core.sched.scheduler import Scheduler

    control = packed["control"]
    if packed["model"]:

        class ChosenScheduler:
            """vLLM chooses its own by its configuration, which is known only when one is built; so does this."""

            def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
                from vllm.v1.core.sched.async_scheduler import AsyncScheduler

                ahead = bool(vllm_config.scheduler_config.async_scheduling)
                base = AsyncScheduler if ahead else Scheduler
                return length_scheduler(base, control)(vllm_config, *args, **kwargs)

        return ChosenScheduler

    class GovernedScheduler(Scheduler):  # type: ignore[misc, unused-ignore]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            # vLLM may choose that runner by itself, which only its complete configuration knows.
            if getattr(self.vllm_config, "use_v2_model_runner", False):
                refuse_v2(self.vllm_config.speculative_config.method)
            width = int(self.num_spec_tokens)
            most = int(self.scheduler_config.max_num_seqs)
            governor = Governor(control, max(1, width), most, self)
            self.governor = Guard(governor, "drafts are not cut any more")

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            output = super().schedule(*args, **kwargs)
            self.governor("scheduled", output)
            return output

        def update_from_output(self, scheduled: Any, output: Any, *args: Any) -> Any:
            self.governor("sampled", output)
            return super().update_from_output(scheduled, output, *args)

        def update_draft_token_ids(self, drafts: Any) -> None:
            kept = self.governor("cut", drafts.req_ids, drafts.draft_token_ids)
            if kept is not None:
                drafts.draft_token_ids = kept
            super().update_draft_token_ids(drafts)

    return GovernedScheduler


def __getattr__(name: str) -> type:
    match = _PACKED.fullmatch(name)
    if match is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return scheduler_class(json.loads(bytes.fromhex(match.group(1))))
