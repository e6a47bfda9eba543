"""Numbers streamed to a file, packed at their own width; may be continued after an interruption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

import numpy as np
from numpy.typing import NDArray

from specplug.index.datastore_format import packed_bytes
from specplug.kernels.packed import pack

#: Numbers that are packed at once; a multiple of 64, so that they fill whole words at any width.
BLOCK = 1 << 16


class PackedSpool:
    """Appends numbers to a section of an open file.

    Args:
        file: open for writing, binary.
        offset: where the section begins.
        bits: per number.
        count: numbers that are in the file already; a multiple of 64.
        rest: the numbers behind those, fewer than 64 (see :meth:`state`).
    """

    def __init__(
        self, file: IO[bytes], offset: int, bits: int, count: int = 0, rest: Sequence[int] = ()
    ) -> None:
        self._file, self._offset, self._bits = file, offset, bits
        self._written = count
        self._waiting: list[NDArray[np.int64]] = [np.array(rest, np.int64)]
        self._pending = len(rest)

    @property
    def count(self) -> int:
        """Numbers appended so far."""
        return self._written + self._pending

    def append(self, values: NDArray[np.int64]) -> None:
        """Append int64 ``[n]``, each below ``2 ** bits``. The array must not be changed afterwards."""
        self._waiting.append(values)
        self._pending += len(values)
        if self._pending >= BLOCK:
            self.flush()

    def flush(self) -> None:
        """Write all but the last few numbers, which do not fill a word yet."""
        values = np.concatenate(self._waiting)
        whole = len(values) // 64 * 64
        self._file.seek(self._offset + self._written * self._bits // 8)
        for start in range(0, whole, BLOCK):
            self._write(values[start : min(start + BLOCK, whole)])
        self._written += whole
        self._waiting = [values[whole:].copy()]
        self._pending = len(values) - whole

    def state(self) -> tuple[int, list[int]]:
        """What the constructor needs to go on: ``count`` and ``rest``. Flushes."""
        self.flush()
        return self._written, self._waiting[0].tolist()

    def close(self) -> int:
        """Write what is left, padded as :func:`packed_bytes` says; returns how many numbers there are."""
        count, rest = self.state()
        end = self._offset + packed_bytes(count + len(rest), self._bits)
        self._file.seek(self._offset + count * self._bits // 8)
        self._write(np.array(rest, np.int64))
        self._file.write(bytes(end - self._file.tell()))
        return count + len(rest)

    def _write(self, values: NDArray[np.int64]) -> None:
        words = np.zeros(-(-len(values) * self._bits // 64) + 1, np.uint64)
        pack(np.ascontiguousarray(values), self._bits, 0, words)
        self._file.write(words[:-1].astype("<u8").tobytes())
