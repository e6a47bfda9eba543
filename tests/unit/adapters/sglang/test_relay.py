"""Tokens that are a step late, with arrays in place of tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from specplug.adapters.sglang_srt.relay import late_tokens

from .conftest import make_req


class Flat:
    """A flat tensor of torch, as far as it is looked at."""

    def __init__(self, values: list[int]) -> None:
        self._values = np.array(values)

    def view(self, *shape: int) -> Any:
        return self._values.reshape(shape)

    def tolist(self) -> list[int]:
        return [int(v) for v in self._values]


def batch_of(output: list[int], relayed: list[int], kept: int, cached: int) -> Any:
    req = make_req("a", [1, 2, 3])
    req.output_ids.extend(output)
    spec_info = SimpleNamespace(accept_tokens=Flat(relayed), accept_lens=Flat([kept]))
    return SimpleNamespace(reqs=[req], spec_info=spec_info, seq_lens=Flat([cached]))


def test_the_missing_tokens_are_those_that_were_accepted() -> None:
    assert late_tokens(batch_of([7], [8, 9, 0], 2, cached=5), True) == ([[8, 9]], [True])


def test_nothing_is_missing_once_the_result_was_processed() -> None:
    assert late_tokens(batch_of([7, 8, 9], [8, 9, 0], 2, cached=5), True) == ([[]], [True])


def test_the_first_token_after_a_prefill_is_missing_too() -> None:
    assert late_tokens(batch_of([], [8, 0, 0], 1, cached=3), True) == ([[8]], [True])


def test_a_row_that_does_not_add_up_is_unsound() -> None:
    assert late_tokens(batch_of([7], [8, 9, 0], 2, cached=9), True) == ([[8, 9]], [False])


def test_without_overlap_nothing_is_late() -> None:
    assert late_tokens(batch_of([7], [8, 9, 0], 2, cached=5), False) == ([[]], [True])
