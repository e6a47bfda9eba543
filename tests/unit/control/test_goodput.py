"""The goodput controller as a whole, driven as a session and an adapter drive it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.control.cost import CostModel, StepFacts
from specplug.control.costfile import KNOTS, read_seed
from specplug.control.goodput import GoodputController
from specplug.control.options import GoodputSettings
from specplug.testing import check_controller
from specplug.types import LENGTH_DTYPE, Context, Request

WIDTH = 16


def array(values: object) -> np.ndarray:
    return np.array(values, LENGTH_DTYPE)


def compute_bound(tokens: float) -> float:
    return 0.027 + 0.0019 * tokens


def memory_bound(tokens: float) -> float:
    return max(0.01, 0.01 * tokens / 300)


class Server:
    """Serves a fixed batch; ``claim`` and ``truth`` give each row's chance per position, claimed and real."""

    def __init__(
        self,
        rows: int,
        step_time: Callable[[float], float] = compute_bound,
        *,
        trims: bool = True,
        settings: GoodputSettings | None = None,
        width: int = WIDTH,
    ) -> None:
        context = Context(1000, 4096, width, max_requests=max(rows, 2))
        self.controller = GoodputController(context, settings, trims=trims)
        self.rows, self.width = rows, width
        self.step_time = step_time
        self.coins = np.random.default_rng(0)
        self.emitted = self.seconds = self.drafted = 0.0
        self.lengths = np.zeros(rows, LENGTH_DTYPE)
        for slot in range(rows):
            self.controller.begin(slot, Request(str(slot), 10))

    def step(self, claim: np.ndarray, truth: np.ndarray, offered: int | None = None) -> np.ndarray:
        """Verify what was planned, then plan; returns the new lengths."""
        controller, rows = self.controller, self.rows
        total = rows + int(self.lengths.sum())
        seconds = self.step_time(total)
        controller.timed(StepFacts(seconds, total, rows))
        hits = self.coins.random((rows, self.width)) < truth[:, None]
        right = np.where(hits.all(axis=1), self.width, hits.argmin(axis=1)).astype(LENGTH_DTYPE)
        accepted = np.minimum(right, self.lengths)
        slots = np.arange(rows, dtype=LENGTH_DTYPE)
        if controller.trims and controller.decisions.step:
            reach = np.minimum(self.offered, accepted + 1)
            agreed = np.minimum(right, reach)
            controller.compare(slots, np.minimum(agreed + 1, reach).astype(LENGTH_DTYPE), agreed)
        drafted = np.flatnonzero(self.lengths)
        if len(drafted):
            controller.observe(slots[drafted], self.lengths[drafted], accepted[drafted])
        self.emitted += rows + int(accepted.sum())
        self.drafted += int(self.lengths.sum())
        self.seconds += seconds
        limits = np.full(rows, self.width if offered is None else offered, LENGTH_DTYPE)
        lengths = np.zeros(rows, LENGTH_DTYPE)
        controller.plan(slots, limits, lengths)
        assert ((lengths >= 0) & (lengths <= limits)).all()
        if controller.trims:
            self.offered = lengths.copy()
            survival = np.cumprod(np.tile(claim[:, None], (1, self.width)), axis=1)
            controller.trim(slots, survival, lengths)
            assert ((lengths >= 0) & (lengths <= self.offered)).all()
        self.lengths = lengths
        return lengths

    def serve(self, claim: object, truth: object, steps: int) -> float:
        """Tokens per second over some steps."""
        self.emitted = self.seconds = self.drafted = 0.0
        for _ in range(steps):
            self.step(np.broadcast_to(claim, self.rows), np.broadcast_to(truth, self.rows))
        return self.emitted / self.seconds

    def plain(self) -> float:
        """Tokens per second without drafts."""
        return self.rows / self.step_time(self.rows)


