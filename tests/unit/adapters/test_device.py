"""Look-ups on the device without one: options, refusals, and what the host does at arrivals and ends."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from specplug.adapters import vllm_v2
from specplug.adapters.device.lookup import LookupSettings
from specplug.adapters.device.options import read
from specplug.adapters.vllm_v1 import adaptive
from specplug.adapters.vllm_v1.options import Choice, pack, translate, unpack
from specplug.adapters.vllm_v1.proposer import MAX_FAULTS, running
from specplug.adapters.vllm_v2 import device, requirements
from specplug.adapters.vllm_v2.door import choice_of
from specplug.errors import SettingsError
from specplug.index.templates import Namespaces
from specplug.testing.stub_host import DefaultParams

DEFAULTS = {"store_mb": 4.0, "shortest": 1, "longest": 16, "growth": 0}
FIXED = {"lookup": "device", "controller": "fixed"}


def config(**options: Any) -> dict[str, Any]:
    return {"method": "specplug.suffix", "num_speculative_tokens": 4, "specplug": options}


def test_the_place_of_look_ups_reaches_the_worker() -> None:
    assert read({}, "suffix") is read({"lookup": "host"}, "suffix") is None
    assert read({"lookup": "device"}, "suffix") == DEFAULTS
    given = {"name": "device", "store_mb": 1.0}
    made = translate(config(lookup=given, controller="fixed"))
    choice = unpack(made["model"].rpartition(".")[2])
    assert choice is not None
    assert choice.lookup == {**DEFAULTS, "store_mb": 1.0}
    assert LookupSettings(**choice.lookup).store_mb == 1.0
    plain = unpack(translate(config())["model"].rpartition(".")[2])
    assert plain is not None
    assert plain.lookup is None


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("suffix", {"lookup": "gpu"}, 'write "host", "device"'),
        ("suffix", {"lookup": 3}, "got 3"),
        ("suffix", {"lookup": {"store_mb": 1}}, 'write "host", "device"'),
        ("suffix", {"lookup": {"name": "host", "store_mb": 1}}, "'host' has no options"),
        ("suffix", {"lookup": {"name": "device", "store": 1}}, "unknown option 'store'.*store_mb"),
        ("suffix", {"lookup": {"name": "device", "longest": 99}}, "longest.*32.*99"),
        ("suffix", {"lookup": "device", "store_mb": 1.0}, "'store_mb' is one of look-ups on the h"),
        ("null", {"lookup": "device"}, "only specplug.suffix can be looked up on the device"),
    ],
)
def test_wrong_places_and_options_are_refused(
    method: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        translate({**config(**options), "method": f"specplug.{method}"})


def test_v1_refuses_look_ups_on_the_device() -> None:
    vllm_v2.refuse_v1(translate(config()))
    with pytest.raises(SettingsError, match=r"needs vLLM's V2 model runner.*=1, or remove"):
        vllm_v2.refuse_v1(translate(config(lookup="device")))


def prepared(monkeypatch: pytest.MonkeyPatch, args: Any, **options: Any) -> dict[str, Any]:
    monkeypatch.setattr(requirements, "require", lambda: None)
    monkeypatch.setattr(vllm_v2, "install", lambda: None)
    monkeypatch.setattr(device, "has_dynamic_lengths", lambda: True)
    table = options.pop("table", None)
    given = config(**options)
    if table is not None:
        given["num_speculative_tokens_per_batch_size"] = table
    return vllm_v2.prepare(args, translate(given))


def test_the_carrier_is_one_that_keeps_asynchronous_scheduling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = SimpleNamespace(scheduler_cls=None)
    made = prepared(monkeypatch, args, **FIXED)
    assert made["method"] == "ngram_gpu"
    assert args.scheduler_cls is None
    carried = SimpleNamespace(**made)
    found = choice_of(SimpleNamespace(speculative_config=carried))
    assert found is not None
    assert found.lookup == DEFAULTS
    vllm_v2.seal(carried)
    # Run by vLLM itself, it would refuse to start.
    assert carried.prompt_lookup_min == 0
    assert prepared(monkeypatch, SimpleNamespace())["method"] == "ngram", "on the host"


def test_the_controller_decides_the_length_in_the_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = SimpleNamespace(scheduler_cls=None)
    made = prepared(monkeypatch, args, lookup="device")
    assert made["num_speculative_tokens_per_batch_size"] == [[1, adaptive.ANY_BATCH, 4]]
    module, _, name = args.scheduler_cls.rpartition(".")
    assert module == adaptive.__name__
    packed = json.loads(bytes.fromhex(name.removeprefix("Scheduler__")))
    assert packed["model"] is True
    assert packed["control"]["name"] == "goodput"


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ({}, {"controller": {"name": "table", "lengths": "1:4"}}, "per_batch_size.*'fixed|fixed"),
        ({"scheduler_cls": "their.Scheduler"}, {}, "'scheduler_cls' is given"),
        ({}, {"table": [[1, 8, 2]]}, "'num_speculative_tokens_per_batch_size' is given"),
    ],
)
def test_controllers_that_cannot_work_there_are_refused(
    monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        prepared(monkeypatch, SimpleNamespace(**args), lookup="device", **options)


class Recorder:
    """In place of the arrays: remembers what it was told."""

    width = 4
    appended = 0

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fails = False

    def arrive(self, *given: Any) -> None:
        if given[0]:
            self._told("arrive", *given)

    def append(self, *given: Any) -> None:
        if given[0]:
            self._told("append", *given)

    def look_up(self, rows: Any, sampled: Any, most: int) -> str:
        self._told("look_up", list(rows), list(sampled), most)
        return "drafts"

    def empty(self, count: int) -> str:
        return f"{count} without"

    def memory(self) -> dict[str, int]:
        return {"ring": 0}

    def _told(self, *call: Any) -> None:
        self.calls.append(call)
        if self.fails:
            raise RuntimeError("the device is gone")


class GPUModelRunner:
    """What is touched of V2's class of this name."""

    def __init__(self, speculator: Any) -> None:
        self.speculator = speculator
        self.req_states = SimpleNamespace(req_id_to_index={})
        self.free = [3, 2, 1, 0]

    def finish_requests(self, output: Any) -> None:
        for request_id in (*output.finished_req_ids, *(output.preempted_req_ids or ())):
            row = self.req_states.req_id_to_index.pop(request_id, None)
            if row is not None:
                self.free.append(row)

    def add_requests(self, output: Any) -> None:
        for new in output.scheduled_new_reqs:
            self.req_states.req_id_to_index[new.req_id] = self.free.pop()

    def step(self, new: Any = (), finished: Any = (), preempted: Any = ()) -> None:
        output = SimpleNamespace(
            finished_req_ids=set(finished),
            preempted_req_ids=set(preempted),
            scheduled_new_reqs=list(new),
        )
        self.finish_requests(output)
        self.add_requests(output)


