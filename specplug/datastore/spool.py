"""Numbers streamed to a file, packed at their own width; may be continued after an interruption.

The checksum is taken of what is written while it is at hand, so that nothing is read again.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from specplug.index.datastore_format import Section, packed_bytes
from specplug.kernels.packed import first_outside, pack, pack_documents

#: Numbers that are written at once; a multiple of 64, so that they fill whole words at any width.
BLOCK = 1 << 16


class PackedSpool:
    """Appends numbers to a section of an open file.

    Args:
        file: open for reading and writing, binary.
        offset: where the section begins.
        bits: per number.
        count: numbers that are in the file already; a multiple of 64.
        rest: the numbers behind those, fewer than 64 (see :meth:`state`).
    """

    def __init__(
        self, file: IO[bytes], offset: int, bits: int, count: int = 0, rest: Sequence[int] = ()
    ) -> None:
        self._file, self._offset, self._bits = file, offset, bits
        self._written, self._pending = count, 0
        # Not zeros: what is packed overwrites what was there.
        self._words = np.empty(BLOCK * bits // 64, np.uint64)
        # Of whole words; and with the end that is padded.
        self._digest = self._closed = hashlib.sha256()
        if count:
            self._read_again(count * bits // 8)
        self.append(np.array(rest, np.int64))

    @property
    def count(self) -> int:
        """Numbers appended so far."""
        return self._written + self._pending

    @property
    def room(self) -> int:
        """Numbers that can be appended before something is written."""
        return BLOCK - 1 - self._pending

    @property
    def digest(self) -> bytes:
        """SHA-256 of the section as it was closed last."""
        return self._closed.digest()

    def append(self, values: NDArray[np.integer[Any]]) -> None:
        """Append the lowest bits of int32 or int64 ``[n]``, which are made wider in parts: they may be a large file."""
        start = 0
        while start < len(values):
            part = values[start : start + BLOCK - self._pending]
            wide = part.astype(np.int64, copy=False)
            pack(wide, self._bits, self._pending * self._bits, self._words)
            self._pending += len(part)
            start += len(part)
            if self._pending == BLOCK:
                self.flush()

    def append_documents(
        self, documents: NDArray[np.int32], lengths: NDArray[np.int64], separator: int
    ) -> int:
        """See :meth:`.sheet.Sheet.append_documents`. Writes what does not fit in :attr:`room`."""
        size = len(documents) + len(lengths)
        if size > self.room:
            wrong = int(first_outside(documents, separator))
            if wrong < 0:
                closing = np.array([separator], np.int64)
                for document in np.split(documents, np.cumsum(lengths)[:-1]):
                    self.append(document)
                    self.append(closing)
            return wrong
        offset = self._pending * self._bits
        wrong = int(pack_documents(documents, lengths, separator, self._bits, offset, self._words))
        self._pending += size if wrong < 0 else 0
        return wrong

    def take_over(self, words: NDArray[np.uint64], count: int) -> None:
        """Go on behind ``count`` numbers that were packed in memory; nothing is appended yet."""
        whole = count // 64 * 64
        used = whole * self._bits // 64
        self._file.seek(self._offset)
        self._write(words[:used], self._digest)
        self._words[: len(words) - used] = words[used:]
        self._written, self._pending = whole, count - whole

    def beside(self, section: Section) -> PackedSpool:
        """Another section of the same file."""
        return PackedSpool(self._file, section.offset, section.bits)

    def cut(self) -> None:
        """Let nothing stand behind this section, which is closed: what a publication that failed has left there."""
        self._file.flush()
        self._file.truncate(self._offset + packed_bytes(self.count, self._bits))

    def put_header(self, page: bytes) -> None:
        """Write what the file begins with."""
        self._file.seek(0)
        self._file.write(page)

    def flush(self) -> None:
        """Write all but the last few numbers, which do not fill a word yet."""
        whole = self._pending // 64 * 64
        words, left = whole * self._bits // 64, self._pending - whole
        self._file.seek(self._offset + self._written * self._bits // 8)
        self._write(self._words[:words], self._digest)
        rest = -(-left * self._bits // 64)
        self._words[:rest] = self._words[words : words + rest]
        self._written += whole
        self._pending = left

    def state(self) -> tuple[int, list[int]]:
        """What the constructor needs to go on: ``count`` and ``rest``. Flushes."""
        self.flush()
        number = int.from_bytes(self._words[: self._bits].astype("<u8").tobytes(), "little")
        mask = (1 << self._bits) - 1
        return self._written, [number >> i * self._bits & mask for i in range(self._pending)]

    def close(self) -> int:
        """Write what is left, padded as :func:`packed_bytes` says; returns how many numbers there are.

        More may be appended afterwards, and the section closed again.
        """
        self.flush()
        used = -(-self._pending * self._bits // 64)
        end = packed_bytes(self.count, self._bits)
        words = np.zeros((end - self._written * self._bits // 8) // 8, np.uint64)
        words[:used] = self._words[:used]
        self._closed = self._digest.copy()
        self._write(words, self._closed)
        return self.count

    def _write(self, words: NDArray[np.uint64], digest: hashlib._Hash) -> None:
        content = words.astype("<u8", copy=False).data
        # Only then the checksum: what could not be written is written again.
        self._file.write(content)
        digest.update(content)

    def _read_again(self, size: int) -> None:
        """Take the checksum of what an interrupted build wrote."""
        end = self._offset + size
        with (
            mmap.mmap(self._file.fileno(), end, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
            view[self._offset :] as section,
        ):
            self._digest.update(section)
