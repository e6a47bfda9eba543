"""Chains of deterministic drafts: small cases worked out by hand, for the wrappers and for both twins."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from specplug.kernels import accept as accept_kernels
from specplug.kernels import draw as draw_kernels
from specplug.reference import accept as accept_reference
from specplug.reference import draw as draw_reference
from specplug.verify.chain import greedy, reject_one_hot, sample_and_compare

ALMOST_ONE = 1.0 - 2.0**-53
INF = np.inf

both_accept = pytest.mark.parametrize("accept", [accept_kernels, accept_reference])
both_draw = pytest.mark.parametrize("draws", [draw_kernels, draw_reference])


def rows(*laws: list[float]) -> np.ndarray:
    return np.array([laws], np.float64)


def drafts(*tokens: int) -> np.ndarray:
    return np.array([tokens], np.int32).reshape(1, len(tokens))


def count(value: int) -> np.ndarray:
    return np.array([value], np.int32)


def test_greedy_keeps_the_agreeing_prefix_and_emits_the_target_s_own_token() -> None:
    verdict = greedy(rows([0, 1, 0], [0, 0, 1], [1, 0, 0]), drafts(1, 0), count(2))
    assert verdict.accepted.tolist() == [1]
    assert verdict.row(0) == [1, 2]
    assert verdict.tokens.tolist() == [[1, 2, -1]]


def test_greedy_emits_one_more_token_after_a_fully_accepted_draft() -> None:
    verdict = greedy(rows([0, 1, 0], [0, 0, 1], [1, 0, 0]), drafts(1, 2), count(2))
    assert verdict.row(0) == [1, 2, 0]


def test_first_draft_token_is_verified_like_the_others() -> None:
    assert greedy(rows([0, 1], [0, 1]), drafts(0), count(1)).row(0) == [1]


def test_ties_go_to_the_smallest_id_as_in_plain_greedy() -> None:
    tied = rows([0.0, 7.0, 7.0], [3.0, 3.0, -INF])
    assert greedy(tied, drafts(2), count(1)).row(0) == [1]
    assert greedy(tied, drafts(1), count(1)).row(0) == [1, 0]


def test_minus_infinity_everywhere_but_one_token() -> None:
    assert greedy(rows([-INF, -INF, -5.0]), drafts(), count(0)).row(0) == [2]


@pytest.mark.parametrize("length", [0, 1, 2])
def test_only_lengths_says_how_many_drafts_there_are(length: int) -> None:
    scores = rows([0, 1], [0, 1], [0, 1])
    scores[0, length + 1 :] = np.nan
    tokens = drafts(1, 1)
    tokens[0, length:] = 77
    assert greedy(scores, tokens, count(length)).row(0) == [1] * (length + 1)


def test_no_rows_give_no_verdicts() -> None:
    verdict = greedy(np.zeros((0, 3, 2)), np.zeros((0, 2), np.int32), np.zeros(0, np.int32))
    assert verdict.tokens.shape == (0, 3)


def test_comparison_emits_exactly_what_plain_sampling_would() -> None:
    probs = rows([0.5, 0.5], [0.25, 0.75], [0.1, 0.9])
    coins = np.array([[0.5, 0.2, 0.05]])
    assert sample_and_compare(probs, drafts(1, 0), count(2), coins).row(0) == [1, 0, 0]
    assert sample_and_compare(probs, drafts(1, 1), count(2), coins).row(0) == [1, 0]
    assert sample_and_compare(probs, drafts(0, 0), count(2), coins).row(0) == [1]


def test_one_hot_accepts_strictly_below_the_probability() -> None:
    probs = rows([0.25, 0.75], [0.5, 0.5])
    below, at = np.nextafter(0.25, 0.0), 0.25
    assert reject_one_hot(probs, drafts(0), count(1), np.array([[below, 0.0]])).row(0) == [0, 0]
    assert reject_one_hot(probs, drafts(0), count(1), np.array([[at, 0.0]])).row(0) == [1]


def test_one_hot_draws_the_correction_from_the_others_renormalised() -> None:
    probs = rows([0.5, 0.25, 0.25], [1.0, 0.0, 0.0])
    for coin, token in [(0.0, 1), (0.49, 1), (0.5, 2), (ALMOST_ONE, 2)]:
        assert reject_one_hot(probs, drafts(0), count(1), np.array([[0.5, coin]])).row(0) == [token]


def test_one_hot_judges_with_the_draft_s_coin_and_draws_with_the_last() -> None:
    probs = rows([0.5, 0.5], [0.5, 0.5], [0.5, 0.5])
    coins = np.array([[0.4, 0.6, 0.9]])
    assert reject_one_hot(probs, drafts(0, 0), count(2), coins).row(0) == [0, 1]
    assert reject_one_hot(probs, drafts(0, 0), count(1), coins).row(0) == [0, 1]
    assert reject_one_hot(probs, drafts(0, 0), count(0), coins).row(0) == [1]


def test_a_draft_without_probability_is_never_accepted_even_by_the_coin_zero() -> None:
    probs = rows([0.0, 1.0], [1.0, 0.0])
    assert reject_one_hot(probs, drafts(0), count(1), np.zeros((1, 2))).row(0) == [1]


def test_a_certain_draft_is_accepted_by_every_coin() -> None:
    probs = rows([1.0, 0.0], [0.0, 1.0])
    coins = np.full((1, 2), ALMOST_ONE)
    assert reject_one_hot(probs, drafts(0), count(1), coins).row(0) == [0, 1]


def test_sums_within_float_error_of_one_are_normalised_by_themselves() -> None:
    probs = np.array([[[0.2, 0.8 - 5e-5], [1.0, 0.0]]], np.float32)
    share = float(probs[0, 0, 0]) / float(probs[0, 0].astype(np.float64).sum())
    coins = np.array([[0.2 + (share - 0.2) / 2, 0.0]])
    assert reject_one_hot(probs, drafts(0), count(1), coins).row(0) == [0, 0]


@both_accept
def test_rounding_that_leaves_no_residual_emits_the_draft_itself(accept: ModuleType) -> None:
    # A coin of 1 stands for a product that rounds up to the whole mass; wrappers never let it in.
    accepted, emitted = np.zeros(1, np.int32), np.zeros((1, 2), np.int32)
    accept.accept_one_hot(
        rows([0.0, 1.0], [0.5, 0.5]), drafts(1), count(1), np.ones((1, 2)), accepted, emitted
    )
    assert (accepted.tolist(), emitted.tolist()) == ([0], [[1, -1]])


@both_draw
def test_draws_never_give_a_token_without_weight(draws: ModuleType) -> None:
    weights = np.array([0.0, 0.5, 0.0, 0.5, 0.0])
    assert [draws.draw(weights, c) for c in (0.0, 0.49, 0.5, ALMOST_ONE, 1.0)] == [1, 1, 3, 3, 3]
    assert [draws.draw_without(weights, 1, c) for c in (0.0, 1.0)] == [3, 3]
    assert [draws.draw_without(weights, 3, c) for c in (0.0, 1.0)] == [1, 1]


@both_draw
def test_draws_from_nothing_say_so(draws: ModuleType) -> None:
    nothing = np.zeros(3)
    assert draws.draw(nothing, 0.5) == -1
    assert draws.draw_without(np.array([0.0, 1.0, 0.0]), 1, 0.5) == -1
    assert draws.draw_residual(nothing, nothing, 1.0, 1.0, 0.5) == -1


@both_draw
def test_weights_are_stretched_by_their_own_sum(draws: ModuleType) -> None:
    weights = np.array([1.0, 3.0])
    assert draws.total(weights) == 4.0
    assert [draws.draw(weights, c) for c in (0.24, 0.26)] == [0, 1]


@both_draw
def test_residual_is_the_positive_part_of_the_scaled_difference(draws: ModuleType) -> None:
    target, draft = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.6, 0.2])
    assert draws.residual_mass(target, draft, 1.0, 1.0) == pytest.approx(0.3)
    assert draws.residual_mass(target, draft, 2.0, 0.5) == pytest.approx(0.9 + 0.3 + 0.3)
    assert [draws.draw_residual(target, draft, 1.0, 1.0, c) for c in (0.0, 1.0)] == [0, 0]
    picks = [draws.draw_residual(target, draft, 2.0, 0.5, c) for c in (0.59, 0.61, 0.79, 0.81)]
    assert picks == [0, 1, 1, 2]


@both_accept
@pytest.mark.parametrize(
    ("scores", "best"), [([5.0], 0), ([1, 2, 2], 1), ([-INF, -INF, 0.0], 2), ([3, 3, 4, 4], 2)]
)
def test_first_maximum(accept: ModuleType, scores: list[float], best: int) -> None:
    assert accept.first_maximum(np.array(scores, np.float64)) == best
