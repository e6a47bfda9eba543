"""Slow twin of :mod:`specplug.kernels.packed`: the words as one long binary number."""

from __future__ import annotations

from typing import Any


def _number(words: Any) -> int:
    return sum(int(word) << (64 * i) for i, word in enumerate(words))


def read_packed(words: Any, first: int, bits: int, index: int) -> int:
    """Number ``index`` of the section that begins at word ``first``."""
    return (_number(words) >> (64 * first + index * bits)) & ((1 << bits) - 1)


def read_bits(words: Any, first: int, start: int, bits: int) -> int:
    """The ``bits`` bits from bit ``start`` of the section that begins at word ``first`` on."""
    return (_number(words) >> (64 * first + start)) & ((1 << bits) - 1)


def unpack(words: Any, first: int, bits: int, start: int, out: Any) -> None:
    """Numbers ``start .. start + len(out) - 1`` of a section into ``out``."""
    for i in range(len(out)):
        out[i] = read_packed(words, first, bits, start + i)


def pack(values: Any, bits: int, offset: int, words: Any) -> None:
    """Write the lowest ``bits`` of each of ``values`` from bit ``offset`` of ``words`` on."""
    number = _number(words)
    for i, value in enumerate(values):
        number += (int(value) & (1 << bits) - 1) << (offset + i * bits)
    for i in range(len(words)):
        words[i] = (number >> (64 * i)) & (2**64 - 1)


def first_outside(document: Any, limit: int) -> int:
    """Place of the first id that is not in ``0 .. limit - 1``; -1 if there is none."""
    return next((i for i, token in enumerate(document) if not 0 <= token < limit), -1)


def pack_documents(
    documents: Any, lengths: Any, limit: int, bits: int, offset: int, words: Any
) -> int:
    """Like :func:`pack`, for documents, ``limit`` behind each; nothing where an id is not in ``0 .. limit - 1``."""
    wrong = first_outside(documents, limit)
    start = 0
    for length in lengths.tolist() if wrong < 0 else []:
        pack([*documents[start : start + length], limit], bits, offset, words)
        start, offset = start + length, offset + (length + 1) * bits
    return wrong
