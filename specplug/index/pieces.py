"""Work on large arrays in pieces between which other threads run: one numpy call on 5 MB holds the interpreter for
milliseconds, most of it in memory that the system hands over page by page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Bytes that are worked on at once, a tenth of a millisecond or two.
PIECE = 1 << 17
#: Seconds between two pieces. With none the thread would mostly have the interpreter back before another one, which
#: waits for it, has woken up.
PAUSE = 1e-4


def give_way() -> None:
    """Let another thread run that waits for the interpreter."""
    time.sleep(PAUSE)


def concatenated(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    """The one-dimensional ``parts`` as one array of ``dtype``, whatever theirs is; a copy."""
    found = np.empty(sum(map(len, parts)), dtype)
    step, end, since = PIECE // found.itemsize, 0, 0
    for part in parts:
        for start in range(0, len(part), step):
            some = part[start : start + step]
            found[end : end + len(some)] = some
            end += len(some)
            since += len(some)
            if since >= step:
                give_way()
                since = 0
    return found


def all_within(values: NDArray[Any], least: int, end: int) -> bool:
    """Whether ``least <= value < end`` for all of a one-dimensional array."""
    step = PIECE // values.itemsize
    for start in range(0, len(values), step):
        some = values[start : start + step]
        if some.min() < least or some.max() >= end:
            return False
        give_way()
    return True


def replaced_from(values: NDArray[Any], end: int, by: int) -> None:
    """Put ``by`` in the place of every value from ``end`` on."""
    step = PIECE // values.itemsize
    for start in range(0, len(values), step):
        some = values[start : start + step]
        some[some >= end] = by
        give_way()
