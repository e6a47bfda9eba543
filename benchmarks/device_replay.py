"""What look-ups on the device would draft of recorded requests: their CPU kernel as a proposer for ``specplug replay``.

    cd benchmarks
    specplug replay LOG --tokenizer T --proposer device_replay:FlatProposer --options '{"longest": 16}' \
        --proposer suffix

Slow on purpose: like the device it compares every position, on one core. For figures of acceptance, not of time.
"""

from __future__ import annotations

import numpy as np

from specplug.adapters.device.lookup import BLOCK, LookupSettings, blocks_within
from specplug.kernels.flat_match import SEPARATOR, Ring, Rule, Table, append, look_up
from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
)


class FlatProposer:
    """See the module. Every draft is as long as it may be, for on the device that costs nothing more."""

    Settings = LookupSettings

    def __init__(self, context: Context, settings: LookupSettings) -> None:
        self.capabilities = Capabilities(shares_requests=settings.store_mb > 0)
        rows = context.max_requests
        self._settings = settings
        self._table = Table(
            np.zeros((rows, context.max_length + 1), np.int32),
            *(np.zeros(rows, np.int32) for _ in range(3)),
        )
        blocks = max(4, blocks_within(settings.store_mb))
        self._ring = Ring(
            np.full(blocks * BLOCK, SEPARATOR, np.int32),
            np.zeros(blocks, np.int32),
            np.zeros(1, np.int64),
        )
        self._starts = np.zeros(rows, np.int32)
        self._namespaces: dict[str, int] = {}

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        self._table.tokens[slot, : len(history)] = history
        self._table.lengths[slot] = len(history)
        self._table.limits[slot] = 1 << 30
        number = self._namespaces.setdefault(request.namespace, len(self._namespaces))
        self._table.namespaces[slot] = number
        self._starts[slot] = len(history)

    def observe(self, observed: Observed) -> None:
        for row, slot in enumerate(observed.slots.tolist()):
            new = observed.tokens[observed.offsets[row] : observed.offsets[row + 1]]
            length = self._table.lengths[slot]
            self._table.tokens[slot, length : length + len(new)] = new
            self._table.lengths[slot] = length + len(new)

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        settings = self._settings
        self._table.limits[slots] = ceilings
        rule = Rule(settings.shortest, settings.longest, settings.growth, out.tokens.shape[1])
        drafts = np.zeros(out.tokens.shape, np.int64)
        look_up(self._table, self._ring, slots, np.ones_like(slots), rule, drafts, out.lengths)
        out.tokens[:] = drafts
        out.survival[:] = 0.5

    def finish(self, slot: int, keep: bool) -> None:
        if keep and self._settings.store_mb > 0:
            append(
                self._ring, self._table, np.array([slot], np.int32), self._starts[slot : slot + 1]
            )
