"""Numbers packed at their own width into 64-bit words, lowest bits first."""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import lean_kernel
from specplug.kernels.datastore_layout import Index, LongArray, WordArray


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
def unpack(words: WordArray, first: Index, bits: Index, start: Index, out: LongArray) -> None:
    """Numbers ``start .. start + len(out) - 1`` of a section into ``out``."""
    for i in range(out.shape[0]):
        out[i] = read_packed(words, first, bits, start + i)


@lean_kernel
def pack(values: LongArray, bits: Index, offset: Index, words: WordArray) -> None:
    """Write ``values`` from bit ``offset`` of ``words`` on, which must be zero there; each fits in ``bits`` (1..63)."""
    for i in range(values.shape[0]):
        start = offset + i * bits
        word = start >> 6
        shift = start & 63
        value = np.uint64(values[i])
        words[word] |= value << np.uint64(shift)
        if shift + bits > 64:
            words[word + 1] |= value >> np.uint64(64 - shift)
