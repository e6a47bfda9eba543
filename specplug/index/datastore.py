"""An open datastore: its file mapped read-only, so that it opens in milliseconds and processes share its pages."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.errors import DatastoreError
from specplug.index.datastore_format import (
    FILE,
    HEADER_BYTES,
    SECTIONS,
    Header,
    decode,
    file_of,
    unopened,
)
from specplug.kernels import datastore_layout as layout
from specplug.kernels.desk import Desk
from specplug.kernels.lookup import find_for
from specplug.kernels.packed import unpack
from specplug.types import TokenArray

__all__ = ["FILE", "Datastore", "Identity", "Occurrences", "file_of", "identity_of"]

#: Identity of a published file: device, inode, modification time, size.
Identity = tuple[int, int, int, int]


# Names that are looked up once; together they are a twentieth of a search.
_ARRAY, _TOKEN = np.ndarray, np.dtype(np.int32)


#: Bytes of a file that is read when it is opened: 3 ms from a disk of 3 GB/s, 50 ms from one of 150 MB/s.
AT_HAND = 1 << 23


class Occurrences(NamedTuple):
    """Where a context stands in the corpus, longest match first.

    Attributes:
        positions: int64 ``[n]``, read-only, of the next token of each.
        lengths: int64 ``[n]``, read-only, tokens that agree before it.
    """

    positions: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def copy(self) -> Occurrences:
        """For keeping."""
        return Occurrences(self.positions.copy(), self.lengths.copy())


def _answers(found: NDArray[np.int64]) -> list[Occurrences]:
    """Views of what is found, by how many: to make them takes twice as long as to find them."""
    views = [[found[:n, column] for column in (0, 1)] for n in range(len(found) + 1)]
    for view in chain.from_iterable(views):
        view.flags.writeable = False
    return [Occurrences(*pair) for pair in views]


def _mapped(handle: int, size: int) -> mmap.mmap:
    """The file, read-only; a small one with all its pages at hand, so that the first look-ups do not wait for them."""
    flags = mmap.MAP_SHARED
    if size <= AT_HAND:
        flags |= getattr(mmap, "MAP_POPULATE", 0)  # Linux has it
    return mmap.mmap(handle, size, flags=flags, prot=mmap.PROT_READ)


def identity_of(path: Path) -> Identity:
    """Changes when another version is published under the same path."""
    return _identity(os.stat(path))


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


class Datastore:
    """Read-only view of a datastore. Opening costs the same whatever its size; :meth:`verify` reads all of it.

    Attributes:
        path: of the file.
        header: counts, sections and how it was built.
        shelf: what kernels read.
        identity: of the file that is mapped; a new version under the same path has another one.
    """

    def __init__(self, path: str | Path) -> None:
        """Map the file.

        Raises:
            DatastoreError: there is none, or it cannot be one; the message says what to do.
        """
        self.path = file_of(path)
        try:
            self._file = open(self.path, "rb")  # noqa: SIM115 (as long as the map lives)
            found = os.fstat(self._file.fileno())
            self.header: Header = decode(
                self._file.read(HEADER_BYTES), found.st_size, str(self.path)
            )
            mapped = _mapped(self._file.fileno(), found.st_size)
        except OSError as error:
            raise unopened(path, error) from error
        self._number = self._file.fileno()
        self.identity: Identity = _identity(found)
        self.shelf = layout.Shelf(np.frombuffer(mapped, "<u8"), _meta(self.header))
        self._desk = Desk(self.shelf)  # kept for as long as its handle
        self._handle = self._desk.handle
        self._answers = _answers(self._desk.found)

    @property
    def documents(self) -> int:
        """How many."""
        return self.header.documents

    def tokens(self, start: int = 0, end: int | None = None) -> NDArray[np.int64]:
        """Tokens ``start .. end - 1`` of the corpus: int64, separators are -1. O(n)."""
        total = self.header.tokens
        end = total if end is None else min(end, total)
        out = np.zeros(max(0, end - start), np.int64)
        meta = self.shelf.meta.tolist()
        unpack(self.shelf.words, meta[layout.TOKEN_WORD], meta[layout.TOKEN_BITS], start, out)
        out[out == self.header.vocab_size] = -1
        return out

    def search(self, context: TokenArray, most: int = layout.MAX_FOUND) -> Occurrences:
        """The occurrences that share the longest context with the end of ``context`` (int32 ``[n]``).

        Nothing is allocated: what it returns is **overwritten by the next search** (:meth:`Occurrences.copy` keeps it).
        Threads that share one get each other's answers: open **one per thread**, in under 1 ms each. At most
        ``MAX_FOUND`` are found, whatever ``most`` says. O(log(entries) + most).
        """
        # What is a list, read-only or has gaps would be compiled anew.
        if type(context) is not _ARRAY or context.dtype is not _TOKEN or not context.flags.carray:
            context = np.require(context[-layout.MAX_DEPTH :], _TOKEN, ["C", "W", "A"])
        found: Occurrences = self._answers[find_for(self._handle, context, most)]
        return found

    def intact(self) -> bool:
        """Whether the mapped file still has its length: reading beyond the end of a cut file would end the process.

        A file that was removed or replaced stays readable as it was. Costs one system call.
        """
        # Not ``fstat``, which takes four times as long; nobody reads from this file where its pointer stands.
        return os.lseek(self._number, 0, os.SEEK_END) >= self.identity[3]

    def verify(self, progress: Callable[[int], None] = lambda size: None) -> None:
        """Read everything and compare checksums.

        Args:
            progress: told the bytes read since it was last called.

        Raises:
            DatastoreError: a section does not have the checksum that the header says.
        """
        with open(self.path, "rb") as file:
            for name in SECTIONS:
                section = self.header.sections[name]
                digest, left = hashlib.sha256(), section.size
                file.seek(section.offset)
                while left:
                    block = file.read(min(left, 1 << 22))
                    if not block:
                        break
                    digest.update(block)
                    left -= len(block)
                    progress(len(block))
                if digest.digest() != section.digest:
                    raise DatastoreError(
                        f"{self.path}: the section {name!r} is damaged (checksum); copy it from its source, or build "
                        "it again"
                    )


def _meta(header: Header) -> NDArray[np.int64]:
    tokens, entries, buckets = (header.sections[name] for name in SECTIONS)
    return np.array(
        [
            *(header.tokens, header.entries, header.vocab_size, header.depth),
            *(tokens.bits, tokens.offset // 8, entries.bits, entries.offset // 8),
            *(buckets.bits, buckets.offset // 8, header.listed),
        ],
        np.int64,
    )
