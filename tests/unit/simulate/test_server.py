"""The simulated server: it does what an engine does, and its sums are right."""

from __future__ import annotations

import numpy as np
import pytest

from specplug.control.cost import StepFacts
from specplug.control.fixed import FixedLength
from specplug.control.goodput import GoodputController
from specplug.simulate.acceptance import KINDS, WIDTH, Trace, mixed, recorded, synthetic
from specplug.simulate.hardware import HARDWARE, Hardware
from specplug.simulate.load import BURST, arrivals, change_of_load
from specplug.simulate.server import HICCUP, NOISE, Server
from specplug.types import Context

FLAT = Hardware("flat", "test", "made up", (1, 1000), (0.01, 0.01))


def perfect(requests: int = 4, length: int = 100) -> Trace:
    """Every offer is right to its end."""
    total = requests * length
    left = np.tile(np.arange(length, 0, -1), requests)
    right = np.minimum(left, WIDTH).astype(np.int16)
    survival = np.where(np.arange(WIDTH) < right[:, None], 0.99, 0.0).astype(np.float32)
    starts = np.arange(0, total + 1, length, dtype=np.int64)
    return Trace("perfect", survival, right, starts, np.full(requests, 50, np.int64))


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specplug.simulate.server.NOISE", 0.0)
    monkeypatch.setattr("specplug.simulate.server.HICCUP", 1e12)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("length", "per_step"), [(0, 1), (1, 2), (4, 5)])
def test_perfect_drafts_bring_their_length_and_one_more(length: int, per_step: int) -> None:
    server = Server(perfect(), FLAT, FixedLength(length), rows=1, prefill=False)
    found = server.run(tokens=100)
    assert found.tokens == pytest.approx(100, abs=per_step)
    # One step more, in which the first request enters.
    assert found.steps == pytest.approx(100 / per_step + 1, abs=2)
    assert found.seconds == pytest.approx(0.01 * found.steps)
    assert found.accepted == found.drafted


@pytest.mark.usefixtures("quiet")
def test_prompts_take_time_and_decoding_goes_on_beside_them() -> None:
    slow = Hardware("slow", "test", "made up", (1, 10_000), (0.001, 10.0))
    server = Server(perfect(), slow, FixedLength(0), rows=2)
    server.step()
    assert server.now == pytest.approx(0.1, rel=0.05)  # two prompts of 50
    server.step()
    assert server.outcome.tokens == 2


@pytest.mark.usefixtures("quiet")
def test_requests_wait_for_their_time_and_for_a_row() -> None:
    server = Server(perfect(), FLAT, FixedLength(0), rows=1, arrivals=iter([5.0, 5.1]))
    found = server.run(seconds=20)
    assert found.finished == 2
    assert found.tokens == 200
    assert server.now >= 5.0 + 200 * 0.01


def test_all_controllers_serve_the_same_tokens() -> None:
    trace = synthetic("agent", 20)
    for controller in (
        FixedLength(0),
        FixedLength(16),
        GoodputController(Context(100, 10_000, WIDTH, max_requests=4)),
        GoodputController(Context(100, 10_000, WIDTH, max_requests=4), trims=False),
    ):
        server = Server(trace, HARDWARE["cpu-f32"], controller, rows=4)
        found = server.run(tokens=1500)
        assert 1500 <= found.tokens < 1500 + 4 * (WIDTH + 1)
        assert found.accepted <= found.drafted


def test_the_controller_is_near_the_best_constant_length_and_never_far_below_none() -> None:
    for kind in ("chat", "code edit"):
        trace = synthetic(kind, 60)
        speeds = {}
        for length in (0, 2, 8, 16):
            server = Server(trace, HARDWARE["cpu-f32"], FixedLength(length), 4, prefill=False)
            server.fill()
            speeds[length] = server.run(2500).goodput
        controller = GoodputController(Context(100, 10_000, WIDTH, max_requests=4))
        server = Server(trace, HARDWARE["cpu-f32"], controller, 4, prefill=False)
        server.fill()
        server.run(500)
        found = server.run(2500).goodput
        assert found > 0.93 * max(speeds.values()), kind
        assert found > 0.97 * speeds[0], kind


@pytest.mark.parametrize("kind", list(KINDS))
def test_made_up_text_is_as_calibrated_as_it_says(kind: str) -> None:
    trace = synthetic(kind, 80)
    first = trace.survival[:, 0]
    asked = first > 0
    assert first[asked].mean() == pytest.approx((trace.right[asked] > 0).mean(), abs=0.06)
    assert (trace.right <= trace.offered).all()
    assert (np.diff(trace.survival, axis=1) <= 1e-7).all()


def test_mixed_traces_take_turns() -> None:
    parts = [synthetic("chat", 3), synthetic("agent", 4)]
    both = mixed(parts)
    assert len(both.prompts) == 6
    lengths = np.diff(both.starts)
    assert lengths[0] == np.diff(parts[0].starts)[0]
    assert lengths[1] == np.diff(parts[1].starts)[0]
    assert len(both.right) == both.starts[-1] == len(both.survival)


def test_recorded_text_is_drafted_at_every_position() -> None:
    prompt = np.arange(20, 60, dtype=np.int32)
    response = np.arange(30, 50, dtype=np.int32)
    trace = recorded("copy", [(prompt, response)], "suffix", 100, "a test")
    assert len(trace.right) == 19
    assert trace.right[5] > 4
    assert trace.starts.tolist() == [0, 19]


@pytest.mark.parametrize("name", list(HARDWARE))
def test_step_times_rise_with_everything(name: str) -> None:
    hardware = HARDWARE[name]
    table = hardware.table(2000, 8, 1000)
    assert (np.diff(table) >= 0).all()
    assert hardware.step(8, 8, 100_000) >= hardware.step(8, 8, 0)
    assert NOISE < 0.1 < HICCUP


@pytest.mark.parametrize("process", ["poisson", "bursts"])
def test_requests_come_at_their_rate_alone_or_together(process: str) -> None:
    times = arrivals(process, 5.0)
    assert times is not None
    found = np.array([next(times) for _ in range(4000)])
    assert (np.diff(found) >= 0).all()
    assert 4000 / found[-1] == pytest.approx(5.0, rel=0.25 if process == "bursts" else 0.1)
    together = (np.diff(found) == 0).mean()
    assert together == pytest.approx(0.0 if process == "poisson" else 1 - 1 / BURST, abs=0.05)
    assert arrivals("closed", 5.0) is None


@pytest.mark.parametrize("name", ["h100-8b", "cpu-f32"])
def test_drafts_are_right_within_fifty_steps_of_a_change_of_load(name: str) -> None:
    for row in change_of_load(HARDWARE[name], steps=160):
        assert row["steps until there"] <= 50, row


class Watching(FixedLength):
    """Remembers the prompt tokens of every step."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.prompts: list[int] = []

    def timed(self, facts: StepFacts) -> None:
        self.prompts += [facts.prefill, facts.next_prefill]


def test_drafts_beyond_the_token_budget_take_no_prompt_tokens_away() -> None:
    """256 requests with 16 drafts each are more than a step's token budget of 2,048."""
    watching = Watching(16)
    server = Server(perfect(300, 40), FLAT, watching, rows=256, prefill=False)
    server.fill()
    assert server.run(tokens=20_000).finished > 256
    assert set(watching.prompts) == {0}
