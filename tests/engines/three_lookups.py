"""One table of requests, looked up by Triton's kernels, by the CPU kernel and by its slow twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from specplug.adapters.device.lookup import BLOCK, DeviceLookup, LookupSettings, Tiles
from specplug.kernels import flat_match
from specplug.reference import flat_match as slow

#: Bytes of a block of the ring, its owner included.
BLOCK_MB = 68 / 2**20
#: A tile size of one is legal too, but slow.
SMALL = Tiles(
    own_rows=64, own_span=32, ring_rows=64, ring_span=32, copied=32, written=64, ring_programs=2
)


@pytest.fixture(scope="session")
def interpreted() -> None:
    """Kernels that are first imported now are interpreted; engines, started later, must not inherit that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        # Imported by the first launch, and only as it finds the variable.
        import triton.experimental.gluon
        import triton.language

        from specplug.adapters.device import kernels
    for function in (kernels.scan_requests, triton.language.max):
        assert "Interpreted" in type(function).__name__, "Triton was imported before conftest.py"


class Three:
    """Everything is told to all three; :meth:`check` compares what they draft."""

    def __init__(
        self, rows: int, length: int, blocks: int, rule: flat_match.Rule, width: int, tiles: Tiles
    ) -> None:
        self.table = flat_match.Table(
            np.full((rows, length), 99, np.int32), *(np.zeros(rows, np.int32) for _ in range(3))
        )
        self.ring = flat_match.Ring(
            np.full(blocks * BLOCK, flat_match.SEPARATOR, np.int32),
            np.zeros(blocks, np.int32),
            np.zeros(1, np.int64),
        )
        self.requests = [slow.Request([]) for _ in range(rows)]
        self.outputs = slow.Ring(blocks * BLOCK)
        self.rule, self.width = rule, width
        self.tokens = torch.from_numpy(self.table.tokens.copy())
        self.lengths = torch.zeros(rows, dtype=torch.int32)
        settings = LookupSettings(blocks * BLOCK_MB, rule.shortest, rule.longest, rule.growth)
        self.lookup = DeviceLookup(self.tokens, self.lengths, rows, width, settings, tiles)

    def put(self, row: int, tokens: list[int], namespace: int, limit: int) -> None:
        """A row holds this request from now on."""
        self.table.tokens[row, : len(tokens)] = tokens
        self.table.lengths[row] = len(tokens)
        self.table.namespaces[row], self.table.limits[row] = namespace, limit
        self.requests[row] = slow.Request(tokens, namespace, limit)

    def send(self, rows: list[int]) -> None:
        """The device gets what :meth:`put` said of these rows."""
        self.tokens[rows] = torch.from_numpy(self.table.tokens[rows])
        self.lengths[rows] = torch.from_numpy(self.table.lengths[rows])
        self.lookup.arrive(
            rows, self.table.namespaces[rows].tolist(), self.table.limits[rows].tolist()
        )

    def append(self, rows: list[int], starts: list[int]) -> None:
        """These requests ended."""
        self.lookup.append(rows, starts)
        flat_match.append(
            self.ring, self.table, np.array(rows, np.int32), np.array(starts, np.int32)
        )
        slow.append(self.outputs, self.requests, rows, starts)
        assert np.array_equal(self.lookup._ring.numpy(), self.ring.tokens)
        assert int(self.lookup._end) == self.ring.end[0]
        used = self.ring.tokens.reshape(-1, BLOCK)[:, 0] >= 0
        assert np.array_equal(self.lookup._owners.numpy()[used], self.ring.owners[used])

    def check(self, rows: list[int], sampled: list[int]) -> list[list[int]]:
        """The drafts, which must be equal."""
        found = self.lookup.look_up(
            *(torch.tensor(rows, dtype=torch.int64), torch.tensor(sampled, dtype=torch.int32)),
            self.rule.most,
        )
        drafts = np.full((len(rows), self.width), 7, np.int64)
        counts = np.full(len(rows), 7, np.int32)
        flat_match.look_up(
            *(self.table, self.ring, np.array(rows, np.int32), np.array(sampled, np.int32)),
            *(self.rule, drafts, counts),
        )
        assert np.array_equal(found.numpy(), drafts)
        if self.width:
            assert np.array_equal(self.lookup.counts[: len(rows)].numpy(), counts)
        wanted: list[list[int]] = [[7] * self.width for _ in rows]
        slow.look_up(self.requests, self.outputs, rows, sampled, self.rule, wanted, [7] * len(rows))
        assert drafts.tolist() == wanted
        return wanted


def random_three(rng: np.random.Generator, rows: int, **known: Any) -> Three:
    """Sizes, rule and tiles at random."""
    rule = flat_match.Rule(*(int(rng.integers(*r)) for r in ((1, 4), (4, 13), (0, 3), (0, 9))))
    tiles = Tiles(
        *(int(2 ** rng.integers(*r)) for r in ((5, 10), (4, 7), (5, 10), (4, 7), (5, 8), (5, 10))),
        ring_programs=int(rng.integers(1, 5)),
    )
    length, blocks, width = (int(rng.integers(*r)) for r in ((1, 40), (4, 8), (0, 9)))
    return Three(rows, length, blocks, rule, width, tiles)


def play(rng: np.random.Generator, three: Three) -> int:
    """Requests come, end and leave their rows to others; returns how many were looked up."""
    rows, length = three.table.tokens.shape
    for _ in range(int(rng.integers(1, 4))):
        kinds = int(rng.integers(1, 5))
        changed = rng.permutation(rows)[: rng.integers(1, rows + 1)].tolist()
        for row in changed:
            # Ids that a float or 24 bits could not hold, and placeholders.
            tokens = rng.integers(0, kinds, int(rng.integers(0, length + 1)))
            tokens[rng.random(len(tokens)) < 0.03] = -1
            tokens[tokens == 3] = 2**31 - 1
            three.put(row, tokens.tolist(), int(rng.integers(0, 2)), int(rng.integers(0, 12)))
        three.send(changed)
        ended = rng.permutation(rows)[: rng.integers(0, 9)].tolist()
        three.append(ended, rng.integers(0, length + 1, len(ended)).tolist())
    batch = rng.permutation(rows)[: rng.integers(max(1, rows // 2), rows + 1)].tolist()
    three.check(batch, rng.integers(0, 3, len(batch)).tolist())
    return len(batch)
