"""``specplug.adaptive``: what users write, and the governor beside a scheduler."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specplug.adapters.vllm_v1 import adaptive, install, steps
from specplug.adapters.vllm_v1.adaptive import Governor, translate
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
        ({"specplug": {"inner": {"method": "eagle3"}}}, "one of ngram, got 'eagle3'"),
        ({"specplug": {"inner": INNER, "controler": 1}}, "did you mean 'controller'"),
        ({"specplug": {"inner": INNER, "controller": "fixed"}}, "must be 'goodput'"),
        ({"num_speculative_tokens": 0}, "at least 1"),
        ({"prompt_lookup_max": 3}, "into the inner configuration"),
    ],
)
def test_mistakes_are_refused_with_what_would_be_right(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        translate({**GOOD, **change})


def test_a_second_scheduler_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.requirements, "require", lambda: "")
    monkeypatch.setattr(install.salts, "carry", lambda load=False: None)
    wrapped = install.wrap(lambda self: self.speculative_config)
    ours = SimpleNamespace(speculative_config=GOOD, scheduler_cls=None)
    assert wrapped(ours)["method"] == "ngram"
    assert ours.scheduler_cls.startswith(adaptive.__name__)
    theirs = SimpleNamespace(speculative_config=GOOD, scheduler_cls="mine.Scheduler")
    with pytest.raises(SettingsError, match=r"mine\.Scheduler"):
        wrapped(theirs)


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
    for module in (adaptive, steps):
        monkeypatch.setattr(module, "perf_counter_ns", made)
    return made


class Host:
    """A scheduler and a model that copies its drafts, or never does, for one request each."""

    def __init__(self, clock: Clock, right: dict[str, bool]) -> None:
        self.clock = clock
        self.right = right
        self.governor = Governor(check("goodput"), 8, 4)
        self.drafts: dict[str, list[int]] = {}
        self.ended: set[str] = set()

    def step(self) -> dict[str, list[int]]:
        ids = list(self.right)
        self.governor.guarded(
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
        self.governor.guarded(
            "sampled",
            SimpleNamespace(
                sampled_token_ids=sampled, req_id_to_index={r: i for i, r in enumerate(ids)}
            ),
        )
        kept = self.governor.guarded("cut", ids, [list(range(100, 108)) for _ in ids])
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
    assert host.governor.drafted < host.governor.offered


def test_ended_requests_give_their_slots_back(clock: Clock) -> None:
    host = Host(clock, {"0": True})
    for number in range(20):
        host.right = {str(number): True}
        host.step()
        host.ended = {str(number)}
    assert len(host.governor._slots) == 1


def test_a_fault_leaves_the_drafts_alone_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    governor = Governor(check("goodput"), 8, 4)
    with caplog.at_level(logging.ERROR, logger="specplug"):
        assert governor.guarded("cut", ["a"], None) is None
        assert governor.guarded("cut", ["a"], [[1]]) is None
    assert len(caplog.records) == 1
