"""The constant draft length."""

from __future__ import annotations

import numpy as np
import pytest

from specplug.control.fixed import FixedLength
from specplug.protocols import Controller

SLOTS = np.array([2, 0, 1], np.int32)
LIMITS = np.array([5, 0, 2], np.int32)


@pytest.mark.parametrize(
    ("length", "expected"),
    [(None, [5, 0, 2]), (9, [5, 0, 2]), (3, [3, 0, 2]), (1, [1, 0, 1]), (0, [0, 0, 0])],
)
def test_a_ceiling_is_the_length_or_the_limit(length: int | None, expected: list[int]) -> None:
    ceilings = np.full(3, 77, np.int32)
    FixedLength(length).plan(SLOTS, LIMITS, ceilings)
    assert ceilings.tolist() == expected


def test_the_limits_are_left_alone() -> None:
    limits = LIMITS.copy()
    FixedLength(1).plan(SLOTS, limits, np.zeros(3, np.int32))
    assert limits.tolist() == [5, 0, 2]


def test_rejection_does_not_change_the_length() -> None:
    controller = FixedLength(3)
    zeros = np.zeros(3, np.int32)
    controller.observe(SLOTS, LIMITS, zeros)
    ceilings = zeros.copy()
    controller.plan(SLOTS, LIMITS, ceilings)
    assert ceilings.tolist() == [3, 0, 2]


def test_it_is_a_controller() -> None:
    assert isinstance(FixedLength(), Controller)
