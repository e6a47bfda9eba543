"""A search beside live traffic: what it may take of the time, and which text it looks at."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from specplug.adapters.vllm_v1.layer_probe import WINDOW, window_of
from specplug.layers.plan import Plan
from specplug.layers.policy import Feedback, Trial
from specplug.proposers.layerskip import searching
from specplug.proposers.layerskip.searching import POLICIES, Search
from specplug.proposers.layerskip.swift import Swift

LAYERS = 8


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(searching.time, "perf_counter", lambda: self.now)


class Asking:
    """A policy whose questions take ``cost`` seconds."""

    layers = LAYERS

    def __init__(self, clock: Clock, cost: float) -> None:
        self.clock, self.cost, self.asked = clock, cost, []

    def plan(self) -> Plan:
        return Plan.early_exit(LAYERS, 2)

    def observe(self, feedback: Feedback, probe: object) -> None:
        self.clock.now += self.cost
        self.asked.append(probe)


class Executor:
    """Requests named by a digit have text, others have not."""

    def probe(self, request_id: str) -> str | None:
        return request_id if request_id.isdigit() else None


@pytest.mark.parametrize(("share", "looks"), [(0.05, 25), (0.5, 250), (0.0, 0)])
def test_a_search_takes_its_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, share: float, looks: int
) -> None:
    """1000 steps of 10 ms; a question takes twice as long as a step, the first is asked at once."""
    clock = Clock(monkeypatch)
    policy = Asking(clock, 0.02)
    search = Search(policy, share)
    for _ in range(1000):
        clock.now += 0.01
        search.look(Executor(), ["1", "2"])
    assert search.looks == pytest.approx(looks, rel=0.05)
    if share:
        assert search.seconds == pytest.approx(0.02 * search.looks)
        assert set(policy.asked) == {"1", "2"}


def test_idle_time_is_not_saved_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    search = Search(Asking(clock, 1.0), 0.05)
    search.look(Executor(), ["1"])
    clock.now += 3600.0
    for _ in range(100):
        search.look(Executor(), ["1"])
    assert search.looks == 1


def test_requests_without_text_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    policy = Asking(clock, 0.0)
    search = Search(policy, 1.0)
    for _ in range(3):
        search.look(Executor(), ["a", "b", "1"])
    assert policy.asked == ["1"] * 3


def test_the_whole_model_is_no_plan() -> None:
    assert Search.fixed(Plan.full(LAYERS)).plan() is None
    assert Search.fixed(Plan.early_exit(LAYERS, 3)).plan() == Plan.early_exit(LAYERS, 3)


def test_first_plans_are_had_without_compiled_code() -> None:
    """vLLM scans all modules when it starts on a CPU, and fails at one that numba brings along."""
    code = (
        "import sys; from specplug.proposers.layerskip.proposer import LayerSkipSettings as S; "
        "[S(policy=name).plan(8) for name in ('swift', 'clasp', 'conflayers')]; "
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_finds_what_costs_nothing(name: str) -> None:
    """Layers 2, 4 and 5 do nothing; all others turn the state."""
    policy = POLICIES[name](LAYERS, 3 / LAYERS)
    search = Search(policy, 1e9)
    for _ in range(400):
        search.look(Turning(), ["1"])
    plan = search.plan()
    assert plan is not None
    if isinstance(policy, Swift):
        assert policy.best_score > 0.7
    else:
        assert set(np.flatnonzero(~np.array(plan.attention))) <= {2, 4, 5}


class Turning:
    """An executor and its probe, over a model of ``LAYERS`` layers whose idle ones can be left out unnoticed."""

    layers = LAYERS
    idle = (2, 4, 5)

    def probe(self, request_id: str) -> Turning:
        return self

    def states(self) -> np.ndarray:
        found = [np.ones((1, LAYERS))]
        for layer in range(LAYERS):
            found.append(self.run_layer(layer, found[-1]))
        return np.concatenate(found)

    def run_layer(self, layer: int, states: np.ndarray) -> np.ndarray:
        change = np.eye(LAYERS)[layer] * (0.0 if layer in self.idle else 3.0)
        return states + change

    def try_plan(self, plan: Plan) -> Trial:
        needed = [i for i in range(LAYERS) if i not in self.idle]
        missed = sum((not plan.attention[i]) + (not plan.mlp[i]) for i in needed)
        return Trial(max(0, 10 - 2 * missed), 10, 1.0 / (1 + missed))

    def outputs(self) -> tuple[np.ndarray, np.ndarray]:
        peaked = np.zeros((LAYERS, 4, LAYERS))
        peaked[:, :, 0] = [[0.0 if i in self.idle else 8.0 + 0.1 * i] for i in range(LAYERS)]
        return peaked, peaked


@pytest.mark.parametrize(
    ("known", "prompt", "block", "window"),
    [
        (21, 10, 128, (9, 11)),  # what the output was predicted from, the newest token out
        (200, 10, 128, (199 - WINDOW, WINDOW)),
        (140, 10, 128, (128, 11)),  # the last block only
        (129, 10, 128, (128 - WINDOW, WINDOW)),  # its last token is the last in the cache
        (130, 10, 128, (128, 1)),
        (10, 10, 16, (9, 0)),  # nothing is output yet
        (11, 10, 16, (9, 1)),
        (1, 1, 16, (0, 0)),
    ],
)
def test_a_probe_looks_at_output_in_the_last_block(
    known: int, prompt: int, block: int, window: tuple[int, int]
) -> None:
    assert window_of(known, prompt, block) == window
    start, span = window
    if span:
        assert start // block == (start + span - 1) // block
