"""Limits are checked when they are stated, and buffers have the shapes that are promised."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from specplug.errors import InvalidRequestError
from specplug.types import Capabilities, Context, Request, allocate_drafts, draft_shapes

LIMITS = {
    "vocab_size": 10,
    "max_length": 20,
    "max_draft": 4,
    "max_requests": 2,
    "threads": 1,
}


@pytest.mark.parametrize("name", sorted(LIMITS))
@pytest.mark.parametrize("value", [0, -1, True, 2.0, "3", None])
def test_a_limit_that_is_no_positive_integer_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=rf"Context\.{name} must be .*got {value!r}"):
        Context(**{**LIMITS, name: value})


def test_every_limit_may_be_one() -> None:
    assert Context(1, 1, 1, 1, 1) == Context(
        vocab_size=1, max_length=1, max_draft=1, max_requests=1
    )


def test_token_ids_fit_in_int32() -> None:
    assert Context(2**31 - 1, 1, 1).vocab_size == 2147483647
    with pytest.raises(InvalidRequestError, match=r"at most 2147483647.*got 2147483648"):
        Context(2**31, 1, 1)


def test_limits_and_requests_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Context(**LIMITS).max_draft = 9  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Request("a", 1).max_output = 9  # type: ignore[misc]


def test_negative_prompt_length_is_refused_with_the_request_id() -> None:
    with pytest.raises(InvalidRequestError, match=r"prompt_length .* got -1 for request 'a7'"):
        Request("a7", -1)


def test_a_request_promises_nothing_by_default() -> None:
    request = Request("a", 3)
    assert request.stop_token_ids == frozenset()
    assert (request.max_output, request.draft_limit) == (None, None)
    assert (request.namespace, request.temperature) == ("", 0.0)


@pytest.mark.parametrize(
    ("capabilities", "extra"),
    [
        (Capabilities(), {}),
        (Capabilities(shares_requests=True, target_states=True), {}),
        (Capabilities(trees=True), {"parents": ((5, 3), np.int32)}),
        (Capabilities(sampled=True), {"draft_probs": ((5, 3, 7), np.float64)}),
        (
            Capabilities(trees=True, sampled=True),
            {"parents": ((5, 3), np.int32), "draft_probs": ((5, 3, 7), np.float64)},
        ),
    ],
)
def test_buffers_for_what_a_proposer_declares(
    capabilities: Capabilities, extra: dict[str, Any]
) -> None:
    shapes = draft_shapes(5, 3, 7, capabilities)
    assert shapes == {
        "tokens": ((5, 3), np.int32),
        "lengths": ((5,), np.int32),
        "survival": ((5, 3), np.float64),
        **extra,
    }
    buffers = allocate_drafts(5, 3, 7, capabilities)
    for name, array in buffers._asdict().items():
        if name not in shapes:
            assert array is None, f"{name} was not asked for"
        else:
            assert (array.shape, array.dtype.type) == shapes[name]
            assert not array.any()


def test_buffers_of_zero_rows() -> None:
    assert allocate_drafts(0, 3).tokens.shape == (0, 3)
