"""Bad input to verification is refused with its position, its value and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specplug.errors import InvalidDistributionError, InvalidRequestError
from specplug.verify.chain import greedy, reject_one_hot, sample_and_compare
from specplug.verify.checks import SUM_TOLERANCE

PROBS = np.full((2, 3, 4), 0.25)
TOKENS = np.zeros((2, 2), np.int32)
LENGTHS = np.array([2, 1], np.int32)
COINS = np.full((2, 3), 0.5)

sampling = pytest.mark.parametrize("verify", [reject_one_hot, sample_and_compare])


def changed(array: np.ndarray, index: tuple[int, ...], value: Any) -> np.ndarray:
    copy = array.copy()
    copy[index] = value
    return copy


@sampling
@pytest.mark.parametrize("value", [-0.25, np.nan, np.inf])
def test_a_number_that_is_no_probability(verify: Callable[..., Any], value: float) -> None:
    with pytest.raises(
        InvalidDistributionError,
        match=rf"target_probs\[1, 0, 2\] is {value}, expected a probability",
    ):
        verify(changed(PROBS, (1, 0, 2), value), TOKENS, LENGTHS, COINS)


@sampling
def test_not_a_distribution(verify: Callable[..., Any]) -> None:
    with pytest.raises(
        InvalidDistributionError,
        match=r"target_probs\[0, 2\] sums to 1\.05, expected 1 within 1e-09",
    ):
        verify(changed(PROBS, (0, 2, 0), 0.3), TOKENS, LENGTHS, COINS)


@sampling
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_tolerance_of_the_sum_has_two_sides(verify: Callable[..., Any], dtype: Any) -> None:
    slack = SUM_TOLERANCE[np.dtype(dtype)]
    for share, refused in [(0.5, False), (-0.5, False), (2.0, True), (-2.0, True)]:
        probs = changed(PROBS.astype(dtype), (0, 0, 0), 0.25 + share * slack)
        if refused:
            with pytest.raises(InvalidDistributionError, match="sums to"):
                verify(probs, TOKENS, LENGTHS, COINS)
        else:
            verify(probs, TOKENS, LENGTHS, COINS)


@sampling
def test_positions_behind_the_draft_are_not_looked_at(verify: Callable[..., Any]) -> None:
    verify(changed(PROBS, (1, 2), np.nan), changed(TOKENS, (1, 1), 99), LENGTHS, COINS)


@pytest.mark.parametrize("verify", [reject_one_hot, sample_and_compare, greedy])
@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (PROBS.astype(np.int64), "target_(probs|scores) must be float64 or float32, got int64"),
        (PROBS.astype(np.float16), "must be float64 or float32, got float16"),
        (np.float64(0.5), r"must have the shape \[rows, .*vocabulary\], got \(\)"),
        (PROBS[0], r"must have the shape \[rows, .*vocabulary\], got \(3, 4\)"),
        (PROBS[:, :2], r"must have the shape \[2, 3, vocabulary\], got \(2, 2, 4\)"),
        (PROBS[:1], r"must have the shape \[2, 3, vocabulary\], got \(1, 3, 4\)"),
    ],
)
def test_wrong_dtype_or_shape_of_the_target(
    verify: Callable[..., Any], probs: np.ndarray, message: str
) -> None:
    with pytest.raises(InvalidDistributionError, match=message):
        verify(probs, TOKENS, LENGTHS, *([] if verify is greedy else [COINS]))


def test_an_empty_vocabulary() -> None:
    with pytest.raises(InvalidDistributionError, match=r"got \(2, 3, 0\)"):
        greedy(PROBS[:, :, :0], TOKENS, np.zeros(2, np.int32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_greedy_refuses_scores_without_an_order(value: float) -> None:
    with pytest.raises(
        InvalidDistributionError, match=rf"target_scores\[0, 1, 3\] is {value}, expected a finite"
    ):
        greedy(changed(PROBS, (0, 1, 3), value), TOKENS, LENGTHS)


def test_greedy_refuses_a_position_at_which_nothing_is_allowed() -> None:
    with pytest.raises(InvalidDistributionError, match=r"target_scores\[1, 1\] is -inf everywhere"):
        greedy(changed(PROBS, (1, 1), -np.inf), TOKENS, LENGTHS)


@pytest.mark.parametrize("token", [-1, 4, 1_000_000])
def test_a_draft_outside_the_vocabulary(token: int) -> None:
    with pytest.raises(
        InvalidRequestError, match=rf"tokens\[0, 1\] is {token}, but the target has the ids 0 to 3"
    ):
        greedy(PROBS, changed(TOKENS, (0, 1), token), LENGTHS)


@pytest.mark.parametrize("length", [-1, 3])
def test_a_length_that_does_not_fit(length: int) -> None:
    with pytest.raises(
        InvalidRequestError, match=rf"lengths\[1\] is {length}, but tokens holds 0 to 2 drafts"
    ):
        greedy(PROBS, TOKENS, np.array([0, length]))


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        (TOKENS[0], LENGTHS, r"tokens must have the shape \[rows, positions\], got \(2,\)"),
        (TOKENS.astype(float), LENGTHS, "tokens must be an integer array, got float64"),
        (TOKENS, LENGTHS.astype(float), "lengths must be an integer array, got float64"),
        (TOKENS, LENGTHS[:1], r"lengths must have the shape \(2,\), got \(1,\)"),
    ],
)
def test_malformed_drafts(tokens: np.ndarray, lengths: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        greedy(PROBS, tokens, lengths)


@sampling
@pytest.mark.parametrize("value", [-1e-9, 1.0, np.nan])
def test_a_coin_outside_its_range(verify: Callable[..., Any], value: float) -> None:
    with pytest.raises(
        InvalidRequestError, match=rf"uniforms\[1, 2\] is {value}, expected a number in"
    ):
        verify(PROBS, TOKENS, LENGTHS, changed(COINS, (1, 2), value))


@sampling
@pytest.mark.parametrize("coins", [COINS[:, :2], COINS.astype(int), COINS[0]])
def test_coins_of_the_wrong_shape_or_kind(verify: Callable[..., Any], coins: np.ndarray) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"uniforms must be a float array of shape \(2, 3\)"
    ):
        verify(PROBS, TOKENS, LENGTHS, coins)


def test_inputs_are_not_changed_and_need_not_be_contiguous() -> None:
    probs = np.asfortranarray(PROBS)
    tokens = np.zeros((2, 4), np.int64)[:, ::2]
    verdict = reject_one_hot(probs, tokens, [2, 1], COINS[::-1])
    assert verdict.tokens.dtype == np.int32
    assert (probs == 0.25).all()
