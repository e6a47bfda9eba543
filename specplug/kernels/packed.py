"""Numbers packed at their own width into 64-bit words, lowest bits first."""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import inlined_kernel, lean_kernel
from specplug.kernels.datastore_layout import Index, IntArray, LongArray, WordArray


@lean_kernel
def read_packed(words: WordArray, first: Index, bits: Index, index: Index) -> Any:
    """Number ``index`` of the section that begins at word ``first``. O(1), one or two words."""
    start = index * bits
    word = first + (start >> 6)
    shift = start & 63
    value = words[word] >> np.uint64(shift)
    if shift + bits > 64:
        value |= words[word + 1] << np.uint64(64 - shift)
    return np.int64(value & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1)))


@lean_kernel
def read_bits(words: WordArray, first: Index, start: Index, bits: Index) -> Any:
    """The ``bits`` (1..64) bits from bit ``start`` of the section that begins at word ``first`` on. O(1)."""
    word = first + (start >> 6)
    shift = start & 63
    value = words[word] >> np.uint64(shift)
    if shift + bits > 64:
        value |= words[word + 1] << np.uint64(64 - shift)
    return value & (~np.uint64(0) >> np.uint64(64 - bits))


@lean_kernel
def unpack(words: WordArray, first: Index, bits: Index, start: Index, out: LongArray) -> None:
    """Numbers ``start .. start + len(out) - 1`` of a section into ``out``."""
    for i in range(out.shape[0]):
        out[i] = read_packed(words, first, bits, start + i)


@lean_kernel
def pack(values: LongArray, bits: Index, offset: Index, words: WordArray) -> None:
    """Write the lowest ``bits`` (1..63) of each of ``values`` from bit ``offset`` of ``words`` on."""
    _pack(values, bits, offset, words)


@lean_kernel
def _pack(values: Any, bits: Index, offset: Index, words: WordArray) -> None:
    word = offset >> 6
    shift = offset & 63
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    # What is in the words behind is overwritten.
    current = words[word] if shift and values.shape[0] else np.uint64(0)
    for i in range(values.shape[0]):
        value = np.uint64(values[i]) & mask
        current |= value << np.uint64(shift)
        shift += bits
        if shift >= 64:
            words[word] = current
            word += 1
            shift -= 64
            # A shift by 64 is not zero on every processor; nothing is left of ``value`` then.
            current = value >> np.uint64(bits - shift) if shift else np.uint64(0)
    if shift and values.shape[0]:
        words[word] = current


@lean_kernel
def first_outside(document: IntArray, limit: Index) -> Any:
    """Place of the first id that is not in ``0 .. limit - 1``; -1 if there is none."""
    # Without a way out of the loop, so that several are compared at once.
    wrong = False
    for i in range(document.shape[0]):
        wrong |= document[i] < 0 or document[i] >= limit
    if wrong:
        for i in range(document.shape[0]):
            if document[i] < 0 or document[i] >= limit:
                return i
    return -1


@inlined_kernel
def _end(limit: Index, bits: Index, offset: Index, words: WordArray) -> None:
    """The separator behind a document."""
    word, shift = offset >> 6, offset & 63
    value = np.uint64(limit)
    words[word] = (words[word] if shift else np.uint64(0)) | (value << np.uint64(shift))
    if shift + bits > 64:
        words[word + 1] = value >> np.uint64(64 - shift)


@lean_kernel
def pack_documents(
    documents: IntArray,
    lengths: LongArray,
    limit: Index,
    bits: Index,
    offset: Index,
    words: WordArray,
) -> Any:
    """Like :func:`pack`, for documents one behind the other, so long each, and ``limit`` behind each.

    Nothing is written where an id is not in ``0 .. limit - 1``.

    Returns:
        As :func:`first_outside` does.
    """
    wrong = first_outside(documents, limit)
    if wrong >= 0:
        return wrong
    start = 0
    for i in range(lengths.shape[0]):
        end = start + lengths[i]
        _pack(documents[start:end], bits, offset, words)
        offset += lengths[i] * bits
        _end(limit, bits, offset, words)
        offset += bits
        start = end
    return -1