@pytest.mark.parametrize("trims", [True, False])
@pytest.mark.parametrize("rows", [1, 4])
def test_hopeless_text_is_served_as_fast_as_without_drafts(trims: bool, rows: int) -> None:
    server = Server(rows, trims=trims)
    server.serve(0.5, 0.02, 100)
    assert server.serve(0.5, 0.02, 1000) > 0.985 * server.plain()


@pytest.mark.parametrize("trims", [True, False])
@pytest.mark.parametrize("rows", [1, 8])
def test_after_a_thousand_hopeless_steps_repeating_text_is_used_within_twenty(
    trims: bool, rows: int
) -> None:
    server = Server(rows, trims=trims)
    server.serve(0.8, 0.0, 1000)
    assert server.drafted < 120 * rows
    server.serve(0.8, 0.98, 20)
    assert server.lengths.min() >= 1
    assert server.lengths.mean() >= 2


@pytest.mark.parametrize("claim", [0.0, 1.0, math.nan, math.inf, -3.0, 0.999])
@pytest.mark.parametrize("truth", [0.0, 0.6])
def test_a_lying_proposer_costs_little(claim: float, truth: float) -> None:
    server = Server(4)
    server.serve(claim, truth, 50)
    assert server.serve(claim, truth, 500) > 0.98 * server.plain()


def test_a_looping_request_is_drafted_for_and_its_prose_neighbours_are_not() -> None:
    server = Server(8)
    chances = np.array([0.98] + [0.05] * 7)
    server.serve(chances, chances, 200)
    lengths = np.mean([server.step(chances, chances) for _ in range(50)], axis=0)
    assert lengths[0] > 6
    assert lengths[1:].max() < 0.3


def test_a_memory_bound_engine_verifies_more_than_a_compute_bound_one() -> None:
    found = []
    for step_time in (memory_bound, compute_bound):
        server = Server(4, step_time)
        server.serve(0.7, 0.7, 300)
        server.serve(0.7, 0.7, 100)
        found.append(server.drafted / 400)
    assert found[0] > 8
    assert found[1] < 4


def test_drafts_come_back_after_the_machine_was_busy_whenever_there_were_some() -> None:
    """Found in vLLM on a CPU: only short steps followed, and none of them tells that long ones are cheap again."""
    server = Server(8, lambda tokens: 0.15 + 0.001 * tokens, width=8)
    for _ in range(24):
        server.controller.timed(StepFacts(0.158, 8, 8))
        server.controller.timed(StepFacts(0.45, 16, 8))
    server.serve(0.9, 1.0, 40)
    assert server.lengths.sum() == 8 * 8, server.lengths


def test_what_costs_more_than_it_brings_is_tried_ever_more_rarely() -> None:
    """A doubt about the cost of long steps must not become a cost itself."""
    server = Server(8, lambda tokens: 0.01 * tokens)
    server.serve(0.7, 0.7, 200)
    assert server.serve(0.7, 0.7, 1000) > 0.985 * server.plain()
    assert server.drafted < 300


def test_nothing_is_drafted_beyond_the_cap_or_the_promised_step_time() -> None:
    capped = Server(4, memory_bound, settings=GoodputSettings(max_draft_tokens=5))
    capped.serve(0.95, 0.95, 50)
    assert capped.lengths.sum() <= 5
    promised = Server(1, compute_bound, settings=GoodputSettings(slo_ms=40.0))
    promised.serve(0.95, 0.95, 200)
    assert promised.step_time(1 + int(promised.lengths.sum())) < 0.043
    assert promised.lengths.sum() >= 2


def test_latency_mode_is_fair_to_the_request_that_agrees_less() -> None:
    chances, drafted = np.array([0.95, 0.6]), []
    for mode in ("throughput", "latency"):
        server = Server(2, memory_bound, settings=GoodputSettings(mode=mode))  # type: ignore[arg-type]
        server.serve(chances, chances, 100)
        plans = [server.step(chances, chances) for _ in range(50)]
        drafted.append(np.mean([plan[1] / max(1, plan.sum()) for plan in plans]))
    assert drafted[1] >= drafted[0]


