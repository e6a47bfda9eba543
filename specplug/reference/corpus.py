"""The corpus of a datastore as plain lists, shared by the slow twins."""

from __future__ import annotations

from typing import Any

from specplug.reference.packed import read_packed

#: Places in ``meta``, see specplug.kernels.datastore_layout.
TOKENS, VOCAB, DEPTH, TOKEN_BITS, TOKEN_WORD = 0, 2, 3, 4, 5


def token_at(shelf: Any, position: int) -> int:
    """Token at ``position``; -1 for a separator and before the beginning."""
    if position < 0:
        return -1
    words, meta = shelf
    token = read_packed(words, int(meta[TOKEN_WORD]), int(meta[TOKEN_BITS]), position)
    return token if token < meta[VOCAB] else -1


def context_of(shelf: Any, position: int) -> list[int]:
    """The tokens before ``position``, last first, up to ``DEPTH`` or the beginning of the document."""
    context: list[int] = []
    while len(context) < shelf[1][DEPTH]:
        token = token_at(shelf, position - 1 - len(context))
        if token < 0:
            break
        context.append(token)
    return context


def entries(shelf: Any) -> list[int]:
    """Positions that have a token before them and a token at them, ascending."""
    return [
        position
        for position in range(int(shelf[1][TOKENS]))
        if token_at(shelf, position) >= 0 and token_at(shelf, position - 1) >= 0
    ]
