"""Writes the file of a datastore: appended documents, entries sorted in bounded memory, published at once.

A small one is put together in memory: folders, locks and maps take longer than sorting it. See :mod:`.workshop`.
"""

from __future__ import annotations

import errno
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.datastore.sheet import Sheet, SheetSection
from specplug.datastore.sorting import processors, sorted_entries
from specplug.datastore.spool import BLOCK, PackedSpool
from specplug.datastore.workshop import WORKSHOP, Workshop
from specplug.errors import DatastoreError
from specplug.index.datastore_format import (
    HEADER_BYTES,
    Header,
    Section,
    bits_for,
    encode,
    layout,
    listed_for,
)
from specplug.kernels import datastore_layout as places
from specplug.kernels.contexts import number_buckets, tally_entries
from specplug.types import TokenArray

__all__ = ["WORKSHOP", "Progress", "Writer", "silent"]

#: Bytes of tokens up to which the file is put together in memory, at most; and the share of the memory given.
IN_MEMORY, SHARE = 1 << 23, 16
#: The most positions, and thus tokens, of one file: positions are packed with at most 48 bits.
MOST_TOKENS = 1 << 48
Progress = Callable[[str, int, int], None]
_INT32 = {np.dtype(np.int32)}
_dtype_of = operator.attrgetter("dtype")


def silent(what: str, done: int, total: int) -> None:
    """Shows no progress."""


