"""``specplug.adaptive``: what users write, and the governor beside a scheduler."""

from __future__ import annotations

import logging
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specplug.adapters.common.host import HostRequirements
from specplug.adapters.vllm_v1 import adaptive, install, metrics, native, steps
from specplug.adapters.vllm_v1.adaptive import Governor, translate
from specplug.adapters.vllm_v1.governing import Guard
from specplug.adapters.vllm_v1.native import LengthGovernor, length_scheduler
from specplug.control.options import check
from specplug.errors import SettingsError

INNER = {"method": "ngram", "prompt_lookup_max": 4}
GOOD = {"method": "specplug.adaptive", "num_speculative_tokens": 8, "specplug": {"inner": INNER}}


def test_the_inner_method_goes_to_vllm_with_a_scheduler_of_ours() -> None:
    config, scheduler = translate(GOOD)
    assert config == {**INNER, "num_speculative_tokens": 8}
    module, _, name = scheduler.rpartition(".")
    assert module == adaptive.__name__
    assert name.isidentifier()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"specplug": {}}, "inner"),
        ({"specplug": None}, "inner"),
        ({"specplug": {"inner": {"method": "suffix"}}}, r"one of ngram, .* got 'suffix'"),
        ({"specplug": {"inner": INNER, "controler": 1}}, "did you mean 'controller'"),
        ({"specplug": {"inner": INNER, "controller": "fixed"}}, "must be 'goodput'"),
        ({"num_speculative_tokens": 0}, "at least 1"),
        ({"prompt_lookup_max": 3}, "into the inner configuration"),
    ],
)
def test_mistakes_are_refused_with_what_would_be_right(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        translate({**GOOD, **change})


@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "mtp"])
def test_methods_with_a_model_get_a_table_to_write_lengths_into(method: str) -> None:
    inner = {"method": method, "model": "some/model"}
    config, scheduler = translate({**GOOD, "specplug": {"inner": inner}})
    assert config["method"] == method
    [[first, last, length]] = config["num_speculative_tokens_per_batch_size"]
    assert (first, length) == (1, 8)
    assert last >= 10_000
    assert scheduler != translate(GOOD)[1]
    table = {**inner, "num_speculative_tokens_per_batch_size": [[1, 8, 2]]}
    with pytest.raises(SettingsError, match="remove 'num_speculative_tokens_per_batch_size'"):
        translate({**GOOD, "specplug": {"inner": table}})


def test_what_vllm_cannot_do_is_refused_with_the_reason() -> None:
    lists, _ = translate(GOOD)
    lengths, _ = translate({**GOOD, "specplug": {"inner": {"method": "mtp"}}})
    adaptive.refuse(1, lists, dynamic=False)
    adaptive.refuse(1, lengths, dynamic=True)
    for inner in (lists, lengths):
        with pytest.raises(SettingsError, match="data_parallel_size 2"):
            adaptive.refuse(2, inner, dynamic=True)
    with pytest.raises(SettingsError, match=r"no dynamic draft lengths.*'mtp' needs"):
        adaptive.refuse(1, lengths, dynamic=False)


def test_a_second_scheduler_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostRequirements, "require", lambda _self: "")
    monkeypatch.setattr(install.requirements, "has_dynamic_lengths", lambda: True)
    monkeypatch.setattr(install.salts, "carry", lambda load=False: None)
    wrapped = install.wrap(lambda self: self.speculative_config)
    ours = SimpleNamespace(speculative_config=GOOD, scheduler_cls=None)
    assert wrapped(ours)["method"] == "ngram"
    assert ours.scheduler_cls.startswith(adaptive.__name__)
    theirs = SimpleNamespace(speculative_config=GOOD, scheduler_cls="mine.Scheduler")
    with pytest.raises(SettingsError, match=r"mine\.Scheduler"):
        wrapped(theirs)