def arrival(request_id: str, salt: str = "", **more: Any) -> Any:
    params = more.pop("params", {})
    made = SimpleNamespace(
        req_id=request_id, prompt_len=7, sampling_params=DefaultParams(**params), **more
    )
    if salt:
        made.specplug_cache_salt = salt
    return made


@pytest.fixture
def runner() -> GPUModelRunner:
    """A wrapped runner whose speculator records."""

    class Runner(GPUModelRunner):
        pass

    for _ in range(2):
        device.bind_runner(Runner)
    choice = Choice("suffix", {}, {"name": "fixed", "length": None}, DEFAULTS)
    return Runner(device.DeviceDrafts(choice, Recorder()))  # type: ignore[arg-type]


def test_rows_are_told_when_requests_arrive_and_kept_before_they_are_used_again(
    runner: GPUModelRunner,
) -> None:
    calls = runner.speculator.lookup.calls
    runner.step(new=[arrival("a"), arrival("b", salt="tenant")])
    assert calls == [("arrive", [0, 1], [0, 1], [4, 4])]
    runner.step(finished=["a"], new=[arrival("c", salt="tenant")])
    assert calls[1:] == [("append", [0], [7]), ("arrive", [0], [1], [4])]
    runner.step(finished=["b", "c"])
    assert calls[3:] == [("append", [1, 0], [7, 7])]


def test_a_preempted_request_comes_back_in_another_row(runner: GPUModelRunner) -> None:
    calls = runner.speculator.lookup.calls
    runner.step(new=[arrival("a"), arrival("b")])
    runner.step(preempted=["a"])
    runner.step(new=[arrival("c")])
    runner.step(new=[arrival("a")])
    assert calls[1:] == [("arrive", [0], [0], [4]), ("arrive", [2], [0], [4])]
    runner.step(finished=["a"])
    assert calls[3:] == [("append", [2], [7])]
    runner.step(preempted=["b"])
    runner.step(finished=["b"])
    assert len(calls) == 4, "its text was gone"


def test_wishes_of_a_request_are_respected(runner: GPUModelRunner) -> None:
    calls = runner.speculator.lookup.calls

    def wish(**options: Any) -> dict[str, Any]:
        return {"params": {"extra_args": {"specplug": options}}}

    runner.step(
        new=[
            arrival("limited", **wish(draft_limit=2)),
            arrival("secret", **wish(share=False)),
            arrival("image", mm_features=["pixels"]),
            arrival("vectors", prompt_embeds=object()),
        ]
    )
    assert calls == [("arrive", [0, 1, 2, 3], [0, 0, 0, 0], [2, 4, 0, 0])]
    runner.step(finished=["limited", "secret", "image", "vectors"])
    assert calls[1:] == [("append", [0], [7])]


