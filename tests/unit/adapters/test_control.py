"""The controller in the adapter, on a stand-in host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specplug.adapters.vllm_v1.setup import captured_sizes
from specplug.adapters.vllm_v1.steps import StepClock
from specplug.control.options import check
from specplug.testing.stub_host import stub_vllm
from specplug.types import TokenArray

PROMPT = list(range(5, 12)) * 3


def noise(history: TokenArray) -> int:
    """A target that repeats nothing."""
    return int((len(history) * 7919) % 997)


def test_step_times_reach_the_controller_and_its_decisions_the_snapshot(make: Any) -> None:
    host, adapter = make(control=check("goodput"))
    host.add("a", PROMPT)
    for _ in range(40):
        host.step()
    found = adapter.snapshot()["controller"]
    assert found["controller"] == "goodput"
    assert 30 <= found["cost_steps"] <= 40  # a step that took many times the usual is left out
    assert found["plain_step_seconds"] > 0
    assert found["decisions"] == 40
    assert found["accepted"] > 0
    assert adapter.faults == 0


def test_text_is_the_plain_one_whatever_the_controller(make: Any) -> None:
    texts = []
    for control in (None, check("goodput"), check({"name": "fixed", "length": 2})):
        host, _ = make(control=control)
        host.add("a", PROMPT)
        while len(host.running["a"].tokens) < 120:
            host.step()
        texts.append(host.running["a"].tokens[:120])
    assert texts[0] == texts[1] == texts[2]


def test_a_hopeless_request_gets_fewer_drafts_than_a_repeating_one(make: Any) -> None:
    host, _ = make(control=check("goodput"))
    host.add("a", PROMPT)
    host.add("b", PROMPT, target=noise)
    drafted = np.zeros(2)
    for _ in range(100):
        drafted += [len(draft) for draft in host.step()]
    assert drafted[1] < 0.3 * drafted[0]


def test_the_hosts_own_limit_holds_above_the_controller(make: Any) -> None:
    host, _ = make(control=check("goodput"))
    host.add("a", PROMPT)
    for planned in (2, 0, 1):
        assert len(host.step(planned=planned)[0]) <= planned


def test_prefill_and_drafts_are_told_apart() -> None:
    clock = StepClock()
    clock.begin(
        SimpleNamespace(
            num_scheduled_tokens={"a": 4, "b": 100, "c": 1},
            scheduled_spec_decode_tokens={"a": [1, 2, 3]},
        )
    )
    facts = clock.sampled(1, 240)
    assert facts is not None
    assert facts.tokens == 105
    assert facts.requests == 3
    assert facts.prefill == facts.next_prefill == 99
    assert facts.context == 240
    assert facts.seconds > 0
    assert clock.sampled(0, 10) is None, "a step is timed once"


def test_waiting_for_requests_is_not_part_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("specplug.adapters.vllm_v1.steps.perf_counter_ns", lambda: now[0])
    clock, output = StepClock(), SimpleNamespace(num_scheduled_tokens={"a": 1})
    for wait in [1_000_000] * 5 + [9_000_000_000]:
        now[0] += wait
        clock.begin(output)
        now[0] += 10_000_000
        facts = clock.sampled(0, 1)
        now[0] += 500_000
        clock.drafted(500_000)
    assert facts is not None
    assert facts.seconds == pytest.approx(0.0115)
    assert facts.host == pytest.approx(0.0005)


def test_steps_without_tokens_and_hosts_that_do_not_tell_are_not_timed() -> None:
    clock = StepClock()
    clock.begin(SimpleNamespace(num_scheduled_tokens={}))
    assert clock.sampled(0, 0) is None
    clock.begin(SimpleNamespace())
    assert clock.sampled(0, 0) is None


@pytest.mark.parametrize(("mode", "expected"), [(None, []), ("NONE", []), ("PIECEWISE", [1, 2, 4])])
def test_captured_shapes_count_where_graphs_are_used(mode: Any, expected: list[int]) -> None:
    named = None if mode is None else SimpleNamespace(name=mode)
    compilation = SimpleNamespace(cudagraph_mode=named, cudagraph_capture_sizes=[1, 2, 4])
    with stub_vllm():
        assert captured_sizes(SimpleNamespace(compilation_config=compilation)) == expected
        assert captured_sizes(SimpleNamespace()) == []
