"""Drafts that never leave the device: what the V2 runner holds for ``"lookup": "device"``.

vLLM's carrier is ``ngram_gpu`` then, the one method without a model that its asynchronous scheduling accepts. With it
the scheduler plans so many draft tokens for every request without knowing them, and they are verified where they lie.
So there is no draft of another length than the step's, what pads a shorter one is verified too, and the only decision
that saves work is the step's length, which is the scheduler's: by vLLM's own table, or by our controller in the
scheduler (:mod:`specplug.adapters.vllm_v1.native`), which knows the steps that have come back.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from specplug.adapters.common import host_logger
from specplug.adapters.device.lookup import DeviceLookup, LookupSettings
from specplug.adapters.vllm_v1.adaptive import ANY_BATCH, scheduler_path
from specplug.adapters.vllm_v1.binding import bind
from specplug.adapters.vllm_v1.options import PREFIX, Choice
from specplug.adapters.vllm_v1.proposer import MAX_FAULTS, announce
from specplug.adapters.vllm_v1.requests import describe, has_tokens
from specplug.adapters.vllm_v1.requirements import has_dynamic_lengths
from specplug.adapters.vllm_v1.salts import salt_of
from specplug.adapters.vllm_v2.door import of_vllm
from specplug.adapters.vllm_v2.proposer import WARM_UP
from specplug.errors import SettingsError
from specplug.index.templates import Namespaces

#: A method that drafts without a model, on the device, known to V2 and to asynchronous scheduling.
CARRIER = "ngram_gpu"
_MARK = "_specplug"


def prepare(engine_args: Any, translated: Mapping[str, Any], choice: Choice) -> dict[str, Any]:
    """What vLLM gets for look-ups on the device.

    The controller ``goodput`` sits in the scheduler, so it brings a scheduler class.

    Raises:
        SettingsError: a controller that cannot work there, or what contradicts one that can.
    """
    made = {
        **translated,
        "method": CARRIER,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 1,
    }
    control = choice.control or {"name": "fixed"}
    where = f'{PREFIX}{choice.name} with "lookup": "device"'
    table = "num_speculative_tokens_per_batch_size"
    if control["name"] == "table":
        raise SettingsError(
            f"{where}: the controller 'table' is one of look-ups on the host; give vLLM's own table, {table}, "
            'and "controller": "fixed"'
        )
    if control["name"] != "goodput":
        return made
    if getattr(engine_args, "scheduler_cls", None) is not None or table in made:
        given = table if table in made else "scheduler_cls"
        raise SettingsError(
            f"{where}: the controller 'goodput' decides in the scheduler, but {given!r} is given; remove it, or "
            'write "controller": "fixed"'
        )
    if not has_dynamic_lengths():
        raise SettingsError(
            f"{where}: this vLLM has no draft lengths by step ({table}), which the controller 'goodput' needs; use "
            'vLLM 0.32, or write "controller": "fixed"'
        )
    engine_args.scheduler_cls = scheduler_path(control, model=True)
    # One entry, so that the table exists into which the lengths are written.
    made[table] = [[1, ANY_BATCH, made["num_speculative_tokens"]]]
    return made


class DeviceDrafts:
    """Requests and drafts of look-ups on the device; nothing in here waits for it, and nothing raises.

    Attributes:
        lookup: the arrays and launches.
        faults: exceptions in this adapter.
        stopped: nothing is drafted and nothing kept any more.
        steps: real steps asked for drafts.
    """

    #: There is no session: the host sees neither tokens nor drafts.
    session = None

    def __init__(self, choice: Choice, lookup: DeviceLookup) -> None:
        self.log = host_logger("vllm")
        self.name = PREFIX + choice.name
        self.lookup = lookup
        self.faults = 0
        self.stopped = False
        self.steps = 0
        self._options = dict(choice.lookup or {})
        fixed = (choice.control or {}).get("length")
        self._most = lookup.width if fixed is None else min(lookup.width, int(fixed))
        self._namespaces = Namespaces()
        #: Requests whose outputs are kept: where each begins.
        self._kept: dict[str, int] = {}
        announce(self)

    def warm(self) -> None:
        """Compile and launch every kernel before the first request; without them the engine decodes plainly."""
        try:
            self.lookup.warm()
        except Exception:  # noqa: BLE001  a kernel that this device refuses must not keep the engine from starting
            self._fault("warm", for_good=True)

    def before_finish(self, runner: Any, scheduler_output: Any) -> None:
        """Requests are about to lose their rows: keep what they said, while it is there."""
        try:
            rows, starts = [], []
            # By id, as the runner frees rows: what is kept must not depend on the order of a set.
            for request_id in sorted(scheduler_output.finished_req_ids):
                start = self._kept.pop(request_id, None)
                row = runner.req_states.req_id_to_index.get(request_id)
                # Ended while it was preempted: its text is gone already.
                if start is not None and row is not None:
                    rows.append(row)
                    starts.append(start)
            if not self.stopped:
                self.lookup.append(rows, starts)
        except Exception:  # noqa: BLE001  the runner must go on: without this, vLLM would fail every request
            self._fault("before_finish")

    def after_update(self, runner: Any, scheduler_output: Any) -> None:
        """Requests arrived, or came back after a preemption, which vLLM sends as arrivals."""
        try:
            rows, namespaces, limits = [], [], []
            for new in scheduler_output.scheduled_new_reqs:
                rows.append(runner.req_states.req_id_to_index[new.req_id])
                namespace, limit = self._arrived(new)
                namespaces.append(namespace)
                limits.append(limit)
            if not self.stopped:
                self.lookup.arrive(rows, namespaces, limits)
        except Exception:  # noqa: BLE001  as above
            # The device may still have the numbers of those who had these rows before: with them one tenant would
            # get drafts of another's text.
            self._fault("after_update", for_good=True)

    def empty(self, rows: int) -> Any:
        """No drafts, int64 ``[rows, K]``: for steps that vLLM makes up to measure or to warm up."""
        return self.lookup.empty(rows)

    def step(self, batch: Any, num_sampled: Any, most: int) -> Any:
        """Drafts of a real step, int64 ``[B, K]`` on the device."""
        count = batch.num_reqs
        self.steps += 1
        if not self.stopped:
            try:
                return self.lookup.look_up(
                    batch.idx_mapping[:count], num_sampled[:count], min(most, self._most)
                )
            except Exception:  # noqa: BLE001  a draft is never worth a request: this step decodes plainly
                self._fault("look_up")
        return self.empty(count)

    def snapshot(self) -> dict[str, Any]:
        """Everything worth reporting that the host knows, as plain values."""
        return {
            "method": self.name,
            "runner": "V2",
            "lookup": "device",
            "options": self._options,
            "num_speculative_tokens": self.lookup.width,
            "adapter_faults": self.faults,
            "steps": self.steps,
            "outputs_kept": self.lookup.appended,
            "device_bytes": self.lookup.memory(),
            "session": None,
        }

    def _arrived(self, new: Any) -> tuple[int, int]:
        """Number of the namespace, and the most tokens per draft; nothing at all for a request that cannot be read."""
        self._kept.pop(new.req_id, None)
        try:
            return self._wishes(new)
        except Exception:  # noqa: BLE001  one request without drafts, not all
            self._kept.pop(new.req_id, None)
            self._fault("arrived")
            return 0, 0

    def _wishes(self, new: Any) -> tuple[int, int]:
        state = SimpleNamespace(
            num_prompt_tokens=new.prompt_len,
            sampling_params=new.sampling_params,
            prompt_embeds=getattr(new, "prompt_embeds", None),
            lora_request=getattr(new, "lora_request", None),
        )
        # On the device, placeholders of images cannot be told from tokens.
        if not has_tokens(state) or getattr(new, "mm_features", None):
            return 0, 0
        request, complaint = describe(new.req_id, state, salt_of(new))
        if complaint:
            self.log.warning("specplug: request %s: %s; ignored", new.req_id, complaint)
        if request.shares and not new.req_id.startswith(WARM_UP):
            self._kept[new.req_id] = int(new.prompt_len)
        number = self._namespaces.number_of(request.namespace)
        limit = self.lookup.width if request.draft_limit is None else request.draft_limit
        return number, min(limit, self.lookup.width)

    def _fault(self, where: str, for_good: bool = False) -> None:
        self.faults += 1
        if for_good:
            if not self.stopped:
                self.log.exception(
                    "specplug: %s() failed; answers are not affected, nothing is drafted any more in this process",
                    where,
                )
            self.stopped = True
            return
        if self.faults == 1:
            self.log.exception(
                "specplug: %s() failed; answers are not affected, this step gets no drafts "
                "(later failures are only counted)",
                where,
            )
        if self.faults == MAX_FAULTS and not self.stopped:
            self.stopped = True
            self.log.error(
                "specplug: %d failures, nothing is drafted any more in this process", MAX_FAULTS
            )


def bind_runner(runner_class: Any) -> None:
    """Wrap what tells of requests that come and go; once. Runners whose speculator is not ours are left alone."""
    bind(runner_class, DeviceDrafts, "add_requests", "speculator")
    original = runner_class.finish_requests
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def finish_requests(self: Any, scheduler_output: Any) -> Any:
        speculator = getattr(self, "speculator", None)
        if isinstance(speculator, DeviceDrafts):
            speculator.before_finish(self, scheduler_output)
        return original(self, scheduler_output)

    setattr(finish_requests, _MARK, True)
    runner_class.finish_requests = finish_requests


def build(vllm_config: Any, device: Any, req_states: Any, choice: Choice) -> Any:
    """Our speculator, of vLLM's own base class; see :func:`specplug.adapters.vllm_v2.speculator.build`."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    width = int(vllm_config.speculative_config.num_speculative_tokens)
    lookup = DeviceLookup(
        req_states.all_token_ids.gpu,
        req_states.total_len.gpu,
        int(vllm_config.scheduler_config.max_num_seqs),
        width,
        LookupSettings(**(choice.lookup or {})),
    )

    bind_runner(GPUModelRunner)
    made = of_vllm(DeviceDrafts, width)(choice, lookup)
    made.warm()
    if not made.stopped:
        made.log.info(
            "%s ready: looked up on the device, options %s, bytes there: %s",
            *(made.name, choice.lookup, lookup.memory()),
        )
    return made