def test_the_length_of_the_step_is_vllms_and_that_of_a_fixed_controller() -> None:
    batch = SimpleNamespace(num_reqs=2, idx_mapping=[5, 6, 99])
    for length, most, expected in ((None, 4, 4), (None, 2, 2), (3, 4, 3), (9, 4, 4)):
        choice = Choice("suffix", {}, {"name": "fixed", "length": length}, DEFAULTS)
        drafts = device.DeviceDrafts(choice, Recorder())  # type: ignore[arg-type]
        assert drafts.step(batch, [1, 0, 9], most) == "drafts"
        assert drafts.lookup.calls == [("look_up", [5, 6], [1, 0], expected)]  # type: ignore[attr-defined]


def test_a_device_that_fails_costs_the_drafts_only(runner: GPUModelRunner) -> None:
    drafts = runner.speculator
    drafts.lookup.fails = True
    batch = SimpleNamespace(num_reqs=1, idx_mapping=[0])
    for _ in range(MAX_FAULTS):
        assert drafts.step(batch, [1], 4) == "1 without"
    asked = len(drafts.lookup.calls)
    assert drafts.step(batch, [1], 4) == "1 without"
    runner.step(new=[arrival("a")])
    runner.step(finished=["a"])
    assert len(drafts.lookup.calls) == asked, "asked again after so many faults"
    assert drafts.snapshot()["adapter_faults"] == MAX_FAULTS
    assert drafts in running()


def test_nobody_drafts_from_another_tenants_text_after_an_arrival_that_failed(
    runner: GPUModelRunner,
) -> None:
    """The device still has tenant A's number and limit in the row that tenant B got."""
    drafts = runner.speculator
    runner.step(new=[arrival("a", salt="tenant-A")])
    runner.step(finished=["a"])
    drafts.lookup.fails = True
    runner.step(new=[arrival("b", salt="tenant-B")])
    drafts.lookup.fails = False
    asked = len(drafts.lookup.calls)
    assert drafts.step(SimpleNamespace(num_reqs=1, idx_mapping=[0]), [1], 4) == "1 without"
    runner.step(finished=["b"], new=[arrival("c")])
    assert drafts.lookup.calls[asked:] == [], "tenant B's output was kept as tenant A's"
    assert drafts.stopped
    assert drafts.faults == 1


def test_a_request_that_cannot_be_read_costs_its_own_drafts_only(runner: GPUModelRunner) -> None:
    calls = runner.speculator.lookup.calls
    bad = arrival("bad", salt="tenant")
    del bad.sampling_params
    runner.step(new=[arrival("a", salt="tenant"), bad, arrival("c")])
    assert calls == [("arrive", [0, 1, 2], [0, 0, 1], [4, 0, 4])]
    runner.step(finished=["a", "bad", "c"])
    assert calls[1:] == [("append", [0, 2], [7, 7])]
    assert runner.speculator.faults == 1
    assert not runner.speculator.stopped


def test_an_id_used_again_shares_only_if_its_new_request_does(runner: GPUModelRunner) -> None:
    calls = runner.speculator.lookup.calls
    runner.step(new=[arrival("a")])
    # Ended unseen, as after a fault.
    runner.req_states.req_id_to_index.clear()
    runner.step(new=[arrival("a", params={"extra_args": {"specplug": {"share": False}}})])
    runner.step(finished=["a"])
    assert [call[0] for call in calls] == ["arrive", "arrive"]


def test_a_kernel_that_does_not_start_leaves_an_engine_without_drafts(
    runner: GPUModelRunner,
) -> None:
    def refuse() -> None:
        raise RuntimeError("Triton Error [CUDA]: invalid argument")

    drafts = runner.speculator
    lines: list[Any] = []
    drafts.log = SimpleNamespace(exception=lambda *line: lines.append(line))
    drafts.lookup.warm = refuse
    drafts.warm()
    runner.step(new=[arrival("a")])
    assert drafts.step(SimpleNamespace(num_reqs=1, idx_mapping=[0]), [1], 4) == "1 without"
    assert drafts.lookup.calls == []
    assert len(lines) == 1


def test_the_names_of_tenants_do_not_grow_without_bound(
    runner: GPUModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = runner.speculator
    monkeypatch.setattr(drafts, "_namespaces", Namespaces(remembered=8))
    for i in range(100):
        runner.step(new=[arrival("r", salt=f"tenant {i}")])
        runner.step(finished=["r"])
    runner.step(new=[arrival("r", salt="tenant 0")])
    numbers = [call[2][0] for call in drafts.lookup.calls if call[0] == "arrive"]
    assert numbers == list(range(101)), "a number went to another tenant"
    assert len(drafts._namespaces._numbers) == 8
    assert not drafts._kept or list(drafts._kept) == ["r"]


def test_a_runner_with_another_speculator_is_left_alone(runner: GPUModelRunner) -> None:
    recorder = runner.speculator.lookup
    runner.speculator = object()
    runner.step(new=[arrival("a")])
    runner.step(finished=["a"])
    assert recorder.calls == []
    assert pack(Choice("suffix", {})).startswith("specplug.adapters.vllm_v1.door.p_suffix")
