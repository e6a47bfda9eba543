"""The file of a small datastore, put together in memory: what would go through a :class:`.spool.PackedSpool` otherwise.

Sections are packed where they will lie, so that nothing is copied and the file is written by one call.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from specplug.index.datastore_format import ALIGNMENT, HEADER_BYTES, VERSION, Section, packed_bytes
from specplug.kernels.packed import pack, pack_document, pack_documents

Words = NDArray[np.uint64]
#: The words of a sheet that a build has done with: for a small one, fresh pages would take as long as sorting.
_KEPT: list[Words] = []
KEPT_WORDS = 1 << 17
_HEADER = HEADER_BYTES // 8


class Sheet:
    """A page for the header, and behind it the section of tokens.

    Args:
        bits: per token.
        most: tokens that it may hold.

    Attributes:
        count: numbers of the section of tokens so far.
        words: uint64, the file; what is behind the sections that are closed says nothing.
        digest: SHA-256 of the section of tokens as it was closed last.
    """

    def __init__(self, bits: int, most: int) -> None:
        self._bits, self._most = bits, most
        self.count, self.digest = 0, b""
        try:
            self.words = _KEPT.pop()
        except IndexError:
            self.words = np.empty(KEPT_WORDS, np.uint64)

    @property
    def room(self) -> int:
        """Numbers that can be appended."""
        return self._most - self.count

    @property
    def tokens(self) -> Words:
        """The section of tokens so far, without what pads it."""
        return self.words[_HEADER : _HEADER - (-self.count * self._bits // 64)]

    def append_document(self, document: NDArray[np.int32], separator: int) -> int:
        """Append int32 ``[n]``, writable, and the separator, unless an id is not below it; returns its place, or -1."""
        size = len(document) + 1
        offset = self._reserve(size)
        wrong = int(pack_document(document, separator, self._bits, offset, self.words))
        self.count += size if wrong < 0 else 0
        return wrong

    def append_documents(
        self, documents: NDArray[np.int32], lengths: NDArray[np.int64], separator: int
    ) -> int:
        """Append documents that stand in one int32 ``[n]``, a separator behind each.

        Args:
            lengths: int64, of each.

        Returns:
            As :meth:`append_document` does.
        """
        size = len(documents) + len(lengths)
        offset = self._reserve(size)
        wrong = int(pack_documents(documents, lengths, separator, self._bits, offset, self.words))
        self.count += size if wrong < 0 else 0
        return wrong

    def close(self) -> int:
        """Pad the section of tokens; returns how many there are. More may be appended afterwards."""
        place = Section(self._bits, HEADER_BYTES, packed_bytes(self.count, self._bits))
        self._reach(place.offset + place.size)
        section = SheetSection(self.words, place, self.count)
        section.close()
        self.digest = section.digest
        return self.count

    def read_only(self) -> Words:
        """The words as kernels read those of a published file."""
        words = self.words.view()
        words.flags.writeable = False
        return words

    def section(self, place: Section) -> SheetSection:
        """What appends the numbers of another section."""
        self._reach(place.offset + place.size)
        return SheetSection(self.words, place)

    def content(self, page: bytes, size: int) -> memoryview:
        """The file of ``size`` bytes, its first page set."""
        content = self.words.view(np.uint8).data[:size]
        content[:HEADER_BYTES] = page
        return content

    def release(self) -> None:
        """Leave the memory to the next build; nothing may follow."""
        if len(self.words) == KEPT_WORDS:
            _KEPT[:] = [self.words]
        self.words = self.words[:0]

    def _reserve(self, more: int) -> int:
        """Room for so many numbers more; returns the bit of the file at which they begin."""
        self._reach(HEADER_BYTES + packed_bytes(self.count + more, self._bits))
        return HEADER_BYTES * 8 + self.count * self._bits

    def _reach(self, size: int) -> None:
        """At least ``size`` bytes, and what the last section is padded with."""
        needed = size // 8 + ALIGNMENT[VERSION] // 8
        if needed > len(self.words):
            words = np.empty(max(needed, 2 * len(self.words)), np.uint64)
            words[: len(self.words)] = self.words
            self.words = words


class SheetSection:
    """Numbers appended to a section of a sheet, as to a :class:`.spool.PackedSpool`.

    Attributes:
        count: numbers appended so far.
        digest: SHA-256 of the section as it was closed.
    """

    def __init__(self, words: Words, place: Section, count: int = 0) -> None:
        self._words, self._place = words, place
        self.count, self.digest = count, b""

    def append(self, values: NDArray[np.int64]) -> None:
        """Append the lowest bits of int64 ``[n]``."""
        place = self._place
        pack(values, place.bits, place.offset * 8 + self.count * place.bits, self._words)
        self.count += len(values)

    def flush(self) -> None:
        """All is where it belongs."""

    def close(self) -> int:
        """Pad the section as far as the next one can begin; returns how many numbers there are."""
        first, size, align = self._place.offset // 8, self._place.size, ALIGNMENT[VERSION]
        used = first - (-self.count * self._place.bits // 64)
        end = first + size // 8
        self._words[used : first + -(-size // align) * align // 8] = 0
        self.digest = hashlib.sha256(self._words[first:end].data).digest()
        return self.count
