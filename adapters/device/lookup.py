"""The arrays of :mod:`specplug.kernels.flat_match` on a device, and the launches over them.

Nothing in here waits for the device: what the host knows (who may draft from whom, which requests ended) is sent along
without waiting, and what only the device knows (tokens, lengths, how far the ring is filled) stays there. A draft
takes three launches, keeping the outputs of requests that ended one and an addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from specplug.errors import SettingsError
from specplug.settings import option, parse

#: As in :mod:`specplug.kernels.flat_match`, which needs numba and so is not imported here.
BLOCK = 16
SEPARATOR = -1
PADDING = 0

#: The least number of blocks: a match must not go round the ring.
_FEWEST = 4
#: Bytes of a block: its tokens and its namespace.
_BLOCK_BYTES = 4 * BLOCK + 4


@dataclass(frozen=True)
class LookupSettings:
    """Options of look-ups on the device."""

    store_mb: float = option(
        4.0,
        minimum=0.0,
        maximum=4096.0,
        help="Memory on the device for the outputs of finished requests, in MB (2**20 bytes), about 247,000 tokens "
        "each, without the arrays that a look-up works in; all of it is read at every step. 0 keeps none, so that "
        "requests share nothing.",
    )
    shortest: int = option(
        1, minimum=1, maximum=32, help="Matches of fewer tokens are not drafted from."
    )
    longest: int = option(16, minimum=1, maximum=32, help="Tokens of context compared at most.")
    growth: int = option(
        0,
        minimum=0,
        maximum=128,
        help="Draft at most so many tokens per token that matched; 0: no such limit.",
    )


class Tiles(NamedTuple):
    """What one program of a kernel works on; powers of two. Changes no result.

    Attributes:
        own_rows, own_span: requests and positions of a tile of the requests' own texts.
        ring_rows, ring_span: the same for the ring.
        copied: tokens copied to the ring by one program.
        written: requests whose drafts are written by one program.
        ring_programs: the most programs that share the ring; in a longer one each goes over several tiles. This
            bounds the grid (CUDA allows 65,535 beside the first axis) and what the best matches of tiles take.
    """

    own_rows: int = 1
    own_span: int = 1024
    ring_rows: int = 16
    ring_span: int = 256
    copied: int = 1024
    written: int = 1
    ring_programs: int = 1024


def check(options: Any, where: str) -> LookupSettings:
    """Options as a user writes them.

    Raises:
        SettingsError: unknown, of a wrong type or out of range, or ``shortest`` above ``longest``.
    """
    settings = parse(LookupSettings, options, where)
    if settings.shortest > settings.longest:
        raise SettingsError(
            f"{where}: shortest is {settings.shortest}, more than longest, {settings.longest}, so that no match would "
            "be long enough; lower the one or raise the other"
        )
    return settings


def blocks_within(store_mb: float) -> int:
    """How many blocks of the ring fit into a budget; 0 where it is too small for a ring."""
    blocks = int(store_mb * 2**20) // _BLOCK_BYTES
    return blocks if blocks >= _FEWEST else 0


class DeviceLookup:
    """Drafts for the rows of a table of tokens that somebody else keeps on a device.

    Args:
        tokens: int32 tensor ``[R, L]``, the tokens of each request.
        lengths: int32 tensor ``[R]``, how many there are.
        requests: most requests in a batch.
        width: most tokens per draft, ``K``.
        settings: see there.
        tiles: see there.

    Attributes:
        keeps: whether there is a ring at all.
        appended: outputs kept so far.

    Raises:
        ValueError: a tensor of another type or shape.
    """

    def __init__(
        self,
        tokens: Any,
        lengths: Any,
        requests: int,
        width: int,
        settings: LookupSettings | None = None,
        tiles: Tiles | None = None,
    ) -> None:
        import torch

        _expect("tokens", tokens, 2)
        _expect("lengths", lengths, 1)
        self.settings = settings or LookupSettings()
        self.tiles = tiles or Tiles()
        self.width = width
        self.appended = 0
        self._tokens, self._lengths = tokens, lengths
        self._device = tokens.device
        self._away = self._device.type != "cpu"
        # One size for all batches, so that no kernel is compiled while requests wait.
        self._many = _power(requests)
        blocks = blocks_within(self.settings.store_mb)
        self.keeps = blocks > 0
        rows = len(tokens)

        def filled(shape: Any, value: int, dtype: Any) -> Any:
            return torch.full(shape, value, dtype=dtype, device=self._device)

        self._ring = filled((max(blocks, _FEWEST) * BLOCK,), SEPARATOR, torch.int32)
        self._owners = filled((max(blocks, _FEWEST),), 0, torch.int32)
        self._end = filled((1,), 0, torch.int64)
        self._grown = filled((1,), 0, torch.int64)
        self._namespaces = filled((rows,), 0, torch.int32)
        self._limits = filled((rows,), 0, torch.int32)
        self._own_columns = -(-tokens.shape[1] // self.tiles.own_span)
        spans = -(-len(self._ring) // self.tiles.ring_span) if self.keeps else 0
        self._ring_spans = -(-spans // self.tiles.ring_programs)
        ring_columns = -(-spans // self._ring_spans) if self.keeps else 0
        self._best = filled((requests, self._own_columns + ring_columns), 0, torch.int64)
        self._drafts = filled((requests, width), PADDING, torch.int64)
        self.counts = filled((requests,), 0, torch.int32)

    def warm(self) -> None:
        """Compile every kernel, before the first request: of an empty table, nothing is drafted and nothing kept."""
        import torch

        # Of the types that vLLM has.
        rows = torch.zeros(1, dtype=torch.int64, device=self._device)
        self.look_up(rows, rows.int(), self.width)
        self.append([0], [0])
        self.appended = 0

    def memory(self) -> dict[str, int]:
        """Bytes on the device: the ring, which is what ``store_mb`` limits, and everything else.

        The latter is 12 bytes per request, ``8 K`` per draft, and one number of 8 bytes per request and program: for
        texts of up to ``L`` tokens and a ring of ``C``, at most ``L / own_span`` and ``ring_programs`` of them.
        """
        ring = sum(t.numel() * t.element_size() for t in (self._ring, self._owners))
        rest = (self._namespaces, self._limits, self._best, self._drafts, self.counts)
        return {"ring": ring, "other": sum(t.numel() * t.element_size() for t in rest)}

    def arrive(self, rows: Sequence[int], namespaces: Sequence[int], limits: Sequence[int]) -> None:
        """Rows of the table belong to new requests.

        Args:
            rows: ``F`` rows.
            namespaces: whose text each may draft from, and who from its own.
            limits: the most tokens drafted for each; 0: none.
        """
        if not rows:
            return
        import torch

        where = self._sent(rows, torch.int64)
        self._namespaces.index_copy_(0, where, self._sent(namespaces, torch.int32))
        self._limits.index_copy_(0, where, self._sent(limits, torch.int32))

    def append(self, rows: Sequence[int], starts: Sequence[int]) -> None:
        """Keep what ended requests said, in this order; before their rows are used again.

        Args:
            rows: ``F`` rows.
            starts: where their outputs begin.
        """
        if not rows or not self.keeps:
            return
        import torch

        from specplug.adapters.device import kernels

        most = min(self._tokens.shape[1], len(self._ring)) + BLOCK
        kernels.append_outputs[(len(rows), -(-most // self.tiles.copied))](
            *(self._ring, self._owners, self._end, len(self._ring)),
            *(self._tokens, self._tokens.stride(0), self._lengths, self._namespaces),
            *(self._sent(rows, torch.int32), self._sent(starts, torch.int32), self._grown),
            *(len(rows), self.tiles.copied, self._many, BLOCK),
        )
        self._end.add_(self._grown)
        self.appended += len(rows)

    def look_up(self, rows: Any, sampled: Any, most: int) -> Any:
        """Drafts, int64 tensor ``[B, K]`` behind which :data:`PADDING` stands; valid until the next call.

        Args:
            rows: int tensor ``[B]`` on the device, the rows of the batch.
            sampled: int tensor ``[B]`` on the device; nothing is drafted where it is 0.
            most: tokens per draft at this step.
        """
        from specplug.adapters.device import kernels

        count, settings, tiles = len(rows), self.settings, self.tiles
        drafts = self._drafts[:count]
        if not count or not self.width:
            return drafts
        columns = self._best.shape[1]
        requests = (self._tokens, self._tokens.stride(0), self._lengths)
        kernels.scan_requests[(-(-count // tiles.own_rows), self._own_columns)](
            *(*requests, self._limits, rows, sampled, self._best, columns, count),
            *(settings.shortest, settings.longest, tiles.own_rows, tiles.own_span),
        )
        if self.keeps:
            kernels.scan_ring[(-(-count // tiles.ring_rows), columns - self._own_columns)](
                *(self._ring, self._owners, self._end, len(self._ring)),
                *(*requests, self._namespaces, self._limits, rows, sampled),
                *(self._best, columns, self._own_columns, count),
                *(self._ring_spans, settings.shortest, settings.longest),
                *(tiles.ring_rows, tiles.ring_span, BLOCK),
            )
        kernels.write_drafts[(-(-count // tiles.written),)](
            *(self._best, columns, self._ring, self._end, len(self._ring)),
            *(*requests, self._limits, rows, drafts, self.counts, self.width, most),
            *(settings.growth, count, PADDING, _power(self.width)),
            *(min(1024, _power(columns)), tiles.written),
        )
        return drafts

    def empty(self, count: int) -> Any:
        """No drafts, int64 ``[B, K]``."""
        return self._drafts[:count].fill_(PADDING)

    def _sent(self, values: Sequence[int], dtype: Any) -> Any:
        """Numbers of the host on the device; the host does not wait until they are there."""
        import torch

        host = torch.tensor(values, dtype=dtype, pin_memory=self._away)
        return host.to(self._device, non_blocking=True)


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()


def _expect(name: str, tensor: Any, dimensions: int) -> None:
    if str(tensor.dtype) != "torch.int32" or tensor.dim() != dimensions:
        raise ValueError(
            f"{name}: an int32 tensor of {dimensions} dimension(s) is expected, got {tensor.dtype} "
            f"of shape {tuple(tensor.shape)}"
        )
