"""Work on large arrays in pieces."""

from __future__ import annotations

import time

import numpy as np
import pytest

from specplug.index import pieces


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 64)
    monkeypatch.setattr(pieces, "PAUSE", 0.0)


@pytest.mark.parametrize("lengths", [[], [0], [1], [16], [17, 0, 3], [100, 1, 31]])
def test_concatenated_is_what_numpy_says(lengths: list[int]) -> None:
    coins = np.random.default_rng(0)
    parts = [coins.integers(-5, 99, n) for n in lengths]
    found = pieces.concatenated(parts, np.int32)
    assert found.dtype == np.int32
    assert found.tolist() == [value for part in parts for value in part.tolist()]


@pytest.mark.parametrize("place", [0, 15, 16, 40])
@pytest.mark.parametrize(("value", "inside"), [(-2, False), (-1, True), (9, True), (10, False)])
def test_a_value_out_of_range_is_found_wherever_it_stands(
    place: int, value: int, inside: bool
) -> None:
    values = np.zeros(41, np.int32)
    values[place] = value
    assert pieces.all_within(values, -1, 10) == inside
    assert pieces.all_within(values[:0], -1, 10)


def test_values_are_replaced_in_every_piece() -> None:
    values = np.arange(50, dtype=np.int32)
    pieces.replaced_from(values, 13, -1)
    assert values.tolist() == [*range(13), *[-1] * 37]


def test_others_may_run_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small arrays count together, as one large one does."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    pieces.concatenated([np.zeros(160, np.int32)], np.int32)
    assert len(pauses) == 10
    pieces.concatenated([np.zeros(4, np.int32)] * 40, np.int32)
    assert len(pauses) == 20