class Explained:
    """Turns a full disk or a missing permission into a sentence; what is published stays as it was."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError):
            raise _explanation(self._folder, error) from error


def _explanation(folder: str, error: OSError) -> DatastoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DatastoreError(
            f"no space left for {folder} ({error.strerror}); nothing was published. Make room and run the same "
            "command again, which goes on from its last checkpoint, if it took one, or remove "
            f"{os.path.join(folder, WORKSHOP)}"
        )
    return DatastoreError(
        f"{folder} cannot be written: {error}; choose another folder, or correct its permissions"
    )


def _in_32_bits(document: NDArray[Any]) -> NDArray[np.int32]:
    """As int32; what does not fit becomes an id outside of any vocabulary."""
    with np.errstate(invalid="ignore"):
        packable = document.astype(np.int32)
    packable[packable != document] = -1
    return packable


#: What counting takes, for vocabularies up to MOST_BLANK: whoever builds a store for each of many tenants would wait
#: longer for the pages of new arrays than for sorting.
_BLANK: list[Blank] = []
MOST_BLANK = 1 << 19


class Blank(NamedTuple):
    """See :func:`tally_entries`; all zeros are what ``counts`` and ``marks`` begin and end with."""

    counts: NDArray[np.int64]
    marks: NDArray[np.uint64]
    present: NDArray[np.int64]
    starts: NDArray[np.int64]


def _blank(size: int) -> Blank:
    """For a vocabulary of this size; whoever gets it has it alone."""
    try:
        kept = _BLANK.pop()
    except IndexError:
        kept = None
    if kept is not None and len(kept.counts) == size:
        return kept
    counts, marks = np.zeros(size, np.int64), np.zeros(-(-size // 64), np.uint64)
    return Blank(counts, marks, np.empty(size, np.int64), np.empty(size + 1, np.int64))


class Writer:
    """Builds one datastore. Use as a context manager; :meth:`publish` ends the work.

    Args:
        folder: of the datastore; made if it is missing.
        vocab_size: ids must lie below it.
        vocabulary: see :func:`specplug.vocabulary.vocabulary_digest`; "" if the ids come without a tokenizer.
        identity: what must be equal for an interrupted build to be continued (inputs, options); JSON.
        memory: bytes that sorting may use, at least; more if one token alone stands before so many positions.
        threads: that sort; as many as there are processors if None. The file is the same.
        durable: wait until the published file would outlive a power failure. Else it may be lost or damaged by one (and
            what it replaced with it); a crash of the process alone does no harm.
        restart: begin anew even if an interrupted build could be continued; what it left is removed.

    Attributes:
        cursor: what was last given to :meth:`checkpoint`, or an empty mapping: a build begins anew.
        documents: appended so far.
    """

    def __init__(
        self,
        folder: str | Path,
        vocab_size: int,
        vocabulary: str = "",
        *,
        identity: Mapping[str, Any] | None = None,
        memory: int = 1 << 29,
        threads: int | None = None,
        durable: bool = True,
        restart: bool = False,
    ) -> None:
        if not 1 <= vocab_size < 2**31 - 1:
            raise DatastoreError(
                f"vocab_size must be at least 1 and fit in int32, got {vocab_size}"
            )
        self._folder = os.path.expanduser(folder) or "."
        self.vocab_size, self.vocabulary, self.memory = vocab_size, vocabulary, memory
        self.threads = processors() if threads is None else threads
        self.durable = durable
        self._identity = {"vocab_size": vocab_size, **(identity or {})}
        self._bits = bits_for(vocab_size)
        self.documents = 0
        self._torn = False
        self.cursor: dict[str, Any] = {}
        with Explained(self._folder):
            self._workshop = Workshop(self._folder, restart)
            try:
                journal = self._workshop.resume(self._identity, self._bits)
                self._spool = self._begun(*journal.get("tokens", (0, ())))
            except BaseException:
                self._workshop.close()
                raise
        self.documents = journal.get("documents", 0)
        self.cursor = journal.get("cursor", {})

    def _begun(self, count: int, rest: Sequence[int]) -> Sheet | PackedSpool:
        file = self._workshop.file
        if file is None:
            return Sheet(self._bits, min(IN_MEMORY, self.memory // SHARE) * 8 // self._bits)
        return PackedSpool(file, HEADER_BYTES, self._bits, count, rest)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *failure: object) -> None:
        self._workshop.close()

    @property
    def folder(self) -> Path:
        """Of the datastore."""
        return Path(self._folder)

    @property
    def tokens(self) -> int:
        """Numbers in the section of tokens so far, separators included."""
        return self._spool.count

    def add(self, document: TokenArray) -> None:
        """Append one document: int32 ``[n]``, every id in ``0 .. vocab_size - 1``.

        Raises:
            DatastoreError: an id lies outside of the vocabulary, the corpus is too long, or the disk is full.
        """
        size = len(document) + 1
        self._refuse(size)
        packable = document
        if document.dtype != np.int32:
            packable = _in_32_bits(document)
        if not packable.flags.carray:  # read-only, or with gaps: would be compiled anew
            packable = packable.copy()
        try:  # as :class:`Explained` does, which costs more than the rest of a short document
            spool = self._spool
            if isinstance(spool, Sheet) and size > spool.room:
                spool = self._to_disk(spool)
            lengths = np.array([len(document)], np.int64)
            wrong = spool.append_documents(packable, lengths, self.vocab_size)
        except OSError as error:
            self._torn = True  # a part of this document may be in the file, without its end
            raise _explanation(self._folder, error) from error
        if wrong >= 0:
            raise DatastoreError(
                f"token {wrong} of a document is {document[wrong]}, outside of the vocabulary "
                f"0 .. {self.vocab_size - 1}; build with the tokenizer that made these ids"
            )
        self.documents += 1

    def extend(self, documents: Sequence[TokenArray]) -> None:
        """Append several documents, many at once: short ones take a third of the time. See :meth:`add`.

        Raises:
            DatastoreError: as :meth:`add`; where an id is wrong, of those that stand before its document some may be
                appended.
        """
        lengths = list(map(len, documents))
        if self._append_many(documents, lengths):
            return
        start = 0
        while start < len(documents):
            end, size = start, min(BLOCK, self._spool.room)
            while end < len(documents) and lengths[end] < size:
                size -= lengths[end] + 1
                end += 1
            if end > start and self._append_many(documents[start:end], lengths[start:end]):
                start = end
            else:  # long, of another kind, or wrong: one by one
                for document in documents[start : max(end, start + 1)]:
                    self.add(document)
                start = max(end, start + 1)

    def _append_many(self, documents: Sequence[TokenArray], lengths: list[int]) -> bool:
        """Append documents that fit in the room at hand; does nothing and returns False if one needs a closer look."""
        count = len(documents)
        size = sum(lengths) + count
        if size > min(BLOCK, self._spool.room) or set(map(_dtype_of, documents)) != _INT32:
            return False
        try:  # numpy's way takes three times as long; what is joined is writable, as kernels expect
            flat = np.frombuffer(bytearray().join(documents), np.int32)  # type: ignore[arg-type]
        except (TypeError, ValueError):  # one has gaps, or all are empty
            return False
        if len(flat) + count != size:  # more than one dimension
            return False
        self._refuse(size)
        # No file is written here: there is room.
        each = np.array(lengths, np.int64)
        if self._spool.append_documents(flat, each, self.vocab_size) >= 0:
            return False
        self.documents += count
        return True

    def checkpoint(self, cursor: Mapping[str, Any]) -> None:
        """Remember how far the input has been read: an interrupted build goes on from here."""
        self._refuse()
        with Explained(self._folder):
            spool = self._spool
            if isinstance(spool, Sheet):
                spool = self._to_disk(spool)
            tokens = spool.state()
            noted = {"tokens": tokens, "documents": self.documents, "cursor": cursor}
            self._workshop.remember({"identity": self._identity, **noted})
        self.cursor = dict(cursor)

    def publish(self, metadata: Mapping[str, Any], progress: Progress = silent) -> Header:
        """Sort, write checksums, and put the file in its place.

        Raises:
            DatastoreError: there is nothing to look up, or the disk is full; what was published before stays.
        """
        self._refuse()
        with Explained(self._folder):
            header = self._complete(progress, metadata)
            page, spool = encode(header), self._spool
            if isinstance(spool, Sheet):
                self._workshop.publish_content(spool.content(page, header.file_size), self.durable)
                spool.release()
            else:
                spool.put_header(page)
                self._workshop.publish(header.file_size, self.durable)
        return header

    def _to_disk(self, sheet: Sheet) -> PackedSpool:
        """Go on in a file, what is in memory first."""
        with self._workshop.moving() as file:
            spool = PackedSpool(file, HEADER_BYTES, self._bits)
            spool.take_over(sheet.tokens, sheet.count)
        self._spool = spool
        return spool

    def _refuse(self, more: int = 0) -> None:
        """Nothing may follow half a document or what readers see, nor so many tokens more than a file holds."""
        if self._workshop.published:
            raise DatastoreError(
                f"the datastore {self.folder} is published; open a new Writer to build another version"
            )
        if self.tokens + more > MOST_TOKENS:
            raise DatastoreError(f"a datastore holds at most {MOST_TOKENS} tokens; make several")
        if self._torn:
            raise DatastoreError(
                f"a document could not be written to {self.folder}, so this build cannot go on; open a new Writer, "
                "which goes on where the last checkpoint was"
            )

    def _complete(self, progress: Progress, metadata: Mapping[str, Any]) -> Header:
        """Sort all positions, write them and the buckets, and say what is where."""
        tokens = self._spool.close()
        if isinstance(self._spool, PackedSpool):
            self._spool.cut()
        shelf = self._tokens_at_hand(tokens)
        blank = _blank(self.vocab_size)
        tally = self._tallied(shelf, blank)
        total = int(tally.starts[-1])
        listed = listed_for(self.vocab_size, total, len(tally.present))
        sections = layout(self.vocab_size, tokens, total, listed=listed)
        entries = self._section(sections["entries"])
        for part in sorted_entries(shelf, tally, self.memory, self.threads):
            progress("sorting", entries.count, total)
            entries.append(part)
            entries.flush()
        entries.close()
        progress("sorting", total, total)
        buckets = self._section(sections["buckets"])
        numbers = np.empty((listed or self.vocab_size) + 1, np.int64)
        number_buckets(tally, self.vocab_size, bits_for(total) if listed else 0, numbers)
        buckets.append(numbers)
        buckets.close()
        if self.vocab_size <= MOST_BLANK:
            _BLANK[:] = [blank]
        digests = (self._spool.digest, entries.digest, buckets.digest)
        return Header(
            *(self.vocab_size, tokens, total, self.documents, places.MAX_DEPTH),
            {
                name: Section(bits, offset, size, digest)
                for (name, (bits, offset, size, _)), digest in zip(
                    sections.items(), digests, strict=True
                )
            },
            *(self.vocabulary, metadata, listed),
        )

    def _section(self, section: Section) -> SheetSection | PackedSpool:
        """What appends to it."""
        if isinstance(self._spool, Sheet):
            return self._spool.section(section)
        return self._spool.beside(section)

    def _tallied(self, shelf: places.Shelf, blank: Blank) -> places.Tally:
        """The entries by last token."""
        found = tally_entries(shelf, *blank)
        if not found:
            raise DatastoreError(
                f"no document with two tokens or more in {self.documents}: there is nothing to look up; "
                "check the inputs and filters"
            )
        return places.Tally(blank.counts, blank.present[:found], blank.starts[: found + 1])

    def _tokens_at_hand(self, tokens: int) -> places.Shelf:
        """The section of tokens as kernels read it."""
        section = (self._bits, HEADER_BYTES // 8)
        sizes = (tokens, 0, self.vocab_size, places.MAX_DEPTH)
        # As the header's: the other sections are not there yet.
        meta = np.array((*sizes, *section, 0, 0, 0, 0, 0), np.int64)
        if isinstance(self._spool, Sheet):
            return places.Shelf(self._spool.paper.read_only, meta)
        return places.Shelf(self._workshop.words(), meta)
