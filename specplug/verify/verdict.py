"""What every verification returns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specplug.types import LENGTH_DTYPE, TOKEN_DTYPE, IntArray, TokenArray


class Verdict(NamedTuple):
    """The tokens that a step emits, for every row.

    Attributes:
        accepted: int32 ``[B]``, how many draft tokens were kept.
        tokens: int32 ``[B, K + 1]``; row ``i`` holds its ``accepted[i]`` kept drafts, one token of
            the target's own, then ``-1``.
    """

    accepted: IntArray
    tokens: TokenArray

    def row(self, index: int) -> list[int]:
        """The tokens that row ``index`` emits, without padding."""
        emitted: list[int] = self.tokens[index, : self.accepted[index] + 1].tolist()
        return emitted


def blank_verdict(rows: int, width: int) -> Verdict:
    """Room for a verdict over ``rows`` rows of at most ``width`` accepted drafts."""
    return Verdict(np.empty(rows, LENGTH_DTYPE), np.empty((rows, width + 1), TOKEN_DTYPE))
