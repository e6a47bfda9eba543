"""What drafting on the host costs per step in vLLM's V2 runner: launches, bytes, waits and time, part by part.

The real exchange and proposer of the adapter work on tensors with the shapes of V2's request states, on the CPU or on a
GPU; there is no model, so the wait for the step itself is not in it. Half of the requests copy their prompt with
edits, half continue a text that they have not seen, as in ``host_time.py``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from host_time import OUTPUT, Corpus
from torch.utils._python_dispatch import TorchDispatchMode

from specplug import registry
from specplug.adapters.vllm_v1.options import Choice
from specplug.adapters.vllm_v2 import door
from specplug.adapters.vllm_v2.proposer import V2Proposer
from specplug.adapters.vllm_v2.speculator import Exchange
from specplug.testing.stub_host import DefaultParams, configuration, stub_modules, stub_vllm

VOCABULARY = 49_152
WARM_STEPS = 10
#: Operations that only look at memory in another way; nothing runs on the device for them.
COUNTED = ("to_host", "to_device", "launches", "copies", "synchronisations")
VIEWS = (
    *("view", "slice", "select", "unsqueeze", "expand", "alias", "detach", "as_strided", "t."),
    # What `numpy()` asks of a tensor of the host.
    *("resolve_", "to.dtype_layout"),
)


#: Operations that hand a value of the device to Python, which waits for it.
READS = ("item", "_local_scalar_dense", "nonzero", "equal")


class Count(TorchDispatchMode):
    """Counts what runs on the device, what crosses, and what the host waits for, in one step.

    Args:
        host: buffers of the host.
        event: recorded and waited for where the adapter does; None on a CPU, where nothing is ever under way.

    Attributes:
        found: launches (copies included), copies, bytes to the host and to the device, synchronisations.
    """

    def __init__(self, host: Sequence[Any], event: Any = None) -> None:
        super().__init__()
        self._event = event
        self._host = [tensor.untyped_storage().data_ptr() for tensor in host]
        self.found = dict.fromkeys(COUNTED, 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = func.name().partition("::")[2]
        self.found["synchronisations"] += name.startswith(READS)
        self.found["launches"] += not name.startswith(VIEWS)
        if name.startswith("copy_"):
            to, source = args[:2]
            self._crossed("to_host", to)
            self._crossed("to_device", source)
        return func(*args, **(kwargs or {}))

    def _crossed(self, way: str, tensor: Any) -> None:
        if tensor.untyped_storage().data_ptr() in self._host:
            self.found["copies"] += 1
            self.found[way] += tensor.numel() * tensor.element_size()

    def record(self) -> None:
        """In place of an event's."""
        if self._event is not None:
            self._event.record()

    def synchronize(self) -> None:
        """In place of an event's, and that too: without it the host would read what has not arrived."""
        self.found["synchronisations"] += 1
        if self._event is not None:
            self._event.synchronize()


class TimedExchange(Exchange):
    """The exchange, its parts timed, in seconds."""

    fetched = drafted = 0.0

    def _fetch(self, index: Any, num_sampled: Any) -> Any:
        began = time.perf_counter()
        seen = super()._fetch(index, num_sampled)
        self.fetched = time.perf_counter() - began
        return seen

    def _arrived(self, seen: Any) -> Any:
        began = time.perf_counter()
        arrived = super()._arrived(seen)
        self.fetched += time.perf_counter() - began
        return arrived