@pytest.mark.parametrize("trims", [True, False])
def test_common_lengths_only_where_the_engine_needs_them(trims: bool) -> None:
    context = Context(100, 4096, 8, max_requests=4)
    controller = GoodputController(context, trims=trims, actions=(0, 3, 7))
    slots = np.arange(4, dtype=LENGTH_DTYPE)
    seen = set()
    for step in range(300):
        right = 8 if step % 100 < 50 else 0
        lengths = array([0] * 4)
        controller.plan(slots, array([8] * 4), lengths)
        if trims:
            controller.trim(slots, np.tile(0.8 ** np.arange(1, 9), (4, 1)), lengths)
            agreed = np.minimum(array([right] * 4), lengths + 1).astype(LENGTH_DTYPE)
            controller.compare(
                slots, np.minimum(agreed + 1, lengths + 1).astype(LENGTH_DTYPE), agreed
            )
        assert len(set(lengths.tolist())) == 1
        seen.add(int(lengths[0]))
        if lengths.any():
            controller.observe(slots, lengths, np.minimum(lengths, right).astype(LENGTH_DTYPE))
    assert seen <= {0, 3, 7}
    assert len(seen) >= 2


@given(
    seconds=st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40),
    survival=st.floats(allow_nan=True, allow_infinity=True),
    trims=st.booleans(),
)
def test_no_clock_and_no_estimate_can_raise(
    seconds: list[float], survival: float, trims: bool
) -> None:
    controller = GoodputController(Context(10, 64, 4, max_requests=2), trims=trims)
    slots, limits = array([0, 1]), array([4, 2])
    for value in seconds:
        controller.timed(StepFacts(value, 3, 2, host=value, next_prefill=-9))
        lengths = array([0, 0])
        controller.plan(slots, limits, lengths)
        if trims:
            controller.trim(slots, np.full((2, 4), survival), lengths)
            controller.compare(slots, array([1, 1]), array([0, 1]))
        assert ((lengths >= 0) & (lengths <= limits)).all()


@pytest.mark.parametrize("trims", [True, False])
@pytest.mark.parametrize("actions", [None, (0, 2, 4)])
def test_it_passes_the_kit(trims: bool, actions: tuple[int, ...] | None) -> None:
    context = Context(100, 64, 9, max_requests=8)
    check_controller(
        lambda: GoodputController(context, trims=trims, actions=actions), max_examples=8
    )


def test_decisions_can_be_read_afterwards(tmp_path: Path) -> None:
    server = Server(2)
    server.serve(0.9, 0.9, 50)
    last = server.controller.decisions.last(10)
    assert last["step"].tolist() == list(range(40, 50))
    assert (last["offered"] == 2 * WIDTH).all()
    known = last[:-1]
    assert known["measured"] == pytest.approx(known["predicted"], rel=0.3)
    totals = server.controller.as_dict()
    assert totals["decisions"] == 50
    assert totals["expected"] == pytest.approx(totals["accepted"], rel=0.4)
    server.controller.decisions.write(str(tmp_path / "decisions.csv"))
    lines = (tmp_path / "decisions.csv").read_text().splitlines()
    assert len(lines) == 51
    assert lines[0].startswith("step,rows,offered,budget,drafted")
    assert lines[-1].endswith("plan")


def test_asking_for_drafts_is_left_out_where_it_costs_more_than_it_brings() -> None:
    context = Context(100, 4096, 4, max_requests=2)
    controller = GoodputController(context, cost=CostModel())
    slots, asked = array([0, 1]), 0
    for _ in range(200):
        controller.timed(StepFacts(0.01, 2, 2, host=0.004))
        lengths = array([0, 0])
        controller.plan(slots, array([4, 4]), lengths)
        asked += int(np.count_nonzero(lengths))
        offered = lengths.copy()
        controller.trim(slots, np.full((2, 4), 0.5), lengths)
        rows = np.flatnonzero(offered)
        controller.compare(slots[rows], array([1] * len(rows)), array([0] * len(rows)))
    assert asked < 250


