"""Controllers that do not learn are held to the same rules as the one that does."""

from __future__ import annotations

import numpy as np
import pytest

from specplug.control.fixed import BatchSizeTable, FixedLength
from specplug.control.options import build, check
from specplug.testing import check_controller
from specplug.types import LENGTH_DTYPE, Capabilities, Context


@pytest.mark.parametrize(
    "written",
    [
        "fixed",
        {"name": "fixed", "length": 3},
        {"name": "table", "lengths": "1:8,4:2"},
        "goodput",
        {"name": "goodput", "mode": "latency", "slo_ms": 50.0},
        {"name": "goodput", "max_draft_tokens": 5, "margin": 0.0},
    ],
)
@pytest.mark.parametrize("sampled", [False, True])
def test_every_controller_that_can_be_chosen_passes_the_kit(written: object, sampled: bool) -> None:
    context = Context(100, 64, 9, max_requests=8)
    capabilities = Capabilities(sampled=sampled)
    check_controller(lambda: build(check(written), context, capabilities), max_examples=6)


def test_a_table_is_read_by_the_size_of_the_batch() -> None:
    table = BatchSizeTable({1: 8, 4: 2, 16: 0})
    for rows, length in ((1, 8), (3, 8), (4, 2), (15, 2), (16, 0), (99, 0)):
        ceilings = np.zeros(rows, LENGTH_DTYPE)
        table.plan(np.arange(rows, dtype=LENGTH_DTYPE), np.full(rows, 5, LENGTH_DTYPE), ceilings)
        assert set(ceilings.tolist()) == {min(5, length)}


def test_a_constant_length_is_cut_to_the_limits() -> None:
    ceilings = np.zeros(3, LENGTH_DTYPE)
    limits = np.array([1, 4, 9], LENGTH_DTYPE)
    FixedLength(4).plan(np.arange(3, dtype=LENGTH_DTYPE), limits, ceilings)
    assert ceilings.tolist() == [1, 4, 4]