class TimedProposer(V2Proposer):
    """The proposer, timed, in seconds."""

    spent = 0.0

    def drafts(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        began = time.perf_counter()
        found = super().drafts(*args, **kwargs)
        self.spent = time.perf_counter() - began
        return found


class Batch:
    """``rows`` requests that decode beside each other, each with a text that it will say."""

    def __init__(self, rows: int, prompt: int, width: int, device: str, seed: int) -> None:
        corpus = Corpus(seed)
        asked = [corpus.request(prompt, copies=row % 2 == 0) for row in range(rows)]
        self.texts = [np.concatenate([before, output]) for before, output in asked]
        self.ids = [f"{row}-request" for row in range(rows)]
        longest = prompt + OUTPUT + width + 1
        config = configuration(width, rows, longest, VOCABULARY)
        with stub_vllm(), stub_modules({door.RUNNER: {"GPUModelRunner": _Runner}}):
            self.proposer = TimedProposer(config, Choice("suffix", registry.check("suffix", {})))
        tokens = torch.zeros((rows, longest), dtype=torch.int32)
        for row, text in enumerate(self.texts):
            tokens[row, : len(text)] = torch.from_numpy(text)
        self.lengths = np.full(rows, prompt + 1, np.int32)
        self.states = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=tokens.to(device)),
            total_len=SimpleNamespace(gpu=torch.from_numpy(self.lengths).to(device)),
            draft_tokens=torch.zeros((rows, width), dtype=torch.int64, device=device),
        )
        self.exchange = TimedExchange(self.proposer, rows, width, device, self.states)
        self.batch = SimpleNamespace(
            num_reqs=rows,
            req_ids=self.ids,
            idx_mapping=torch.arange(rows, dtype=torch.int32, device=device),
        )
        self.width, self.device = width, device
        self.sampled = np.ones(rows, np.int32)
        self.drafts: list[list[int]] = [[] for _ in range(rows)]
        new = [
            SimpleNamespace(
                req_id=name,
                prompt_len=prompt,
                prefill_token_ids=text[:prompt].tolist(),
                sampling_params=DefaultParams(),
            )
            for name, text in zip(self.ids, self.texts, strict=True)
        ]
        self._update(new)

    def _update(self, new: list[Any]) -> None:
        output = SimpleNamespace(
            finished_req_ids=set(),
            preempted_req_ids=set(),
            scheduled_new_reqs=new,
            num_scheduled_tokens=dict.fromkeys(self.ids, 1),
            scheduled_spec_decode_tokens={},
        )
        self.exchange.after_update(None, output)

    def ended(self) -> bool:
        """Whether a request has nothing left to say."""
        return bool((self.lengths + self.width + 1 > len(self.texts[0])).any())

    def counted(self) -> dict[str, int]:
        """One step; what it launches, moves and waits for, counted where it happens."""
        exchange = self.exchange
        count = Count([exchange._host_in, exchange._host_out], exchange._copied)
        with patch.object(exchange, "_copied", count):
            self.step(count)
        return count.found

    def step(self, counting: Any = None) -> dict[str, float]:
        """One step; seconds by part."""
        sampled = torch.from_numpy(self.sampled).to(self.device)
        self.states.total_len.gpu.copy_(torch.from_numpy(self.lengths))
        if self.device != "cpu":
            torch.accelerator.synchronize()
        began = time.perf_counter()
        with counting or nullcontext():
            self.exchange.step(self.batch, sampled, self.width)
            taken = self.exchange.take()
        whole = time.perf_counter() - began
        assert taken is not None
        self._verify(taken[1])
        self._update([])
        fetched, drafted = self.exchange.fetched, self.proposer.spent
        return {
            "fetch": fetched,
            "draft": drafted,
            "back": whole - fetched - drafted,
            "whole": whole,
        }

    def _verify(self, drafts: list[list[int]]) -> None:
        for row, draft in enumerate(drafts):
            length, text = int(self.lengths[row]), self.texts[row]
            accepted = 0
            while accepted < len(draft) and draft[accepted] == text[length + accepted]:
                accepted += 1
            self.sampled[row] = accepted + 1
            self.lengths[row] += accepted + 1
        self.drafts = drafts


class _Runner:
    """A runner class to be wrapped."""

    speculator: Any = None

    def update_requests(self, scheduler_output: Any) -> None:
        """Nothing."""

    def take_draft_token_ids(self) -> None:
        """Nothing."""


def measure(
    rows: int, width: int = 16, prompt: int = 1000, steps: int = 60, device: str = "cpu"
) -> dict[str, Any]:
    """One batch size: what a step launches, moves, waits for and takes (medians, microseconds)."""
    batch = Batch(rows, prompt, width, device, seed=7)
    parts: list[dict[str, float]] = []
    for number in range(WARM_STEPS + steps):
        if batch.ended():
            batch = Batch(rows, prompt, width, device, seed=8 + number)
        spent = batch.step()
        if number >= WARM_STEPS:
            parts.append(spent)
    found = (
        Batch(rows, prompt, width, device, seed=6).counted() if batch.ended() else batch.counted()
    )
    assert batch.proposer.faults == batch.proposer.histories.reread == 0
    middle = {name: 1e6 * statistics.median(part[name] for part in parts) for name in parts[0]}
    return {"rows": rows, **found, **middle}


HEAD = (
    f"{'requests':>9}{'to host':>10}{'to device':>11}{'launches':>10}{'copies':>8}{'waits':>7}"
    f"{'fetch us':>10}{'draft us':>10}{'back us':>9}{'all us':>9}"
)


def line(found: dict[str, Any]) -> str:
    """A line under :data:`HEAD`."""
    return (
        f"{found['rows']:>9}{found['to_host']:>10,}{found['to_device']:>11,}{found['launches']:>10}"
        f"{found['copies']:>8}{found['synchronisations']:>7}{found['fetch']:>10.0f}{found['draft']:>10.0f}"
        f"{found['back']:>9.0f}{found['whole']:>9.0f}"
    )