def test_a_v2_runner_that_vllm_took_by_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the scheduler gets placeholders in place of drafts: nothing would be cut, and all would seem rejected."""

    class Scheduler:
        def __init__(self, vllm_config: Any) -> None:
            self.vllm_config = vllm_config
            self.num_spec_tokens = 8
            self.scheduler_config = SimpleNamespace(max_num_seqs=2)

    module = types.ModuleType("vllm.v1.core.sched.scheduler")
    monkeypatch.setattr(module, "Scheduler", Scheduler, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(adaptive, "Governor", lambda *_: SimpleNamespace())
    _, path = adaptive.translate(GOOD)
    made = getattr(adaptive, path.rpartition(".")[2])
    config = SimpleNamespace(
        use_v2_model_runner=False, speculative_config=SimpleNamespace(method="ngram")
    )
    assert made(config).governor
    config.use_v2_model_runner = True
    with pytest.raises(SettingsError, match=r"'ngram' stay on the device.*RUNNER=0"):
        made(config)


class Clock:
    """Nanoseconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1000
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stands for the real one: what the governor decides depends on step times, and a busy machine changes them."""
    made = Clock()
    for module in (adaptive, native, steps):
        monkeypatch.setattr(module, "perf_counter_ns", made)
    return made


class Host:
    """A scheduler and a model that copies its drafts, or never does, for one request each."""

    def __init__(self, clock: Clock, right: dict[str, bool]) -> None:
        self.clock = clock
        self.right = right
        self.governor = Governor(check("goodput"), 8, 4)
        self.call = Guard(self.governor, "")
        self.drafts: dict[str, list[int]] = {}
        self.ended: set[str] = set()

    def step(self) -> dict[str, list[int]]:
        ids = list(self.right)
        self.call(
            "scheduled",
            SimpleNamespace(
                finished_req_ids=self.ended,
                num_scheduled_tokens={r: 1 + len(self.drafts.get(r, ())) for r in ids},
                scheduled_spec_decode_tokens=self.drafts,
            ),
        )
        self.ended = set()
        tokens = sum(1 + len(self.drafts.get(r, ())) for r in ids)
        self.clock.now += 10_000_000 + 300_000 * tokens
        sampled = []
        for request_id in ids:
            draft = self.drafts.get(request_id, [])
            # The inner method's draft goes on with 101, 102, ... whatever is let through.
            sampled.append([*draft, 100 + len(draft)] if self.right[request_id] else [7])
        self.call(
            "sampled",
            SimpleNamespace(
                sampled_token_ids=sampled, req_id_to_index={r: i for i, r in enumerate(ids)}
            ),
        )
        kept = self.call("cut", ids, [list(range(100, 108)) for _ in ids])
        assert kept is not None
        self.drafts = dict(zip(ids, kept, strict=True))
        return self.drafts


def test_right_drafts_go_through_and_wrong_ones_do_not(clock: Clock) -> None:
    host = Host(clock, {"a": True, "b": False})
    lengths = np.array([[len(d) for d in host.step().values()] for _ in range(80)])
    assert lengths[-20:, 0].mean() > 6
    assert lengths[-20:, 1].mean() < 0.5
    host.right = {"a": False, "b": True}  # the texts change their minds
    lengths = np.array([[len(d) for d in host.step().values()] for _ in range(20)])
    assert lengths[-1, 1] > 2
    assert host.governor.account.stats.drafted < host.governor.account.stats.offered


def test_what_it_counts_goes_to_the_metrics(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(metrics.FOLDER_VARIABLE, str(tmp_path))
    host = Host(clock, {"a": True, "b": False})
    for _ in range(33):
        host.step()
    [(labels, found)] = metrics.Collector(tmp_path)._read().items()
    assert labels == ("adaptive", "0")
    numbers = dict(zip(metrics._ROWS, found.numbers.tolist(), strict=False))
    assert numbers["steps"] == 33
    assert numbers["rows"] == 66
    assert numbers["requests"] == 2
    assert numbers["offered_tokens"] == 66 * 8
    assert numbers["drafted_tokens"] >= numbers["accepted_tokens"] > 100
    assert numbers["controller_measured_seconds"] > 0.1


def test_the_cost_model_hears_how_much_context_a_step_read(clock: Clock) -> None:
    """It was told 0, so that steps which grew with the context seemed to grow with the drafts."""
    scheduler = SimpleNamespace(
        requests={
            "a": SimpleNamespace(num_computed_tokens=700),
            "b": SimpleNamespace(num_computed_tokens=50),
            "other": SimpleNamespace(num_computed_tokens=9000),
        }
    )
    output = SimpleNamespace(
        finished_req_ids=set(),
        num_scheduled_tokens=dict.fromkeys(("a", "b", "gone"), 9),
        scheduled_spec_decode_tokens={name: [-1] * 8 for name in ("a", "b", "gone")},
    )
    rows = {"a": 0, "b": 1, "gone": 2}
    answer = SimpleNamespace(sampled_token_ids=[[7]] * 3, req_id_to_index=rows)
    seen: list[Any] = []
    cutting = Governor(check("goodput"), 8, 4, scheduler)
    cutting.controller.timed = seen.append  # type: ignore[method-assign]
    cutting.scheduled(output)
    clock.now += 1_000_000
    cutting.sampled(answer)
    telling = LengthGovernor(check("goodput"), 8, 4, scheduler)
    telling.controller.timed = seen.append  # type: ignore[method-assign]
    telling.scheduled(output)
    clock.now += 1_000_000
    telling.sampled(output, answer)
    assert [facts.context for facts in seen] == [750, 750]


def test_counters_of_a_long_lived_engine_do_not_wrap() -> None:
    """Sums of int32 would, after 2**31 draft tokens."""
    governor = LengthGovernor(check("goodput"), 8, 4)
    governor.length(["a", "b"])
    drafts = {"a": [-1] * 8, "b": [-1] * 8}
    output = SimpleNamespace(scheduled_spec_decode_tokens=drafts, num_scheduled_tokens={})
    answer = SimpleNamespace(sampled_token_ids=[[7, 8], [9]], req_id_to_index={"a": 0, "b": 1})
    stats = governor.account.stats
    stats.offered = stats.drafted = 2**31 - 1
    governor.sampled(output, answer)
    counts = [stats.offered, stats.drafted, stats.drafted_rows, stats.accepted]
    assert counts == [2**31 + 15, 2**31 + 15, 2, 1]
    assert {type(count) for count in counts} == {int}


def test_ended_requests_give_their_slots_back(clock: Clock) -> None:
    host = Host(clock, {"0": True})
    for number in range(20):
        host.right = {str(number): True}
        host.step()
        host.ended = {str(number)}
    assert len(host.governor._slots) == 1


def test_a_fault_leaves_the_drafts_alone_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    governor = Guard(Governor(check("goodput"), 8, 4), "drafts are not cut any more")
    with caplog.at_level(logging.ERROR, logger="specplug"):
        assert governor("cut", ["a"], None) is None
        assert governor("cut", ["a"], [[1]]) is None
    assert len(caplog.records) == 1


class PlainScheduler:
    """What :func:`length_scheduler` needs of vLLM's scheduler: reads the table at the end of ``schedule``."""

    def __init__(self, right: int) -> None:
        self.num_spec_tokens = 6
        self.scheduler_config = SimpleNamespace(max_num_seqs=4)
        self.dynamic_sd_lookup: list[int] | None = [6] * 5
        self.running = [SimpleNamespace(request_id=name) for name in ("a", "b")]
        self.right = right
        self.drafts: dict[str, list[int]] = {}
        hot = SimpleNamespace(sampling_params=SimpleNamespace(temperature=1.0), cache_salt="tenant")
        self.requests = {"a": hot}

    def schedule(self) -> SimpleNamespace:
        counts = {r.request_id: 1 + len(self.drafts.get(r.request_id, ())) for r in self.running}
        assert self.dynamic_sd_lookup is not None
        return SimpleNamespace(
            finished_req_ids=set(),
            num_scheduled_tokens=counts,
            scheduled_spec_decode_tokens=dict(self.drafts),
            length=self.dynamic_sd_lookup[len(counts)],
        )

    def update_from_output(self, scheduled: Any, output: Any) -> None:
        """vLLM's own bookkeeping."""


