"""Which stretches of a text stood anywhere before: a set of hashes of all windows of up to ``limit`` tokens.

A table is uint64 with a power of two of places, 0 where it is empty, probed linearly. Every prefix of a window in it is
in it too, so the longest known stretch is found by growing it. Two windows with equal 64-bit hashes would count as
equal; with a few million windows that happens about once in a million runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.kernels._jit import lean_kernel

Table = NDArray[np.uint64]
#: Bits of the hash of two neighbouring tokens, see :func:`pair_hash`.
PAIR_BITS = 20

_SEED = np.uint64(0x9E3779B97F4A7C15)
_FACTOR = np.uint64(0xD1342543DE82EF95)
_SHIFT = np.uint64(32)
_ONE = np.uint64(1)
_PAIR_SHIFT = np.uint64(64 - PAIR_BITS)


@lean_kernel
def longer_hash(before: Any, token: Any) -> Any:
    """Hash of a window that is one token longer; start with 0. Never 0."""
    mixed = (before ^ (np.uint64(token) + _SEED)) * _FACTOR
    return (mixed ^ (mixed >> _SHIFT)) | _ONE


@lean_kernel
def pair_hash(token: Any, following: Any) -> Any:
    """Hash of two neighbouring tokens, below ``2 ** PAIR_BITS``."""
    return np.int64(longer_hash(longer_hash(np.uint64(0), token), following) >> _PAIR_SHIFT)


@lean_kernel
def _place(table: Table, value: Any) -> Any:
    """Where ``value`` stands in a table, or the empty place where it belongs."""
    mask = np.uint64(table.shape[0] - 1)
    place = (value >> _ONE) & mask
    while table[place] != 0 and table[place] != value:
        place = (place + _ONE) & mask
    return place


@lean_kernel
def add_windows(table: Table, text: Any, start: Any, longest: Any) -> None:
    """Put the windows that begin at ``start`` into a table, up to ``longest`` tokens or the end of the text."""
    value = np.uint64(0)
    for position in range(start, min(start + longest, text.shape[0])):
        value = longer_hash(value, text[position])
        table[_place(table, value)] = value


@lean_kernel
def add_text(table: Table, text: Any, limit: Any) -> None:
    """Put all windows of a text (int32 ``[n]``) into a table."""
    for start in range(text.shape[0]):
        add_windows(table, text, start, limit)


@lean_kernel
def longest_earlier(
    text: Any, wanted: Any, own: Table, new: Table, old: Table, limit: Any, out: Any
) -> None:
    """For the last positions of a text: how many tokens from there on stood, in this order, anywhere earlier.

    Args:
        text: int32 ``[n]``.
        wanted: bool ``[2 ** PAIR_BITS]``, set for every :func:`pair_hash` in the part that is asked about.
        own: an empty table, large enough; filled with windows of this text.
        new, old: tables of earlier texts.
        out: int64 ``[m]``: written for positions ``n - m .. n - 1``, values 0 to ``limit``.
    """
    first = text.shape[0] - out.shape[0]
    for start in range(text.shape[0]):
        if start >= first:
            value = np.uint64(0)
            length = 0
            while length < limit and start + length < text.shape[0]:
                value = longer_hash(value, text[start + length])
                if (
                    own[_place(own, value)] == 0
                    and new[_place(new, value)] == 0
                    and old[_place(old, value)] == 0
                ):
                    break
                length += 1
            out[start - first] = length
        longest = 1
        if start + 1 < text.shape[0] and wanted[pair_hash(text[start], text[start + 1])]:
            longest = limit
        add_windows(own, text, start, longest)


@lean_kernel
def mark_pairs(text: Any, wanted: Any) -> None:
    """Set ``wanted`` at the hash of every pair of neighbours in a text."""
    for start in range(text.shape[0] - 1):
        wanted[pair_hash(text[start], text[start + 1])] = True


@lean_kernel
def count_pairs(text: Any, wanted: Any) -> Any:
    """How many pairs of neighbours in a text have ``wanted`` set."""
    count = 0
    for start in range(text.shape[0] - 1):
        count += wanted[pair_hash(text[start], text[start + 1])]
    return count
