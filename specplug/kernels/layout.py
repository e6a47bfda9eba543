"""Memory layout of the suffix drafter: constants, and the arrays that its kernels share.

Positions. In a *stream* (one request's tokens) position ``p`` stands for the token at index ``p`` together with the
context before it; a *candidate* is a position whose context resembles the end of the request, so the token at ``p``
is a guess for the next token. In the *store* (finished outputs, a ring) positions count all tokens ever stored;
only the newest ``capacity`` of them still exist.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: An integer, Python's or numpy's: compiled code does not tell them apart.
Index: TypeAlias = Any
#: What stands for a state where kernels are called, see :mod:`specplug.kernels.handle`.
Handle: TypeAlias = Any
IntArray: TypeAlias = NDArray[np.int32]
LongArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
CountArray: TypeAlias = NDArray[np.float32]

#: Context lengths that are hashed, ascending. Longer ones bring less than 0.1 % on the traces.
ORDERS = (1, 2, 4)
N_ORDERS = len(ORDERS)
LONGEST = ORDERS[-1]

#: Tokens per page of a stream, and hash buckets per page and order. Both powers of two.
PAGE_BITS = 6
PAGE = 1 << PAGE_BITS
BUCKET_BITS = 5
BUCKETS = 1 << BUCKET_BITS

#: Outputs start at multiples of this in the store, so that one namespace id per block suffices.
BLOCK = 16

#: Tokens of context that are compared, at most; and after one edit.
MAX_MATCH = 32
MAX_EDIT = 8
CONTEXT = MAX_MATCH + MAX_EDIT + 8

#: Links followed per chain; candidates taken per chain; candidates kept per source after the first draft token.
MAX_STEPS = 64
MAX_FOUND = 24
KEEP = 16
#: Where so many candidates were found, shorter contexts are not looked up any more.
ENOUGH = 12
MAX_CANDIDATES = 2 * (2 * MAX_FOUND - 1) + 6

#: Token id that matches nothing; ends an output in the store.
SEPARATOR = -1

#: Positions that are linked per call, so that a long prompt is spread over steps (about 20 ns each).
LINKED_PER_CALL = 1 << 14

#: Sources of a candidate.
PROMPT, OUTPUT, STORE = 0, 1, 2
N_SOURCES = 3

#: Columns of a candidate (int64, one cache line): its place, match length, class (edit extension and rank), source,
#: the token that it guesses, and where it counts: the row of its source and length, its nearness to the copy pointer
#: and its age, as cells of that row.
POSITION, LENGTH, CLASS, SOURCE, TOKEN, PARENT, NEAR, AGE = range(8)
CANDIDATE_FIELDS = 8
#: Classes: three bins of the edit extension times three of the rank.
N_CLASSES = 9

#: Cells of a source and match length: first those by class, then by nearness to the copy pointer, then by age.
FIRST_NEAR, FIRST_AGE, N_CELLS = 9, 12, 24
LENGTH_BINS = 12

#: Columns of a ranked token in the log (int64): the id and its cells in the three token tables.
TOKEN_FIELDS = 4

#: Columns of ``Scratch.best`` (float64): the greatest reliability by source (they come first), match length, odds ratio
#: by nearness and by age, the number of supporters, and the greatest reliability of all.
V_LENGTH, V_NEAR, V_AGE, V_COUNT, V_FIRST, VOTE_FIELDS = 3, 4, 5, 6, 7, 8

#: Odds of a ranked token: its reliability, the three token tables, nearness, age, and the text that says less.
O_RELIABILITY, O_TOKEN, O_CONTEXT, O_RECENCY, O_NEAR, O_AGE, O_BOTH = range(7)
#: Places for each token; a power of two, so that logarithms are taken four or eight at a time.
ODDS = 8

#: Features of a ranked token.
F_RELIABILITY, F_COUNT, F_ONE, F_TOKEN, F_CONTEXT, F_RECENCY, F_NEAR, F_AGE, F_BOTH = range(9)
N_FEATURES = 9

#: Log entries per request: ranked tokens and candidates of the last draft. What does not fit is not learned from.
LOG_TOKENS = 192
LOG_CANDIDATES = 256

#: Rows of the hashed token and context tables, and of the recency table.
TABLE_ROWS = 1 << 18
RECENCY_ROWS = 256

#: Tokens of a stream whose last place is kept, by hash; a power of two.
RECENT_ROWS = 1 << 11

#: Hit rates of sources and match lengths, and of their cells, are kept this far from 0 and 1.
RAREST = 1e-4

#: Answers that are being written (:mod:`specplug.kernels.live`): how their places are numbered and tagged; places in a
#: row of the table, its first order, candidates that make shorter contexts needless; places that are entered per call.
LIVE, LIVE_TAG, LIVE_BITS = 1 << 62, 46, 32
LIVE_WAYS, LIVE_FIRST, LIVE_ENOUGH = 4, 1, 4
SHOWN_PER_CALL = 1 << 12

#: Models kept at once: one for all requests, the others for prompt templates that recur.
N_MODELS = 24

#: Columns of ``Slots.numbers`` (int64): the stream, its namespace and model, ranked depths and draft tokens of the
#: last draft (-1 where no draft waits for its outcome), and its row in the log; the copy pointers come last.
N_LENGTH, N_PROMPT, N_INDEXED, N_NAMESPACE, N_MODEL, N_DEPTHS, N_DRAFTED, N_LOG = range(8)
#: Further columns: of the outcome that waits to be learned from its log (-1: none), the depths known, where its tokens
#: begin in the stream, how many there were and how many had been drafted.
N_PENDING, N_KNOWN, N_OUTCOME, N_EMITTED, N_COUNTED = range(8, 13)
#: Tokens of the chain that was drafted, and of the one that waits to be learned from; draft tokens of the request that
#: were judged, right, and expected to be right, in units of 2**-20 (:mod:`specplug.kernels.calibration`).
N_CHAIN, N_JUDGED, N_TRIED, N_AGREED, N_EXPECTED = range(13, 18)
#: Up to where the answer stands in the table of answers that are being written (0: not at all, -1: nobody's slot).
N_SHOWN, N_POINTER = 18, 19
SLOT_FIELDS = N_POINTER + N_SOURCES

#: Columns of ``Store.numbers`` (int64): tokens ever stored, outputs ever stored, and the namespace whose text serves
#: all requests (-1: none).
S_END, S_OUTPUTS, S_COMMON = 0, 1, 2
STORE_FIELDS = 3

#: Columns of ``Model.numbers``.
M_TOKENS, M_COST, M_UPDATES = 0, 1, 2

#: Columns of ``Model.calibration``, and its bins of equal width.
C_TRIED, C_EXPECTED, C_ACCEPTED, C_RATIO = 0, 1, 2, 3
CALIBRATION_BINS = 10

#: Columns of ``Log.depths`` (int64): ranked tokens, weight sets (3), candidates, offsets of both in the log, and the
#: row of the most probable token.
D_TOKENS, D_SET, D_CANDIDATES, D_TOKEN_START, D_CANDIDATE_START, D_TOP = 0, 1, 4, 5, 6, 7
DEPTH_FIELDS = 8

#: Columns of ``Scratch.nodes`` (int64), the nodes that a draft tree may get: token (-1 once it is taken), parent in the
#: tree, depth in the chain or beside it (-1 further on in a branch), whether it is of the chain, and for the others the
#: place that is copied, its match length, class and source.
T_TOKEN, T_PARENT, T_DEPTH, T_CHAIN, T_POSITION, T_LENGTH, T_CLASS, T_SOURCE = range(8)
NODE_FIELDS = 8


class Slots(NamedTuple):
    """Per-request streams in pages; 22 bytes per token and about 0.1 for the page table, and 16 kB for each slot.

    Invariants: a page belongs to at most one slot; pages ``0 .. (length - 1) // PAGE`` of a live slot are assigned;
    ``free[:free_count[0]]`` lists the others; positions ``1 .. indexed - 1`` are linked.

    Attributes:
        tokens: int32 ``[pages * PAGE]``.
        links: int32 ``[pages * PAGE, N_ORDERS]``, the previous position in the same bucket; 0 ends a chain. Chains of
            shorter contexts pass the places of longer ones again, which are in the cache by then.
        heads: int32 ``[pages, N_ORDERS, BUCKETS]``, the newest position of each bucket.
        pages: int32 ``[slots, pages per slot]``, the page table.
        numbers: int64 ``[slots, SLOT_FIELDS]``, see ``N_*``; the copy pointers come last.
        free: int32 ``[pages]`` and free_count: int64 ``[1]``, the unused pages as a stack.
        recent: int32 ``[slots, RECENT_ROWS, 2]``, by hash: a token, and where it stands last among those before linked
            positions; the token -1 where there is none. A later token of the same hash takes the place.
        pending: int32 ``[slots + 1]``, how many outcomes wait to be learned from, then of which slots, in their order.
        live: int64 ``[orders, rows, LIVE_WAYS]``, a power of two of rows (0: running requests share nothing).
        running: int64 ``[1]``, how many slots are somebody's.
    """

    tokens: NDArray[np.int32]
    links: NDArray[np.int32]
    heads: NDArray[np.int32]
    pages: NDArray[np.int32]
    numbers: NDArray[np.int64]
    free: NDArray[np.int32]
    free_count: NDArray[np.int64]
    recent: NDArray[np.int32]
    pending: NDArray[np.int32]
    live: NDArray[np.int64]
    running: NDArray[np.int64]


class Store(NamedTuple):
    """Finished outputs in a ring; at most 23 bytes per token.

    Attributes:
        tokens: int32 ``[capacity]``, a multiple of :data:`BLOCK`.
        links: uint32 ``[capacity, N_ORDERS]``, distance to the previous position in the same bucket; 0 ends a chain.
        heads: uint32 ``[N_ORDERS, buckets]``, newest position of each bucket, modulo 2**32; a power of two of them.
        namespaces: int32 ``[capacity / BLOCK]``.
        numbers: int64 ``[STORE_FIELDS]``, see ``S_*``. Stored positions start at ``BLOCK``, so that 0 is none.
    """

    tokens: NDArray[np.int32]
    links: NDArray[np.uint32]
    heads: NDArray[np.uint32]
    namespaces: NDArray[np.int32]
    numbers: NDArray[np.int64]


class Model(NamedTuple):
    """What was learned about which guesses come true. Count tables hold ``[hits, trials]``.

    Prompts with a template of their own have a model of their own (``M`` of them): how far a match can be trusted
    differs more between kinds of traffic than within one.

    Attributes:
        parents: float64 ``[M, N_SOURCES * LENGTH_BINS, 4]``: hits, trials, their ratio, the odds against a hit.
        cells: float32 ``[M, N_SOURCES * LENGTH_BINS, N_CELLS, 2]``.
        by_token, by_context: float32 ``[TABLE_ROWS, 2]``; all models hash into the same rows, those of a token for
            different match lengths lie in one cache line.
        by_recency: float32 ``[M, RECENCY_ROWS, 2]``.
        weights: float64 ``[M, 3, LENGTH_BINS, N_FEATURES]``; the sets by depth, by best length,
            and by number of tokens and sources add up.
        numbers: float64 ``[M, 3]``, see ``M_*``: discounted tokens and cost, and updates so far.
        calibration: float64 ``[M, CALIBRATION_BINS, 4]``, see ``C_*``: by survival estimate.
    """

    parents: NDArray[np.float64]
    cells: NDArray[np.float32]
    by_token: NDArray[np.float32]
    by_context: NDArray[np.float32]
    by_recency: NDArray[np.float32]
    weights: NDArray[np.float64]
    numbers: NDArray[np.float64]
    calibration: NDArray[np.float64]


class Log(NamedTuple):
    """The last two drafts of each request, in rows ``2 * slot`` and ``2 * slot + 1``, kept until they are learned from.

    The arrays have :data:`MAX_CANDIDATES` rows of margin, so that a depth which no longer fits can still be ranked.

    The candidates of a depth are advanced to the next one from log row to log row.

    Attributes:
        depths: int64 ``[2 * slots, K + 2, DEPTH_FIELDS]``.
        tokens: int64 ``[2 * slots, LOG_TOKENS + margin, TOKEN_FIELDS]``.
        features: float64 ``[2 * slots, LOG_TOKENS + margin, N_FEATURES]``.
        probs: float64 ``[2 * slots, LOG_TOKENS + margin]``.
        candidates: int64 ``[2 * slots, LOG_CANDIDATES + margin, CANDIDATE_FIELDS]``.
        sources: uint8 ``[slots, K]``, which source spoke most reliably for each token of the last draft.
    """

    depths: NDArray[np.int64]
    tokens: NDArray[np.int64]
    features: NDArray[np.float64]
    probs: NDArray[np.float64]
    candidates: NDArray[np.int64]
    sources: NDArray[np.uint8]


class Scratch(NamedTuple):
    """Work space of one thread.

    Attributes:
        context: int32 ``[CONTEXT]``, the last tokens of the request.
        drafted: int32 ``[K + 1]``, the tokens chosen so far and the first one not proposed.
        candidates: int64 ``[MAX_CANDIDATES, CANDIDATE_FIELDS]``.
        distinct: int32 ``[MAX_CANDIDATES + 8]``, the distinct tokens, and room to read eight at once.
        best: float64 ``[MAX_CANDIDATES, VOTE_FIELDS]``, what speaks for each distinct token, see ``V_*``.
        above, below: float64 ``[MAX_CANDIDATES * ODDS]``, of each distinct token what is divided, see ``O_*``;
            logarithms of the quotients take the place of the first.
        weights: float64 ``[N_FEATURES]``, the sum of the weight sets of a depth.
        hashes: int64 ``[N_ORDERS]``; longest: int64 ``[N_SOURCES]``.
        chain: float64 ``[K + 1, 2]``, survival and source of the chain that a tree is made of.
        nodes: int64 ``[LOG_TOKENS + 2 * K + 2, NODE_FIELDS]``, see ``T_*``; worth: float64 of each, its survival.
    """

    context: NDArray[np.int32]
    drafted: NDArray[np.int32]
    candidates: NDArray[np.int64]
    distinct: NDArray[np.int32]
    best: NDArray[np.float64]
    above: NDArray[np.float64]
    below: NDArray[np.float64]
    weights: NDArray[np.float64]
    hashes: NDArray[np.int64]
    longest: NDArray[np.int64]
    chain: NDArray[np.float64]
    nodes: NDArray[np.int64]
    worth: NDArray[np.float64]


class Calls(NamedTuple):
    """Arrays of the caller that are mostly the same at each step, so that they need not be handed over each time.

    Attributes:
        slots, ceilings: int32 ``[B]``, and tokens, survival, lengths: int32 ``[B, K]``, float64 ``[B, K]``,
            int32 ``[B]``, of the call that drafts.
        observed, offsets: int32 ``[B]`` and int64 ``[B + 1]`` of the call that observes.
        parents: int32 ``[B, K]`` where trees are drafted, else no row.
    """

    slots: NDArray[np.int32]
    ceilings: NDArray[np.int32]
    tokens: NDArray[np.int32]
    survival: NDArray[np.float64]
    lengths: NDArray[np.int32]
    observed: NDArray[np.int32]
    offsets: NDArray[np.int64]
    parents: NDArray[np.int32]


class State(NamedTuple):
    """Everything a kernel of the suffix drafter works on."""

    slots: Slots
    store: Store
    model: Model
    log: Log
    scratch: Scratch
    calls: Calls


#: Dtype and number of axes of every array of the state, in the order of the tuples above.
FORMS: dict[str, dict[str, tuple[Any, int]]] = {
    "slots": {
        "tokens": (np.int32, 1),
        "links": (np.int32, 2),
        "heads": (np.int32, 3),
        "pages": (np.int32, 2),
        "numbers": (np.int64, 2),
        "free": (np.int32, 1),
        "free_count": (np.int64, 1),
        "recent": (np.int32, 3),
        "pending": (np.int32, 1),
        "live": (np.int64, 3),
        "running": (np.int64, 1),
    },
    "store": {
        "tokens": (np.int32, 1),
        "links": (np.uint32, 2),
        "heads": (np.uint32, 2),
        "namespaces": (np.int32, 1),
        "numbers": (np.int64, 1),
    },
    "model": {
        "parents": (np.float64, 3),
        "cells": (np.float32, 4),
        "by_token": (np.float32, 2),
        "by_context": (np.float32, 2),
        "by_recency": (np.float32, 3),
        "weights": (np.float64, 4),
        "numbers": (np.float64, 2),
        "calibration": (np.float64, 3),
    },
    "log": {
        "depths": (np.int64, 3),
        "tokens": (np.int64, 3),
        "features": (np.float64, 3),
        "probs": (np.float64, 2),
        "candidates": (np.int64, 3),
        "sources": (np.uint8, 2),
    },
    "scratch": {
        "context": (np.int32, 1),
        "drafted": (np.int32, 1),
        "candidates": (np.int64, 2),
        "distinct": (np.int32, 1),
        "best": (np.float64, 2),
        "above": (np.float64, 1),
        "below": (np.float64, 1),
        "weights": (np.float64, 1),
        "hashes": (np.int64, 1),
        "longest": (np.int64, 1),
        "chain": (np.float64, 2),
        "nodes": (np.int64, 2),
        "worth": (np.float64, 1),
    },
    "calls": {
        "slots": (np.int32, 1),
        "ceilings": (np.int32, 1),
        "tokens": (np.int32, 2),
        "survival": (np.float64, 2),
        "lengths": (np.int32, 1),
        "observed": (np.int32, 1),
        "offsets": (np.int64, 1),
        "parents": (np.int32, 2),
    },
}

#: The tuples of the state, in its order.
GROUPS: dict[str, Any] = {
    "slots": Slots,
    "store": Store,
    "model": Model,
    "log": Log,
    "scratch": Scratch,
    "calls": Calls,
}
