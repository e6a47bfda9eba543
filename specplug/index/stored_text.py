"""Between the ring of a :class:`~specplug.index.suffix.SuffixIndex` and lists of outputs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.index.store_file import Outputs, no_outputs
from specplug.index.suffix import SuffixIndex
from specplug.kernels import layout
from specplug.types import SEPARATOR

#: Blocks copied at a time while requests are served, about a megabyte.
COPIED = 1 << 14


class Copied(NamedTuple):
    """Outputs read from a store, and the position behind them."""

    outputs: Outputs
    end: int


def copy_outputs(index: SuffixIndex, start: int) -> Copied:
    """The outputs that were stored from position ``start`` on and still exist.

    May run in another thread while the index works: what is overwritten meanwhile is left out.
    """
    store = index.state.store
    end, capacity = index.settled, len(store.tokens)
    start = max(start, end - capacity, layout.BLOCK)
    if start >= end:
        return Copied(no_outputs(), end)
    positions = np.arange(start // layout.BLOCK, end // layout.BLOCK)
    rows = positions % (capacity // layout.BLOCK)
    ring = store.tokens.reshape(-1, layout.BLOCK)
    pieces = [ring[rows[i : i + COPIED]] for i in range(0, len(rows), COPIED)]
    owners = store.namespaces[rows]
    # Read after the copy: whatever began to be written before or during it is known now.
    lost = max(0, index.claimed - capacity - start)
    skipped = -(-lost // layout.BLOCK)
    blocks = np.concatenate(pieces)[skipped:]
    return Copied(_as_outputs(index, blocks, owners[skipped:]), end)


def _as_outputs(
    index: SuffixIndex, blocks: NDArray[np.int32], owners: NDArray[np.int32]
) -> Outputs:
    """An output ends with a block whose last token is a separator; an output without its beginning is still text."""
    last = np.flatnonzero(blocks[:, -1] == SEPARATOR)
    if not len(last):
        return no_outputs()
    first = np.concatenate([[0], last[:-1] + 1])
    # Separators at the very end are padding.
    padding = np.argmax(blocks[last][:, ::-1] != SEPARATOR, axis=1)
    padding[(blocks[last] == SEPARATOR).all(axis=1)] = layout.BLOCK
    lengths = (last - first + 1) * layout.BLOCK - padding
    flat = blocks[: last[-1] + 1].reshape(-1)
    inside = np.ones(len(flat), bool)
    for count in range(1, layout.BLOCK + 1):
        inside[(last[padding >= count] + 1) * layout.BLOCK - count] = False
    numbers = owners[first]
    unique, which = np.unique(numbers, return_inverse=True)
    names = [index.namespaces.name_of(int(n)) for n in unique]
    known = np.array([name is not None for name in names])[which] & (lengths > 0)
    inside[inside] = np.repeat(known, lengths)
    order = {n: i for i, n in enumerate(n for n in names if n is not None)}
    owner_of = np.array([order.get(n or "", 0) if n is not None else 0 for n in names], np.int32)
    return Outputs(
        flat[inside].astype(np.int32),
        lengths[known].astype(np.int64),
        owner_of[which][known],
        tuple(order),
    )


def put_outputs(index: SuffixIndex, outputs: Outputs) -> int:
    """Store ``outputs`` as if requests had just said them; returns how many tokens that were.

    To be called while no request is live. Only as much as the store can hold is written: the newest.
    """
    capacity = index.store_capacity
    if not capacity or not len(outputs):
        return 0
    ends = np.cumsum(outputs.lengths)
    first = int(np.searchsorted(ends, ends[-1] - capacity, side="right"))
    written = 0
    for i in range(first, len(outputs)):
        end = int(ends[i])
        name = outputs.names[int(outputs.owners[i])]
        text = outputs.tokens[end - int(outputs.lengths[i]) : end]
        index.store_text(name, text)
        written += len(text)
    return written