def serve_lengths(scheduler: Any, clock: Clock, right: int, steps: int) -> list[int]:
    """Drafts of which the first ``right`` tokens are accepted; returns the length of every step."""
    lengths = []
    for _ in range(steps):
        output = scheduler.schedule()
        tokens = sum(output.num_scheduled_tokens.values())
        # A draft model's passes cost as well, as many as are drafted now.
        clock.now += 10_000_000 + 100_000 * tokens + 500_000 * output.length
        sampled = [[7] * (1 + min(right, len(scheduler.drafts.get(r, ())))) for r in ("a", "b")]
        answer = SimpleNamespace(sampled_token_ids=sampled, req_id_to_index={"a": 0, "b": 1})
        scheduler.update_from_output(output, answer)
        scheduler.drafts = {r: [-1] * output.length for r in ("a", "b") if output.length}
        lengths.append(output.length)
    return lengths


def test_a_draft_model_is_told_the_length_that_pays(clock: Clock) -> None:
    made = length_scheduler(PlainScheduler, check("goodput"))(3)
    assert 2.5 <= np.mean(serve_lengths(made, clock, 3, 120)[-40:]) < 5
    assert np.mean(serve_lengths(made, clock, 0, 300)[-60:]) < 0.6
    # It returns, by probes.
    assert np.mean(serve_lengths(made, clock, 6, 80)[-30:]) > 4
    assert isinstance(made.governor.governor, LengthGovernor)
    # Requests of another temperature and tenant are learned about apart.
    assert len(made.governor.governor.controller.acceptance._groups) == 2
    assert made.governor.governor.controller.decisions.totals["accepted"] > 100


def test_a_governor_of_lengths_that_fails_leaves_the_configured_one(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    made = length_scheduler(PlainScheduler, check("goodput"))(3)
    made.governor.governor.controller = None
    with caplog.at_level(logging.ERROR, logger="specplug"):
        assert serve_lengths(made, clock, 3, 4) == [6] * 4
    assert len(caplog.records) == 1
