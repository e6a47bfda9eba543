"""The plan against brute force over all lengths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specplug.control.plan import spend, spend_uniform
from specplug.reference.spending import latency_gains

Floats = NDArray[np.float64]


def brute_force(survival: Floats, costs: Floats, latency: bool) -> float:
    """The best ratio to no drafts, by trying every combination of lengths."""
    rows, width = survival.shape
    best = 1.0
    for lengths in itertools.product(range(width + 1), repeat=rows):
        total = sum(lengths)
        if total >= len(costs):
            continue
        tokens = [1.0 + survival[i, :n].sum() for i, n in enumerate(lengths)]
        if latency:
            ratio = rows * costs[0] / (costs[total] * sum(1.0 / t for t in tokens))
        else:
            ratio = sum(tokens) / costs[total] * costs[0] / rows
        best = max(best, ratio)
    return best


@st.composite
def steps(draw: st.DrawFn) -> tuple[Floats, Floats]:
    rows, width = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    chance = st.floats(0.0, 1.0).map(lambda x: round(x, 3))
    chances = [[draw(chance) for _ in range(width)] for _ in range(rows)]
    cap = draw(st.integers(0, rows * width))
    kind = draw(st.sampled_from(["concave", "convex", "stairs", "any"]))
    n = np.arange(cap + 1, dtype=float)
    if kind == "concave":
        costs = 1.0 + draw(st.floats(0.0, 0.5)) * np.sqrt(n)
    elif kind == "convex":
        costs = np.maximum(1.0, draw(st.floats(0.01, 1.0)) * n)
    elif kind == "stairs":
        costs = 1.0 + draw(st.floats(0.0, 0.5)) * np.ceil(n / draw(st.integers(1, 4)))
    else:
        costs = 1.0 + np.cumsum([draw(st.floats(0.0, 0.5)) for _ in n])
    return np.cumprod(np.array(chances), axis=1), costs


@given(step=steps(), latency=st.booleans())
def test_the_plan_is_the_best_of_all_for_any_cost(
    step: tuple[Floats, Floats], latency: bool
) -> None:
    survival, costs = step
    plan = spend(survival, costs, latency=latency)
    assert plan.ratio == pytest.approx(brute_force(survival, costs, latency), rel=1e-9)
    assert plan.total == plan.lengths.sum() < len(costs)
    lengths = plan.lengths
    assert all(0 <= n <= survival.shape[1] for n in lengths)
    tokens = 1.0 + np.array([survival[i, :n].sum() for i, n in enumerate(lengths)])
    # What it says is what these lengths give.
    if latency:
        real = len(lengths) * costs[0] / (costs[plan.total] * (1.0 / tokens).sum())
    else:
        real = tokens.sum() / costs[plan.total] * costs[0] / len(lengths)
    assert plan.ratio == pytest.approx(max(1.0, real), rel=1e-9)
    assert plan.expected == pytest.approx(tokens.sum() - len(lengths), abs=1e-9)


@given(step=steps())
def test_a_common_length_is_the_best_of_the_allowed_ones(step: tuple[Floats, Floats]) -> None:
    survival, costs = step
    rows, width = survival.shape
    plan = spend_uniform(survival, costs, tuple(range(width + 1)))
    ratios = [
        (rows + survival[:, :n].sum()) / rows * costs[0] / costs[n * rows]
        for n in range(width + 1)
        if n * rows < len(costs)
    ]
    assert plan.ratio == pytest.approx(max(ratios))
    assert len(set(plan.lengths.tolist())) == 1


def test_a_stair_is_filled_and_not_begun() -> None:
    """Padding to 8 makes the tokens up to 8 free; the next stair would cost as much as the first eight brought."""
    survival = np.full((1, 16), 0.6) ** np.arange(1, 17)
    costs = 1.0 + np.ceil(np.arange(17) / 8) * 0.3
    assert spend(survival, costs).total == 8


def test_what_gains_too_little_is_left() -> None:
    survival, costs = np.array([[0.5]]), np.array([1.0, 1.48])
    assert spend(survival, costs).total == 1
    assert spend(survival, costs, margin=0.02).total == 0


def test_steps_longer_than_allowed_are_not_planned() -> None:
    survival, costs = np.full((1, 4), 0.99), 1.0 + 0.1 * np.arange(5)
    assert spend(survival, costs).total == 4
    assert spend(survival, costs, most_cost=1.25).total == 2


def test_one_looping_request_gets_the_drafts_of_its_prose_neighbours() -> None:
    survival = np.vstack([0.98 ** np.arange(1, 17), *[0.1 ** np.arange(1, 17)] * 7])
    plan = spend(survival, 1.0 + 0.04 * np.arange(129))
    assert plan.lengths[0] >= 8
    assert plan.lengths[1:].sum() == 0


def test_ties_are_shared_out_in_row_order_and_to_the_last_token() -> None:
    survival = np.full((3, 2), 0.5)
    plan = spend(survival, np.array([1.0, 1.01, 1.02, 1.03, 9.0, 9.0, 9.0]))
    assert plan.lengths.tolist() == [2, 1, 0]


def test_nothing_comes_of_nothing() -> None:
    assert spend(np.zeros((0, 4)), np.ones(9)).total == 0
    assert spend(np.zeros((2, 4)), np.ones(9)).total == 0
    assert spend(np.ones((2, 4)), np.ones(1)).total == 0


@pytest.mark.parametrize("most", [0, 1, 40, 300, 4096])
@pytest.mark.parametrize("latency", [False, True])
def test_a_large_batch_gets_what_sorting_all_of_it_would_give(most: int, latency: bool) -> None:
    coins = np.random.default_rng(most)
    survival = np.cumprod(coins.random((256, 16)) ** 0.5, axis=1)
    survival[::3, 4:] = 0.0
    survival[::5] = 0.5  # equal ones too
    costs = 1.0 + 0.001 * np.arange(most + 1)
    plan = spend(survival, costs, latency=latency)
    gains = survival.copy()
    if latency:
        latency_gains(survival, gains)
    chosen = np.concatenate([gains[i, :n] for i, n in enumerate(plan.lengths)])
    greatest = np.sort(gains.ravel())[::-1][: plan.total]
    assert np.sort(chosen)[::-1] == pytest.approx(greatest, rel=1e-12)
    assert plan.total > 0 or not most
