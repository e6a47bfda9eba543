"""The state of the slow suffix drafter: lists, dicts and small records instead of flat arrays.

Constants stand here a second time, since neither side may import the other; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

ORDERS = (1, 2, 4)
PAGE = 64
BUCKET_BITS = 5
BLOCK = 16
MAX_MATCH = 32
MAX_EDIT = 8
CONTEXT = 48
MAX_STEPS = 64
MAX_FOUND = 24
ENOUGH = 12
KEEP = 16
LINKED_PER_CALL = 1 << 14
MAX_CANDIDATES = 100
SEPARATOR = -1
PROMPT, OUTPUT, STORE = 0, 1, 2
LIVE, LIVE_TAG, LIVE_BITS = 1 << 62, 46, 32
LIVE_WAYS, LIVE_FIRST, LIVE_ENOUGH = 4, 1, 4
SHOWN_PER_CALL = 1 << 12
LENGTH_BINS = 12
N_FEATURES = 9
LOG_TOKENS = 192
LOG_CANDIDATES = 256
TABLE_ROWS = 1 << 18
N_MODELS = 24
RECENCY_ROWS = 256
RECENT_ROWS = 2048
CALIBRATION_BINS = 10


@dataclass
class Candidate:
    """A place whose context resembles the end of the request; ``token`` is its guess for the next token.

    ``kind`` is its class by edit extension and rank.
    """

    position: int
    length: int
    kind: int
    source: int
    token: int = -1
    parent: int = 0
    cells: tuple[int, int, int] = (0, 0, 0)


@dataclass
class Ranked:
    """A distinct next token: its rows in the token tables, its features, its most reliable source, its probability."""

    token: int
    rows: tuple[int, int, int]
    features: list[float]
    source: int
    probability: float = 0.0


@dataclass
class Depth:
    """What was ranked at one depth of a draft."""

    sets: tuple[int, int, int]
    ranked: list[Ranked]
    candidates: list[Candidate]


@dataclass
class Stream:
    """One request. ``buckets[page][order, bucket]`` lists positions, newest first; ``recent`` holds, by hash, a token
    and its last index among those before linked positions; up to ``shown`` the answer stands in the table of answers
    that are being written (0: never)."""

    prompt_length: int
    namespace: int
    model: int
    shown: int
    tokens: list[int] = field(default_factory=list)
    indexed: int = 1
    buckets: list[dict[tuple[int, int], list[int]]] = field(default_factory=list)
    recent: dict[int, tuple[int, int]] = field(default_factory=dict)
    pointers: list[int] = field(default_factory=lambda: [0, 0, 0])
    depths: list[Depth] = field(default_factory=list)
    drafted: int = -1
    sources: list[int] = field(default_factory=list)
    chain: list[float] = field(default_factory=list)
    tried: int = 0
    agreed: int = 0
    expected: int = 0


@dataclass
class Store:
    """Finished outputs. ``tokens[i]`` is position ``i``; only the newest ``capacity`` positions still exist.

    The text of the namespace ``common`` serves all requests.
    """

    capacity: int
    bucket_count: int
    tokens: list[int] = field(default_factory=lambda: [SEPARATOR] * BLOCK)
    namespaces: list[int] = field(default_factory=lambda: [-1] * BLOCK)
    buckets: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    outputs: int = 0
    common: int | None = None


@dataclass
class Model:
    """Count tables of [hits, trials], the weights, and the discounted goodput."""

    parents: NDArray[np.float64]
    cells: NDArray[np.float32]
    by_recency: NDArray[np.float32]
    weights: NDArray[np.float64]
    calibration: NDArray[np.float64]
    tokens: float = 40.0
    cost: float = 20.0
    updates: float = 0.0


@dataclass
class Outcome:
    """A draft: depths with their true tokens, how many tokens were emitted and drafted, the chain with its survival."""

    slot: int
    known: list[tuple[Depth, int]]
    emitted: int
    drafted: int
    proposed: list[tuple[Depth, float]]


@dataclass
class SuffixState:
    """Everything the slow drafter works on. The two token tables serve all models.

    ``pending`` holds the outcomes that wait to be learned from, in their order; ``live`` the places in running answers
    with their tags, by order and row, newest first, of ``live_rows`` rows.
    """

    streams: dict[int, Stream]
    store: Store
    models: list[Model]
    by_token: NDArray[np.float32]
    by_context: NDArray[np.float32]
    live_rows: int
    pending: list[Outcome] = field(default_factory=list)
    live: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)


def new_state(capacity: int, bucket_count: int, live_rows: int) -> SuffixState:
    """No requests, nothing stored, nothing learned."""
    store, models = Store(capacity, bucket_count), [new_model() for _ in range(N_MODELS)]
    by_token, by_context = np.zeros((2, TABLE_ROWS, 2), np.float32)
    return SuffixState({}, store, models, by_token, by_context, live_rows)


def new_model() -> Model:
    """Nothing learned: longer matches are trusted more."""
    parents = np.zeros((3 * LENGTH_BINS, 2))
    for row in range(3 * LENGTH_BINS):
        parents[row] = (4.0 * min(0.95, 0.15 + 0.09 * (row % LENGTH_BINS)), 4.0)
    weights = np.zeros((3, LENGTH_BINS, N_FEATURES))
    weights[0] = (0.7, 0.2, 0.0, 0.3, 0.3, 0.2, 0.3, 0.3, 0.1)
    cells = np.zeros((3, 512, 2), np.float32)
    return Model(
        parents,
        cells,
        np.zeros((RECENCY_ROWS, 2), np.float32),
        weights,
        np.zeros((CALIBRATION_BINS, 3)),
    )
