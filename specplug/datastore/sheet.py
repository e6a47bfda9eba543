"""The file of a small datastore, put together in memory: what would go through a :class:`.spool.PackedSpool` otherwise.

Sections are packed where they will lie, so that nothing is copied and the file is written by one call.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.index.datastore_format import ALIGNMENT, HEADER_BYTES, VERSION, Section, packed_bytes
from specplug.kernels.packed import pack, pack_documents

Words = NDArray[np.uint64]


class Paper(NamedTuple):
    """The memory of a sheet, and the same again in the forms in which it is read.

    Attributes:
        words: uint64.
        read_only: as kernels read those of a published file.
        octets: bytes.
    """

    words: Words
    read_only: Words
    octets: memoryview


def _paper(size: int) -> Paper:
    """For so many words. Nothing is known of what is on it."""
    words = np.empty(size, np.uint64)
    read_only = words.view()
    read_only.flags.writeable = False
    return Paper(words, read_only, words.data.cast("B"))


#: What a build has done with: for a small one, fresh pages would take as long as sorting.
_KEPT: list[Paper] = []
KEPT_WORDS = 1 << 17
_HEADER = HEADER_BYTES // 8


class Sheet:
    """A page for the header, and behind it the section of tokens.

    Args:
        bits: per token.
        most: tokens that it may hold.

    Attributes:
        count: numbers of the section of tokens so far.
        paper: the file; what is behind the sections that are closed says nothing.
        digest: SHA-256 of the section of tokens as it was closed last.
    """

    def __init__(self, bits: int, most: int) -> None:
        self._bits, self._most = bits, most
        self.count, self.digest = 0, b""
        try:
            self.paper = _KEPT.pop()
        except IndexError:
            self.paper = _paper(KEPT_WORDS)

    @property
    def room(self) -> int:
        """Numbers that can be appended."""
        return self._most - self.count

    @property
    def tokens(self) -> Words:
        """The section of tokens so far, without what pads it."""
        return self.paper.words[_HEADER : _HEADER - (-self.count * self._bits // 64)]

    def append_documents(
        self, documents: NDArray[np.int32], lengths: NDArray[np.int64], separator: int
    ) -> int:
        """Append documents, a separator behind each, unless an id is not below it.

        Args:
            documents: int32 ``[n]``, one behind the other, writable.
            lengths: int64, of each.

        Returns:
            The place of the first such id, or -1.
        """
        size = len(documents) + len(lengths)
        offset = self._reserve(size)
        words = self.paper.words
        wrong = int(pack_documents(documents, lengths, separator, self._bits, offset, words))
        self.count += size if wrong < 0 else 0
        return wrong

    def close(self) -> int:
        """Pad the section of tokens; returns how many there are. More may be appended afterwards."""
        place = Section(self._bits, HEADER_BYTES, packed_bytes(self.count, self._bits))
        self._reach(place.offset + place.size)
        section = SheetSection(self.paper, place, self.count)
        section.close()
        self.digest = section.digest
        return self.count

    def section(self, place: Section) -> SheetSection:
        """What appends the numbers of another section."""
        self._reach(place.offset + place.size)
        return SheetSection(self.paper, place)

    def content(self, page: bytes, size: int) -> memoryview:
        """The file of ``size`` bytes, its first page set."""
        octets = self.paper.octets
        octets[:HEADER_BYTES] = page
        return octets[:size]

    def release(self) -> None:
        """Leave the memory to the next build; nothing may follow."""
        if len(self.paper.words) == KEPT_WORDS:
            _KEPT[:] = [self.paper]
        del self.paper

    def _reserve(self, more: int) -> int:
        """Room for so many numbers more; returns the bit of the file at which they begin."""
        self._reach(HEADER_BYTES + packed_bytes(self.count + more, self._bits))
        return HEADER_BYTES * 8 + self.count * self._bits

    def _reach(self, size: int) -> None:
        """At least ``size`` bytes, and what the last section is padded with."""
        needed, words = size // 8 + ALIGNMENT[VERSION] // 8, self.paper.words
        if needed > len(words):
            # What is not written to takes no memory; and what is large enough comes in pages of 2 MB.
            self.paper = _paper(max(needed, 4 * len(words)))
            self.paper.words[: len(words)] = words


class SheetSection:
    """Numbers appended to a section of a sheet, as to a :class:`.spool.PackedSpool`.

    Attributes:
        count: numbers appended so far.
        digest: SHA-256 of the section as it was closed.
    """

    def __init__(self, paper: Paper, place: Section, count: int = 0) -> None:
        self._paper, self._place = paper, place
        self.count, self.digest = count, b""

    def append(self, values: NDArray[np.int64]) -> None:
        """Append the lowest bits of int64 ``[n]``."""
        place = self._place
        pack(values, place.bits, place.offset * 8 + self.count * place.bits, self._paper.words)
        self.count += len(values)

    def flush(self) -> None:
        """All is where it belongs."""

    def close(self) -> int:
        """Pad the section as far as the next one can begin; returns how many numbers there are."""
        place, align, octets = self._place, ALIGNMENT[VERSION], self._paper.octets
        used = place.offset - (-self.count * place.bits // 64) * 8
        end = place.offset + place.size
        padded = -(-end // align) * align
        octets[used:padded] = bytes(padded - used)
        self.digest = hashlib.sha256(octets[place.offset : end]).digest()
        return self.count
