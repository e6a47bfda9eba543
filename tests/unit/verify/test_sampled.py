"""Chains of drawn drafts: small cases worked out by hand, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specplug.errors import InvalidDistributionError
from specplug.kernels import accept_sampled as kernels
from specplug.reference import accept_sampled as reference
from specplug.verify.sampled import reject_sampled, verify_block

both = pytest.mark.parametrize("verify", [reject_sampled, verify_block])
ALMOST_ONE = 1.0 - 2.0**-53


def verdict(
    verify: Callable[..., Any],
    target: list[list[float]],
    draft: list[list[float]],
    tokens: list[int],
    coins: list[float],
) -> list[int]:
    laws = np.array([draft]).reshape(1, len(tokens), len(target[0]))
    emitted = verify(
        np.array([target]), laws, np.array([tokens], np.int32), [len(tokens)], np.array([coins])
    )
    assert emitted.accepted[0] == len(emitted.row(0)) - 1
    row: list[int] = emitted.row(0)
    return row


def test_a_draft_is_kept_with_the_ratio_of_the_laws() -> None:
    target, draft = [[0.2, 0.8], [0.5, 0.5]], [[0.8, 0.2]]
    assert verdict(reject_sampled, target, draft, [0], [0.2499, 0.6]) == [0, 1]
    assert verdict(reject_sampled, target, draft, [0], [0.2501, 0.6]) == [1]


@both
def test_a_draft_that_the_target_likes_better_is_always_kept(verify: Callable[..., Any]) -> None:
    target, draft = [[0.2, 0.8], [0.5, 0.5]], [[0.8, 0.2]]
    assert verdict(verify, target, draft, [1], [ALMOST_ONE, 0.4]) == [1, 0]


@both
def test_a_draft_that_the_target_forbids_is_never_kept(verify: Callable[..., Any]) -> None:
    assert verdict(verify, [[0.0, 1.0], [1.0, 0.0]], [[0.5, 0.5]], [0], [0.0, 0.0]) == [1]


@both
def test_equal_laws_keep_everything(verify: Callable[..., Any]) -> None:
    laws = [[0.3, 0.7], [0.1, 0.9]]
    coins = [ALMOST_ONE, ALMOST_ONE, 0.0]
    assert verdict(verify, [*laws, [0.0, 1.0]], laws, [0, 0], coins) == [0, 0, 1]


@both
def test_an_empty_draft_is_plain_sampling(verify: Callable[..., Any]) -> None:
    for coin, token in [(0.29, 0), (0.31, 1)]:
        assert verdict(verify, [[0.3, 0.7]], [], [], [coin]) == [token]


def test_the_correction_comes_from_what_the_target_has_more_of() -> None:
    target, draft = [[0.1, 0.5, 0.4], [1.0, 0.0, 0.0]], [[0.6, 0.3, 0.1]]
    for coin, token in [(0.0, 1), (0.39, 1), (0.41, 2), (ALMOST_ONE, 2)]:
        assert verdict(reject_sampled, target, draft, [0], [0.9, coin]) == [token]


def test_no_residual_mass_falls_back_to_the_target() -> None:
    # A coin of 1 stands for a product that rounds up; the wrappers never let it in. Both twins draw from the target.
    for module in (kernels, reference):
        emitted = np.zeros((1, 2), np.int32)
        module.accept_sampled(
            np.array([[[0.5, 0.5], [1.0, 0.0]]]),
            np.array([[[0.5, 0.5]]]),
            np.array([[0]], np.int32),
            np.array([1], np.int32),
            np.array([[1.0, 0.75]]),
            np.zeros(1, np.int32),
            emitted,
        )
        assert emitted.tolist() == [[1, -1]]


def test_a_block_may_keep_a_draft_after_one_that_failed_its_own_coin() -> None:
    # weights 0.5 and min(1, 0.5 * 4) = 1: the second coin alone keeps both.
    target, draft = [[0.4, 0.6], [0.8, 0.2], [0.0, 1.0]], [[0.8, 0.2], [0.2, 0.8]]
    coins = [ALMOST_ONE, ALMOST_ONE, 0.5]
    assert verdict(verify_block, target, draft, [0, 0], coins) == [0, 0, 1]
    assert verdict(reject_sampled, target, draft, [0, 0], coins) == [1]


def test_a_weight_does_not_grow_above_one() -> None:
    # Ratios 1.5 and 0.5: the weights are 1 and 0.5, not 1.5 and 0.75.
    target, draft = [[0.6, 0.4], [0.2, 0.8], [0.5, 0.5]], [[0.4, 0.6], [0.4, 0.6]]
    assert verdict(verify_block, target, draft, [0, 0], [0.5, 0.6, 0.5]) == [0, 1]
    assert verdict(verify_block, target, draft, [0, 0], [0.5, 0.4, 0.75]) == [0, 0, 1]


def test_a_block_cut_after_its_first_draft_weighs_the_residual() -> None:
    # weight 0.5; mass = max(0, 0.5 * 0.8 - 0.2) = 0.2; h = 0.2 / (0.2 + 0.5) = 2 / 7.
    target, draft = [[0.4, 0.6], [0.2, 0.8], [0.5, 0.5]], [[0.8, 0.2], [0.8, 0.2]]
    assert verdict(verify_block, target, draft, [0, 0], [0.285, 0.9, 0.5]) == [0, 1]
    assert verdict(verify_block, target, draft, [0, 0], [0.287, 0.9, 0.5]) == [1]


@both
@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (np.full((1, 2, 3), 1 / 3), "draft_probs has 3 tokens and target_probs 2"),
        (np.full((1, 1, 2), 0.5), r"draft_probs must have the shape \[1, 2, vocabulary\]"),
        (np.full((1, 2, 2), 0.6), r"draft_probs\[0, 0\] sums to 1.2, expected 1"),
        (np.array([[[0.5, 0.5], [np.nan, 1.0]]]), r"draft_probs\[0, 1, 0\] is nan"),
        (np.array([[[0.5, 0.5], [1.0, 0.0]]]), r"draft_probs\[0, 1, 1\] is 0, but tokens\[0, 1\]"),
        (np.ones((1, 2, 2), np.int32), "draft_probs must be float64 or float32, got int32"),
    ],
)
def test_malformed_draft_laws(verify: Callable[..., Any], draft: np.ndarray, message: str) -> None:
    target, tokens = np.full((1, 3, 2), 0.5), np.array([[0, 1]])
    with pytest.raises(InvalidDistributionError, match=message):
        verify(target, draft, tokens, [2], np.zeros((1, 3)))
    if draft.shape == (1, 2, 2) and draft.dtype == np.float64 and abs(draft[0, 0].sum() - 1) < 0.1:
        verify(target, draft, tokens, [1], np.zeros((1, 3)))


@both
def test_a_vocabulary_of_one_token_and_no_draft(verify: Callable[..., Any]) -> None:
    # What stands behind the draft's length is no token, and must not be looked up as one.
    verdict = verify(np.ones((1, 2, 1)), np.ones((1, 1, 1)), [[7]], [0], np.zeros((1, 2)))
    assert verdict.row(0) == [0]
