"""What compiled code cannot take is refused: without a dispatcher nothing else looks at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.datastore.writer import Writer
from specplug.errors import InvalidRequestError
from specplug.index.rest import RestIndex
from specplug.types import Context, Observed, Request, allocate_drafts

WORDS = np.arange(100, 140, dtype=np.int32)
CEILINGS = np.array([8, 8], np.int32)


@pytest.fixture
def index(tmp_path: Path) -> RestIndex:
    with Writer(tmp_path, 1000) as writer:
        writer.add(WORDS)
        writer.publish({})
    made = RestIndex(Context(1000, 4000, 8, 2), str(tmp_path), cost=0.0)
    for slot in range(2):
        made.start(slot, Request(str(slot), 3), WORDS[slot : slot + 3])
    return made


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("tokens", np.zeros((2, 8), np.int64)),
        ("tokens", np.zeros((2, 16), np.int32)[:, ::2]),
        ("tokens", np.zeros((1, 8), np.int32)),
        ("tokens", np.zeros(16, np.int32)),
        ("survival", np.zeros((2, 8), np.float32)),
        ("lengths", np.zeros((2, 1), np.int32)),
        ("lengths", np.broadcast_to(np.int32(0), 2)),
        ("parents", np.zeros((2, 8), np.int64)),
        ("survival", np.zeros((2, 7))),
        ("parents", np.zeros((2, 1), np.int32)),
    ],
)
def test_buffers_that_kernels_cannot_fill_are_refused(
    index: RestIndex, name: str, array: Any
) -> None:
    out = allocate_drafts(2, 8)._replace(**{name: array})
    with pytest.raises(InvalidRequestError, match=f"draft buffer '{name}' must be a contiguous"):
        index.propose(np.arange(2, dtype=np.int32), CEILINGS, out)


@pytest.mark.parametrize("ends", [[0, 40, 3], [-1, 2, 3], [0, 2, 4], [0, 3], [2, 1, 3]])
def test_offsets_that_lead_out_of_the_tokens_are_refused(index: RestIndex, ends: list[int]) -> None:
    """What lies behind the array was read, and became what a request had said."""
    told = Observed(np.arange(2, dtype=np.int32), np.array(ends, np.int64), WORDS[:3])
    with pytest.raises(
        InvalidRequestError, match=r"Observed\.offsets must hold 3 ascending numbers"
    ):
        index.observe(told)


def test_more_rows_than_requests_are_refused(index: RestIndex) -> None:
    """There are not more places for the parents of a chain's tokens."""
    slots, ceilings = np.zeros(3, np.int32), np.full(3, 8, np.int32)
    with pytest.raises(InvalidRequestError, match=r"at most 2 rows .* got 3; a slot may be named"):
        index.propose(slots, ceilings, allocate_drafts(3, 8))


def test_a_missing_ceiling_is_refused(index: RestIndex) -> None:
    with pytest.raises(InvalidRequestError, match="slots and ceilings must have one axis"):
        index.propose(np.arange(2, dtype=np.int32), CEILINGS[:1], allocate_drafts(2, 8))


def test_tokens_along_two_axes_are_refused(index: RestIndex) -> None:
    with pytest.raises(InvalidRequestError, match="the history of a request must be token ids"):
        index.start(0, Request("0", 6), np.zeros((2, 3), np.int32))
    two = Observed(np.zeros(1, np.int32), np.array([0, 2], np.int64), np.zeros((2, 1), np.int32))
    with pytest.raises(InvalidRequestError, match=r"Observed\.tokens must be token ids"):
        index.observe(two)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_what_stands_in_the_same_arrays_at_the_next_call_is_read_anew(
    index: RestIndex, kind: type[np.generic]
) -> None:
    """They are checked once and remembered; those of another kind are copied, each time."""
    slots, ceilings, out = np.array([0, 1], kind), np.array([8, 8], kind), allocate_drafts(2, 8)
    index.propose(slots, ceilings, out)  # type: ignore[arg-type]
    assert out.tokens[:, 0].tolist() == [103, 104]
    slots[:] = slots[::-1].copy()
    ceilings[:] = [0, 2]
    index.propose(slots, ceilings, out)  # type: ignore[arg-type]
    assert out.lengths.tolist() == [0, 2]
    assert out.tokens[1, :2].tolist() == [103, 104]
    other = allocate_drafts(2, 8)
    index.propose(slots, ceilings, other)  # type: ignore[arg-type]
    assert other.lengths.tolist() == [0, 2]
