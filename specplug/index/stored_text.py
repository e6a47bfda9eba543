"""Between the ring of a :class:`~specplug.index.suffix.SuffixIndex` and lists of outputs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.index.pieces import concatenated, give_way
from specplug.index.store_file import Outputs, no_outputs
from specplug.index.suffix import SuffixIndex
from specplug.kernels import layout
from specplug.types import SEPARATOR

#: Blocks copied at a time while requests are served, 64 kB: a fraction of a millisecond, after which whoever drafts
#: may go on.
COPIED = 1 << 10


class Copied(NamedTuple):
    """Outputs read from a store, and the position behind them."""

    outputs: Outputs
    end: int


def copy_outputs(index: SuffixIndex, start: int) -> Copied:
    """The outputs that were stored from position ``start`` on and still exist.

    May run in another thread while the index works: what is overwritten meanwhile is left out, and nobody waits for it
    longer than for :data:`COPIED` blocks, or one output.
    """
    end, capacity = index.settled, index.store_capacity
    parts: list[Outputs] = []
    at, step = max(start, layout.BLOCK), COPIED * layout.BLOCK
    while at < end:
        at = max(at, end - capacity)
        outputs, taken = _copy_some(index, at, min(at + step, end))
        if not taken and at + step < end:
            step *= 2  # one output is longer than that
            continue
        if len(outputs):
            parts.append(outputs)
        at += taken or end - at
        step = COPIED * layout.BLOCK
        give_way()
    return Copied(_together(parts), end)


def _copy_some(index: SuffixIndex, start: int, stop: int) -> tuple[Outputs, int]:
    """The outputs that end before ``stop``, and the positions from ``start`` to the end of the last one."""
    store = index.state.store
    capacity = len(store.tokens)
    rows = np.arange(start // layout.BLOCK, stop // layout.BLOCK) % (capacity // layout.BLOCK)
    blocks = store.tokens.reshape(-1, layout.BLOCK)[rows]
    owners = store.namespaces[rows]
    # Read after the copy: whatever began to be written before or during it is known now.
    lost = max(0, index.claimed - capacity - start)
    skipped = min(-(-lost // layout.BLOCK), len(rows))
    ends = np.flatnonzero(blocks[skipped:, -1] == SEPARATOR)
    taken = skipped + (int(ends[-1]) + 1 if len(ends) else 0)
    return _as_outputs(index, blocks[skipped:taken], owners[skipped:taken]), taken * layout.BLOCK


def _together(parts: list[Outputs]) -> Outputs:
    """All outputs of several lists, every name once."""
    if not parts:
        return no_outputs()
    number = {name: i for i, name in enumerate(dict.fromkeys(n for p in parts for n in p.names))}
    return Outputs(
        concatenated([part.tokens for part in parts], np.int32),
        concatenated([part.lengths for part in parts], np.int64),
        concatenated(
            [np.array([number[n] for n in part.names], np.int32)[part.owners] for part in parts],
            np.int32,
        ),
        tuple(number),
    )


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
