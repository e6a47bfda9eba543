"""The cost model: flat, knee, slope and stairs are found; nonsense is left out."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest

from specplug.control.cost import CostModel, StepFacts
from specplug.control.costfile import KNOTS, CostSeed, read_seed, write_seed


def roofline(
    tokens: float, flat: float = 0.04, slope: float = 0.00185, start: float = 0.027
) -> float:
    return max(flat, start + slope * tokens)


def teach(
    model: CostModel, truth, steps: int = 300, most: int = 64, noise: float = 0.05, seed: int = 0
) -> None:
    coins = np.random.default_rng(seed)
    for _ in range(steps):
        tokens = int(coins.integers(1, most + 1))
        seconds = truth(tokens) * math.exp(noise * coins.standard_normal())
        model.observe(StepFacts(seconds, tokens, 1))


@pytest.mark.parametrize("flat", [0.04, 0.09, 0.02])
def test_a_knee_is_found(flat: float) -> None:
    model = CostModel()
    teach(model, lambda n: roofline(n, flat))
    for tokens in (1, 4, 8, 16, 32, 64):
        assert model.seconds(tokens, 1) == pytest.approx(roofline(tokens, flat), rel=0.12)


def test_stairs_of_captured_shapes_are_stairs() -> None:
    captured = [1, 2, 4, 8, 16, 32, 64]
    model = CostModel(captured)
    teach(model, lambda n: 0.01 + 0.001 * captured[int(np.searchsorted(captured, n))])
    table = model.table(1, 63, 1)
    assert table[16] == table[31]  # 17 and 32 tokens
    assert table[16] > 1.2 * table[15]
    assert model.seconds(20, 1) == pytest.approx(0.042, rel=0.1)


def test_costs_never_fall_with_tokens() -> None:
    model = CostModel()
    teach(model, lambda n: 0.02, noise=0.3)
    assert (np.diff(model.table(1, 500, 1)) >= 0).all()


def test_context_is_told_apart_from_tokens() -> None:
    model = CostModel()
    coins = np.random.default_rng(1)
    for _ in range(500):
        tokens, context = int(coins.integers(1, 33)), int(coins.integers(0, 50_000))
        model.observe(StepFacts(0.01 + 0.0002 * tokens + 2e-7 * context, tokens, 1, context))
    assert model.seconds(8, 1, 40_000) == pytest.approx(0.0196, rel=0.1)
    assert model.seconds(8, 1, 0) == pytest.approx(0.0116, rel=0.1)


def test_a_slow_start_and_some_slow_steps_change_little() -> None:
    calm, rough = CostModel(), CostModel()
    teach(calm, roofline)
    for _ in range(2):
        rough.observe(StepFacts(3.0, 1, 1))
    coins = np.random.default_rng(0)
    for _ in range(300):
        tokens = int(coins.integers(1, 65))
        slow = 8.0 if coins.random() < 0.03 else 1.0
        rough.observe(StepFacts(slow * roofline(tokens), tokens, 1))
    a, b = (m.table(1, 32, 1) / m.table(1, 0, 1)[0] for m in (calm, rough))
    assert np.abs(a / b - 1).max() < 0.2


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, -math.inf, 1e9])
def test_impossible_steps_are_left_out_with_one_warning(
    seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    model = CostModel()
    teach(model, roofline, 50)
    before = model.seconds(8, 1)
    with caplog.at_level(logging.WARNING):
        model.observe(StepFacts(seconds, 8, 1))
        model.observe(StepFacts(seconds, 8, 1))
    assert model.seconds(8, 1) == before
    assert model.rejected == 2
    assert len(caplog.records) == 1


def test_a_machine_that_became_slow_for_good_is_believed() -> None:
    model = CostModel()
    teach(model, roofline, 100)
    teach(model, lambda n: 50 * roofline(n), 600)
    assert model.seconds(8, 1) == pytest.approx(50 * roofline(8), rel=0.3)


def test_a_seed_is_where_it_starts_and_can_be_wrong() -> None:
    relative = tuple(max(1.0, k / 8) for k in KNOTS)
    model = CostModel(seed=CostSeed(relative))
    assert model.seconds(64, 1) == pytest.approx(8.0, rel=0.01)
    teach(model, lambda n: 0.01)
    assert model.seconds(64, 1) == pytest.approx(0.01, rel=0.25)


def test_a_cost_file_goes_there_and_back(tmp_path: Path) -> None:
    seed = CostSeed(tuple(1.0 + 0.1 * i for i in range(len(KNOTS))), "this", "a test")
    write_seed(tmp_path / "cost.json", seed)
    assert read_seed(tmp_path / "cost.json", "this") == seed


@pytest.mark.parametrize("how", ["other machine", "not json", "negative", "missing key", "version"])
def test_a_foreign_or_broken_cost_file_is_left_alone_with_one_warning(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cost.json"
    write_seed(path, CostSeed((1.0,) * len(KNOTS), "another" if how == "other machine" else "this"))
    content = json.loads(path.read_text())
    if how == "negative":
        content["relative"][3] = -1
    if how == "missing key":
        del content["tokens"]
    if how == "version":
        content["version"] = 99
    path.write_text("{" if how == "not json" else json.dumps(content))
    assert read_seed(path, "this") is None
    assert len(caplog.records) == 1
    assert "cost.json" in caplog.text


def test_one_slow_step_does_not_close_a_range_of_lengths_for_good() -> None:
    """The only step with more than four tokens took three times as long; the others say that tokens are free."""
    model = CostModel()
    coins = np.random.default_rng(0)
    for step in range(30):
        tokens = 6 if step == 9 else int(coins.integers(1, 5))
        slow = 3.0 if step == 9 else 1.0
        model.observe(StepFacts(0.01 * slow * math.exp(0.03 * coins.standard_normal()), tokens, 1))
    table = model.table(1, 15, 1)
    assert table[5] / table[0] < 2.0
    teach(model, roofline, 100)  # where it is slow in truth, that is found out
    assert model.seconds(32, 1) > 1.6 * model.seconds(1, 1)


def test_steps_with_prompts_may_take_longer_than_their_tokens_say() -> None:
    """Other kernels run in them."""
    model, coins = CostModel(), np.random.default_rng(0)

    def truth(tokens: int, prompt: int) -> float:
        return 0.02 + 0.0001 * tokens + (0.006 if prompt else 0.0)

    for _ in range(400):
        prompt = int(coins.integers(0, 2)) * int(coins.integers(100, 600))
        tokens = 4 + int(coins.integers(0, 200)) + prompt
        model.observe(StepFacts(truth(tokens, prompt), tokens, 4, prefill=prompt))
    assert model.seconds(104, 4) == pytest.approx(truth(104, 0), rel=0.05)
    assert model.seconds(404, 4, 0, 380) == pytest.approx(truth(404, 380), rel=0.05)
