"""Memory layout of a datastore and of its drafter: constants, and the arrays that the kernels share.

A datastore is one array of 64-bit words (the mapped file) and ``meta``, where things lie in it. Numbers are packed at
their own width, ``bits`` each, lowest bits first: number ``i`` of a section takes the bits ``i * bits`` and up.

* *tokens*: the documents one after the other, a separator (the id ``vocab_size``) behind each;
* *entries*: every position that has a token before it and a token at it, sorted by the tokens before it, last first;
* *buckets*: for every token ``t``, how many entries have a last token smaller than ``t``; in small stores only for
  those that are a last token (``BUCKET_LISTED`` of them, ascending, ``t`` itself in the upper bits), and the separator.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: An integer, Python's or numpy's: compiled code does not tell them apart.
Index: TypeAlias = Any
IntArray: TypeAlias = NDArray[np.int32]
LongArray: TypeAlias = NDArray[np.int64]
WordArray: TypeAlias = NDArray[np.uint64]
ByteArray: TypeAlias = NDArray[np.uint8]
FloatArray: TypeAlias = NDArray[np.float64]

#: Fields of ``meta`` (int64): counts, then width and first word of each section.
TOKENS, ENTRIES, VOCAB, DEPTH = 0, 1, 2, 3
TOKEN_BITS, TOKEN_WORD = 4, 5
ENTRY_BITS, ENTRY_WORD = 6, 7
BUCKET_BITS, BUCKET_WORD = 8, 9
#: Last tokens that the buckets list; 0: there is a number for every token.
BUCKET_LISTED = 10
META_FIELDS = 11

#: Tokens of context by which entries are sorted, at most; longer matches are not told apart.
MAX_DEPTH = 32

#: Occurrences that are merged into a draft, at most: one bit each in the mask of a node.
MAX_FOUND = 48
#: Children of a node that are considered, at most.
MAX_BRANCHES = 4

#: Columns of an occurrence (int64): position of its next token, length of its match.
POSITION, LENGTH = 0, 1

#: Columns of a node (int64): its token, its parent, tokens before it, occurrences behind it, classes, 1 if drafted.
TOKEN, NODE_PARENT, NODE_DEPTH, MASK, CELL, COARSE, DRAFTED = 0, 1, 2, 3, 4, 5, 6
NODE_FIELDS = 7

#: Classes of a guess: match length, share of the evidence, occurrences that agree.
LENGTH_CLASSES, SHARE_CLASSES, COUNT_CLASSES = 14, 8, 4
COARSE_CLASSES = LENGTH_CLASSES * SHARE_CLASSES
CLASSES = COARSE_CLASSES * COUNT_CLASSES

#: ``numbers`` of the model: discounted tokens emitted and cost of the steps (plain decoding steps).
EMITTED, SPENT = 0, 1


class Shelf(NamedTuple):
    """An open datastore.

    Attributes:
        words: uint64, read-only.
        meta: int64 ``[META_FIELDS]``.
    """

    words: WordArray
    meta: LongArray


class Readers(NamedTuple):
    """What is kept of every request.

    Attributes:
        contexts: int32 ``[slots, MAX_DEPTH]``, its last tokens, the newest at the end.
        sizes: int64 ``[slots, 2]``: how many of them there are; nodes of the last draft, -1 if it was judged.
        nodes: int64 ``[slots, N, NODE_FIELDS]``, the last draft and the guesses that were not drafted.
    """

    contexts: IntArray
    sizes: LongArray
    nodes: LongArray


class Model(NamedTuple):
    """What is learned: how often guesses of a class come true.

    Attributes:
        cells: float64 ``[CLASSES, 2]``, hits and trials by class.
        coarse: float64 ``[COARSE_CLASSES, 2]``, the same without the number of occurrences.
        weights: float64 ``[MAX_DEPTH + 1]``, evidence of one occurrence by the length of its match.
        numbers: float64 ``[2]``, see :data:`EMITTED`.
    """

    cells: FloatArray
    coarse: FloatArray
    weights: FloatArray
    numbers: FloatArray


class Scratch(NamedTuple):
    """Work space for one thread.

    Attributes:
        found: int64 ``[MAX_FOUND, 2]``, the occurrences.
        texts: int32 ``[MAX_FOUND, K + 1]``, what follows each, -1 behind its end.
        children: int64 ``[MAX_FOUND, 3]``: token, mask and longest match of the children of one node.
        evidence: float64 ``[MAX_FOUND]`` of each of them.
        survival: float64 ``[N]`` of the nodes.
        question: uint64 ``[MAX_DEPTH]``, the tokens that are looked for, packed.
    """

    found: LongArray
    texts: IntArray
    children: LongArray
    evidence: FloatArray
    survival: FloatArray
    question: WordArray


class Tally(NamedTuple):
    """Entries by their last token.

    Attributes:
        counts: int64 ``[vocab_size]``, how many there are.
        present: int64 ``[buckets]``, the tokens of which there are any, ascending.
        starts: int64 ``[buckets + 1]``, how many stand before those of each, and all.
    """

    counts: LongArray
    present: LongArray
    starts: LongArray


class Ordering(NamedTuple):
    """Work space for sorting all entries at once: 16 bytes each. May be longer than what is sorted.

    Attributes:
        keys, spare: uint64 ``[n]``, each a key above a position.
        counts: int64 ``[2048]``.
    """

    keys: WordArray
    spare: WordArray
    counts: LongArray


class Sorting(NamedTuple):
    """Work space for sorting a range of entries: 33 bytes each.

    Attributes:
        positions, other_positions: int64 ``[n]``.
        keys, other_keys: uint64 ``[n]``.
        same: uint8 ``[n]``, 1 where all tokens compared so far equal those of the entry before.
        counts: int64 ``[2048]``.
    """

    positions: LongArray
    other_positions: LongArray
    keys: WordArray
    other_keys: WordArray
    same: ByteArray
    counts: LongArray
