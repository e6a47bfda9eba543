"""Where a token stood last: mostly one look into a table, whose row another token of equal hash may have taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specplug.index.arrays import new_slots
from specplug.kernels.streams import (
    append_tokens,
    begin_stream,
    free_stream,
    index_some,
    last_place,
)
from specplug.reference import streams as ref
from specplug.reference.suffix_state import RECENT_ROWS, new_state
from specplug.types import Context


def _rivals() -> tuple[int, int, int]:
    """Three tokens that share a row of the table."""
    rows: dict[int, list[int]] = {}
    for token in range(50_000):
        row = rows.setdefault(ref.mix(2166136261, token) % RECENT_ROWS, [])
        row.append(token)
        if len(row) == 3:
            return row[0], row[1], row[2]
    raise AssertionError("no three tokens share a row")


A, B, C = _rivals()


@pytest.mark.parametrize(
    ("text", "token", "expected"),
    [
        ([A, 1, B, 2], A, 0),  # the row is B's by now
        ([A, 1, B, 2], B, 2),
        ([A, 1, B, 2], C, -1),  # never said, but its row is taken
        ([A, 1, B, A, 2], A, 3),
        ([3, 1, 2], A, -1),  # nobody has taken the row
        ([1, 2, A], A, -1),  # the last token is not linked yet
        ([A, *[7] * 199, B, 5], A, 0),
    ],
)
def test_a_token_is_found_where_another_one_has_taken_its_row(
    text: list[int], token: int, expected: int
) -> None:
    slots = new_slots(Context(50_000, 512, 4, max_requests=1), False)
    begin_stream(slots, 0, 0, 0, 0, False)
    append_tokens(slots, 0, np.array(text, np.int32))
    index_some(slots, 0, 1000)
    slow: Any = new_state(0, 1, 0)
    ref.begin_stream(slow, 0, 0, 0, 0, False)
    ref.append_tokens(slow, 0, text)
    ref.index_some(slow, 0, 1000)
    assert last_place(slots, 0, token) == ref.last_place(slow, 0, token) == expected


def test_a_new_request_in_the_slot_forgets_the_places() -> None:
    slots = new_slots(Context(50_000, 512, 4, max_requests=1), False)
    for text, expected in (([A, 1, 2], 0), ([1, 2, 3], -1)):
        free_stream(slots, 0)
        begin_stream(slots, 0, 0, 0, 0, False)
        append_tokens(slots, 0, np.array(text, np.int32))
        index_some(slots, 0, 1000)
        assert last_place(slots, 0, A) == expected
