"""The arrays of the suffix drafter: how large they are, and what they hold at first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.kernels import layout
from specplug.kernels.lanes import LANES
from specplug.types import Context

#: Bytes per token of the ring (id, links, share of the namespaces) without its bucket table.
RING_BYTES = 4 + 4 * layout.N_ORDERS
#: Pages that are set up at first, 34 million tokens; untouched ones cost address space, not memory.
FIRST_PAGES = 1 << 19
#: Bytes of an array that are touched when it is made: the system hands memory over page by page when it is first
#: written, up to 6 us for 4 kB, which would stall the first steps by 30 ms.
TOUCHED = 1 << 28
#: Tokens of live requests for which memory is touched at first.
TOUCHED_TOKENS = 1 << 21


def store_layout(budget: int) -> tuple[int, int]:
    """Capacity in tokens and number of buckets per order of a store of at most ``budget`` bytes.

    A budget (of less than about 1.5 kB) that leaves no room for four blocks gives no store: the capacity is 0.

    >>> capacity, buckets = store_layout(1 << 20)
    >>> store_bytes(capacity, buckets) <= 1 << 20
    True
    """
    per_block = layout.BLOCK * RING_BYTES + 4
    buckets = 1
    while _capacity(budget, 2 * buckets, per_block) >= 4 * buckets:
        buckets *= 2
    capacity = _capacity(budget, buckets, per_block)
    return (capacity, buckets) if capacity >= 4 * layout.BLOCK else (0, 1)


def _capacity(budget: int, buckets: int, per_block: int) -> int:
    fixed = 8 * layout.STORE_FIELDS + 4 * layout.N_ORDERS * buckets
    return (budget - fixed) // per_block * layout.BLOCK


def store_bytes(capacity: int, buckets: int) -> int:
    """Bytes that a store of this layout takes."""
    blocks = capacity // layout.BLOCK
    return (
        capacity * RING_BYTES + 4 * blocks + 4 * layout.N_ORDERS * buckets + 8 * layout.STORE_FIELDS
    )


def _zeros(shape: Any, dtype: type[np.generic] = np.float64, most: int = TOUCHED) -> NDArray[Any]:
    """Zeros, the first ``most`` bytes of them in memory already."""
    array = np.zeros(shape, dtype)
    flat = array.reshape(-1)
    flat[: most // array.itemsize] = 0
    return array


def new_slots(context: Context, shows: bool) -> layout.Slots:
    """Empty streams for ``context``; ``shows``: others may read an answer while it is written."""
    rows = 1 << max(10, min(14, (64 * context.max_requests - 1).bit_length()))
    shows = shows and 1 < context.max_requests <= 1 << (layout.LIVE_TAG - layout.LIVE_BITS)
    per_slot = -(-context.max_length // layout.PAGE) + 1
    pages = min(FIRST_PAGES, per_slot * context.max_requests)
    numbers = np.zeros((context.max_requests, layout.SLOT_FIELDS), np.int64)
    numbers[:, layout.N_INDEXED] = 1
    numbers[:, layout.N_DRAFTED] = -1
    numbers[:, layout.N_PENDING] = -1
    numbers[:, layout.N_SHOWN] = -1
    recent = _zeros((context.max_requests, layout.RECENT_ROWS, 2), np.int32)
    recent[..., 0] = layout.SEPARATOR
    return layout.Slots(
        _zeros(pages * layout.PAGE, np.int32, 4 * TOUCHED_TOKENS),
        _zeros(
            (pages * layout.PAGE, layout.N_ORDERS), np.int32, 4 * layout.N_ORDERS * TOUCHED_TOKENS
        ),
        _zeros(
            (pages, layout.N_ORDERS, layout.BUCKETS),
            np.int32,
            TOUCHED_TOKENS // layout.PAGE * layout.N_ORDERS * layout.BUCKETS * 4,
        ),
        _zeros((context.max_requests, per_slot), np.int32),
        numbers,
        np.arange(pages, dtype=np.int32)[::-1].copy(),
        np.array([pages], np.int64),
        recent,
        np.zeros(context.max_requests + 1, np.int32),
        _zeros(
            (layout.N_ORDERS - layout.LIVE_FIRST, rows if shows else 0, layout.LIVE_WAYS), np.int64
        ),
        np.zeros(1, np.int64),
    )


def grow_slots(slots: layout.Slots, pages: int) -> layout.Slots:
    """The same streams with room for ``pages`` pages."""
    before = len(slots.free)
    count = int(slots.free_count[0])
    tokens = np.zeros(pages * layout.PAGE, np.int32)
    tokens[: len(slots.tokens)] = slots.tokens
    links = np.zeros((pages * layout.PAGE, layout.N_ORDERS), np.int32)
    links[: len(slots.tokens)] = slots.links
    heads = np.zeros((pages, layout.N_ORDERS, layout.BUCKETS), np.int32)
    heads[:before] = slots.heads
    free = np.zeros(pages, np.int32)
    added = np.arange(before, pages, dtype=np.int32)[::-1]
    free[: len(added)] = added
    free[len(added) : len(added) + count] = slots.free[:count]
    return slots._replace(
        tokens=tokens,
        links=links,
        heads=heads,
        free=free,
        free_count=np.array([len(added) + count], np.int64),
    )


def new_store(budget: int) -> layout.Store:
    """An empty store of at most ``budget`` bytes."""
    capacity, buckets = store_layout(budget)
    return layout.Store(
        _zeros(capacity, np.int32),
        _zeros((capacity, layout.N_ORDERS), np.uint32),
        _zeros((layout.N_ORDERS, buckets), np.uint32),
        _zeros(capacity // layout.BLOCK, np.int32),
        np.array([layout.BLOCK, 0, -1], np.int64),
    )


def new_model() -> layout.Model:
    """Tables and weights before anything was seen: longer matches are trusted more."""
    models = layout.N_MODELS
    parents = _zeros((models, layout.N_SOURCES * layout.LENGTH_BINS, 4))
    parents[..., 1] = 4.0
    parents[..., 0] = 4.0 * np.minimum(
        0.95, 0.15 + 0.09 * np.tile(np.arange(layout.LENGTH_BINS), layout.N_SOURCES)
    )
    parents[..., 2] = parents[..., 0] / parents[..., 1]
    parents[..., 3] = (1.0 - parents[..., 2]) / parents[..., 2]
    weights = _zeros((models, 3, layout.LENGTH_BINS, layout.N_FEATURES))
    first = weights[:, 0]
    first[..., layout.F_RELIABILITY] = 0.7
    first[..., layout.F_COUNT] = 0.2
    first[..., layout.F_TOKEN : layout.F_CONTEXT + 1] = 0.3
    first[..., layout.F_RECENCY] = 0.2
    first[..., layout.F_NEAR : layout.F_AGE + 1] = 0.3
    first[..., layout.F_BOTH] = 0.1
    return layout.Model(
        parents,
        _zeros((models, layout.N_SOURCES * layout.LENGTH_BINS, layout.N_CELLS, 2), np.float32),
        _zeros((layout.TABLE_ROWS, 2), np.float32),
        _zeros((layout.TABLE_ROWS, 2), np.float32),
        _zeros((models, layout.RECENCY_ROWS, 2), np.float32),
        weights,
        np.tile([40.0, 20.0, 0.0], (models, 1)),
        np.tile([0.0, 0.0, 0.0, 1.0], (models, layout.CALIBRATION_BINS, 1)),
    )


def copy_model(model: layout.Model, number: int) -> None:
    """Let model ``number`` start from what model 0 has learned from all kinds of traffic."""
    for array in (
        model.parents,
        model.cells,
        model.by_recency,
        model.weights,
        model.numbers,
        model.calibration,
    ):
        array[number] = array[0]


def new_log(context: Context) -> layout.Log:
    """Room for the last two drafts of every request."""
    n, margin = 2 * context.max_requests, layout.MAX_CANDIDATES
    return layout.Log(
        _zeros((n, context.max_draft + 2, layout.DEPTH_FIELDS), np.int64),
        _zeros((n, layout.LOG_TOKENS + margin, layout.TOKEN_FIELDS), np.int64),
        _zeros((n, layout.LOG_TOKENS + margin, layout.N_FEATURES)),
        _zeros((n, layout.LOG_TOKENS + margin)),
        _zeros((n, layout.LOG_CANDIDATES + margin, layout.CANDIDATE_FIELDS), np.int64),
        _zeros((context.max_requests, context.max_draft), np.uint8),
    )


def new_scratch(context: Context) -> layout.Scratch:
    """Work space for one thread."""
    nodes = layout.LOG_TOKENS + 2 * context.max_draft + 2
    return layout.Scratch(
        _zeros(layout.CONTEXT, np.int32),
        _zeros(context.max_draft + 1, np.int32),
        _zeros((layout.MAX_CANDIDATES, layout.CANDIDATE_FIELDS), np.int64),
        _zeros(layout.MAX_CANDIDATES + LANES, np.int32),
        _zeros((layout.MAX_CANDIDATES, layout.VOTE_FIELDS)),
        _zeros(layout.MAX_CANDIDATES * layout.ODDS),
        np.ones(layout.MAX_CANDIDATES * layout.ODDS),
        _zeros(layout.N_FEATURES),
        _zeros(layout.N_ORDERS, np.int64),
        _zeros(layout.N_SOURCES, np.int64),
        _zeros((context.max_draft + 1, 2)),
        _zeros((nodes, layout.NODE_FIELDS), np.int64),
        _zeros(nodes),
    )


def new_calls(context: Context) -> layout.Calls:
    """Placeholders, of no row, for the caller's arrays."""
    return layout.Calls(
        np.zeros(0, np.int32),
        np.zeros(0, np.int32),
        np.zeros((0, context.max_draft), np.int32),
        np.zeros((0, context.max_draft)),
        np.zeros(0, np.int32),
        np.zeros(0, np.int32),
        np.zeros(1, np.int64),
        np.zeros((0, context.max_draft), np.int32),
    )


def new_state(context: Context, store_budget: int, shows: bool) -> layout.State:
    """No requests, nothing stored, nothing learned."""
    store = new_store(store_budget)
    return layout.State(
        new_slots(context, shows and len(store.tokens) > 0),
        store,
        new_model(),
        new_log(context),
        new_scratch(context),
        new_calls(context),
    )
