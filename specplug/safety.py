"""Token ids made safe, on the way in and on the way out: nothing outside the vocabulary, nothing after a stop token.

A few rows or tokens are looked at as Python lists, which the session needs anyway; many with array operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specplug.errors import InvalidRequestError
from specplug.stats import SessionStats
from specplug.types import (
    ROOT,
    SEPARATOR,
    TOKEN_DTYPE,
    Context,
    DraftBuffers,
    IntArray,
    TokenArray,
)

#: Up to so many different stop tokens are looked for one by one.
_FEW_STOPS = 8
#: Up to so many rows or tokens are looked at as lists.
_FEW_ROWS, _FEW_TOKENS = 8, 256

_ARRAY, _TOKENS = np.ndarray, np.dtype(TOKEN_DTYPE)


class Safety:
    """See the module. Drafts that had to be cut at a foreign id are counted in ``stats``."""

    def __init__(self, context: Context, stats: SessionStats) -> None:
        self._vocabulary = context.vocab_size
        self._stats = stats

    def clean_id(self, token: int) -> int:
        """``token``, or the separator if it is none of the vocabulary."""
        return token if 0 <= token < self._vocabulary else SEPARATOR

    def clean(self, tokens: TokenArray) -> TokenArray:
        """A copy in which ids outside the vocabulary are separators, those beyond int32 too (hashes of images, say).

        Raises:
            InvalidRequestError: no one-dimensional array of integers.
        """
        given = np.asarray(tokens)
        if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
            raise InvalidRequestError(
                f"a history must be a one-dimensional array of integer token ids, got {given.dtype} {given.shape}"
            )
        if given.dtype == TOKEN_DTYPE and (given.view(np.uint32) < self._vocabulary).all():
            return given.copy()
        inside = (given >= 0) & (given < self._vocabulary)
        cleaned = np.full(len(given), SEPARATOR, TOKEN_DTYPE)
        # Chosen before the cast, which would turn 2**32 + 5 into 5.
        np.copyto(cleaned, given, casting="unsafe", where=inside)
        return cleaned

    def clean_with_list(self, tokens: TokenArray) -> tuple[TokenArray, list[int]]:
        """Like :meth:`clean`, for tokens that are not empty; and the same as a list."""
        if type(tokens) is _ARRAY and tokens.dtype is _TOKENS and tokens.ndim == 1:
            listed = tokens.tolist()
            few = len(listed) <= _FEW_TOKENS
            if few and min(listed) >= 0 and max(listed) < self._vocabulary:
                return tokens.copy(), listed
        cleaned = self.clean(tokens)
        return cleaned, cleaned.tolist()

    def cut(
        self,
        out: DraftBuffers,
        lengths: list[int],
        ceilings: Sequence[int],
        stops: Sequence[frozenset[int]],
    ) -> list[list[int]]:
        """Cut every draft to its ceiling, before an id outside the vocabulary or a node of a tree that hangs on none
        before it, and after a stop token.

        Cutting a row to its first nodes leaves a valid tree, since parents stand before their children.

        Args:
            out: the drafts; what is too long is cut there.
            lengths: of the drafts, as :attr:`out` has them.
            ceilings, stops: most tokens, and stop tokens, by row.

        Returns:
            The drafts that are left, as lists.
        """
        drafts: list[list[int]] = []
        for row, (length, most) in enumerate(zip(lengths, ceilings, strict=True)):
            if not 0 <= length <= most:
                length = out.lengths[row] = max(0, min(length, most))
            drafts.append(out.tokens[row, :length].tolist() if length else [])
        suspects = range(len(drafts)) if len(drafts) <= _FEW_ROWS else self._suspects(out, stops)
        for row in suspects:
            tokens = drafts[row]
            if not tokens:
                continue
            length = self._sound(tokens, out.parents, row)
            if length < len(tokens):
                self._stats.clipped += 1
            if stops[row] and not stops[row].isdisjoint(tokens):
                length = _until_stop(out, row, tokens[:length], stops[row])
            if length < len(tokens):
                out.lengths[row] = length
                del tokens[length:]
        return drafts

    def _sound(self, tokens: list[int], parents: IntArray | None, row: int) -> int:
        """How many tokens come before the first that is foreign, or hangs on none of those before it."""
        length = len(tokens)
        if min(tokens) < 0 or max(tokens) >= self._vocabulary:
            length = next(i for i, t in enumerate(tokens) if not 0 <= t < self._vocabulary)
        if parents is not None:
            for node, parent in enumerate(parents[row, :length].tolist()):
                if not ROOT <= parent < node:
                    return node
        return length

    def _suspects(self, out: DraftBuffers, stops: Sequence[frozenset[int]]) -> list[int]:
        """Rows with an id outside the vocabulary, a stop token of any row or an orphan, also behind the draft."""
        # As unsigned numbers negative ids are large ones.
        found = out.tokens.view(np.uint32) >= self._vocabulary
        ends = frozenset().union(*set(stops))
        if len(ends) <= _FEW_STOPS:
            for end in ends:
                found |= out.tokens == end
        else:
            found |= np.isin(out.tokens, np.fromiter(ends, TOKEN_DTYPE, len(ends)))
        if out.parents is not None:
            found |= (out.parents < ROOT) | (out.parents >= np.arange(out.parents.shape[1]))
        rows: list[int] = np.flatnonzero(found.any(axis=1)).tolist()
        return rows


def _until_stop(out: DraftBuffers, row: int, tokens: list[int], stops: frozenset[int]) -> int:
    """How many of the tokens come before the first that hangs on a stop token."""
    parents: Sequence[int] = range(-1, len(tokens) - 1)  # of a chain: each hangs on the one before
    if out.parents is not None:
        parents = out.parents[row, : len(tokens)].tolist()
    for node, parent in enumerate(parents):
        if parent >= 0 and tokens[parent] in stops:
            return node
    return len(tokens)
