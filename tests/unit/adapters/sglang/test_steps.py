"""Controllers learn how long decode steps took, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from specplug.adapters.sglang_srt.steps import StepClock
from specplug.control.cost import StepFacts


def test_a_step_is_timed_until_the_next_one_begins() -> None:
    seen: list[StepFacts] = []
    session: Any = SimpleNamespace(controller=SimpleNamespace(timed=seen.append))
    clock = StepClock()
    clock.begin(1_000_000_000, session)
    clock.shape(rows=2, width=5, context=40, host=1_000_000)
    assert not seen
    clock.begin(1_500_000_000, session)
    assert seen == [StepFacts(0.5, 10, 2, 40, host=0.001)]


def test_a_step_before_a_prefill_is_not_timed() -> None:
    seen: list[StepFacts] = []
    session: Any = SimpleNamespace(controller=SimpleNamespace(timed=seen.append))
    clock = StepClock()
    clock.begin(1, session)
    clock.shape(1, 1, 9, 0)
    clock.interrupt()
    clock.begin(2, session)
    assert not seen


def test_a_controller_that_does_not_ask_is_not_told() -> None:
    clock = StepClock()
    for now in (1, 2):
        clock.begin(now, SimpleNamespace(controller=object()))  # type: ignore[arg-type]
        clock.shape(1, 1, 9, 0)
    clock.begin(3, None)


def test_a_controller_that_fails_is_not_told_again() -> None:
    calls: list[StepFacts] = []

    def failing(facts: StepFacts) -> None:
        calls.append(facts)
        raise RuntimeError("no")

    session: Any = SimpleNamespace(controller=SimpleNamespace(timed=failing))
    clock = StepClock()
    for now in range(1, 5):
        clock.begin(now, session)
        clock.shape(1, 1, 9, 0)
    assert len(calls) == 1