def test_what_was_measured_is_written_and_is_where_the_next_run_starts(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    server = Server(4, settings=GoodputSettings(cost_file=str(path)))
    server.serve(0.8, 0.8, 250)
    seed = read_seed(path, "")
    assert seed is not None
    fresh = CostModel(seed=seed)
    ratio = fresh.table(4, 32, 4)[32] / fresh.table(4, 0, 4)[0]
    assert ratio == pytest.approx(compute_bound(36) / compute_bound(4), rel=0.2)


def test_a_cost_file_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(1, settings=GoodputSettings(cost_file=str(tmp_path / "none" / "cost.json")))
    server.serve(0.8, 0.8, 2300)
    assert len(caplog.records) == 1


def drafts_beside_prefill(slope: float, chance: float, prompt: int) -> int:
    """Draft tokens of four requests in a step with so many prompt tokens; slope in plain steps per token."""
    context = Context(1000, 4096, WIDTH, max_requests=4)
    controller = GoodputController(context)
    slots = np.arange(4, dtype=LENGTH_DTYPE)
    coins = np.random.default_rng(0)
    for _ in range(200):
        # It has seen steps of all sizes before.
        tokens = int(4 + coins.integers(0, 2000 if prompt else 64))
        prefill = max(0, tokens - 68)
        seconds = 0.01 * (1 + slope * (tokens - 4))
        controller.timed(StepFacts(seconds, tokens, 4, prefill=prefill, next_prefill=prompt))
    lengths = array([0] * 4)
    controller.plan(slots, array([WIDTH] * 4), lengths)
    controller.trim(slots, np.tile(chance ** np.arange(1, WIDTH + 1), (4, 1)), lengths)
    return int(lengths.sum())


def test_a_draft_beside_a_long_prompt_competes_with_steps_to_come() -> None:
    """The step takes long anyway, so by its own ratio anything would pay; the drafts are no cheaper for that."""
    for slope, chance in ((0.2, 0.3), (0.05, 0.7)):
        alone = drafts_beside_prefill(slope, chance, 0)
        beside = drafts_beside_prefill(slope, chance, 1000)
        assert beside <= 1.5 * alone + 2, (slope, chance)
    # Where drafts cost next to nothing they are made, prompt or not.
    assert drafts_beside_prefill(0.002, 0.9, 1000) > 30
    assert drafts_beside_prefill(0.05, 0.1, 1000) == 0


def test_the_gain_is_that_over_the_engine_without_us() -> None:
    """Its steps would be shorter by what waiting for drafts costs."""
    gains = []
    for loss in (0.0, 5.0):
        server = Server(1, settings=GoodputSettings(async_loss_ms=loss))
        server.serve(0.9, 0.9, 400)
        plain = compute_bound(1) - loss / 1e3
        real = server.emitted / server.seconds * plain
        gains.append(server.controller.as_dict()["gain"])
        assert gains[-1] == pytest.approx(real, rel=0.08)
    assert gains[0] > gains[1] > 1


def test_it_says_once_when_speculation_is_not_worth_having(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(1, settings=GoodputSettings(async_loss_ms=5.0))
    server.serve(0.5, 0.02, 5500)
    warnings = [r.getMessage() for r in caplog.records]
    assert len(warnings) == 1
    assert "leave it out" in warnings[0]


def test_a_file_of_calibrate_is_read_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    relative = [compute_bound(k) / compute_bound(1) for k in KNOTS]
    points = [{"tokens": 1, "seconds": compute_bound(1)}]
    content = {"version": 1, "machine": "m", "tokens": list(KNOTS), "relative": relative}
    path.write_text(json.dumps({**content, "points": points}))
    seed = read_seed(path, "m")
    assert seed is not None
    assert seed.relative == pytest.approx(relative)
    before = path.read_text()
    server = Server(4, settings=GoodputSettings(cost_file=str(path)))
    server.serve(0.8, 0.8, 250)
    assert path.read_text() == before
