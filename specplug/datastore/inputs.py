"""What datastores are built from, as a stream of documents: logs, Parquet, text files, source trees, other datastores.

Nothing is held but the document at hand, so an input may be larger than memory. The order is that of the inputs,
within a folder that of the paths. Logs are read as ``specplug replay`` reads them.
"""

from __future__ import annotations

import fnmatch
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from specplug.errors import DatastoreError, LogError
from specplug.index.datastore import FILE, Datastore
from specplug.replay.containers import decompressed
from specplug.replay.traces import SHOWN, Choice, LogFile, Text
from specplug.types import TOKEN_DTYPE, TokenArray

#: Bytes of a text file that become one document; longer files are cut at the end of a line.
PIECE = 1 << 20
#: What lies in files of these names are records of requests; anything else is text.
LOGS = (".jsonl", ".ndjson", ".json", ".parquet", ".log")
#: A file with a zero byte among its first bytes is no text.
SNIFFED = 8192

Content = str | TokenArray


@dataclass(frozen=True, slots=True)
class Document:
    """One document: text, or token ids (int32 ``[n]``), and where it stands.

    Attributes:
        content: text or ids.
        place: input number, and document number within it; what an interrupted build goes on from.
    """

    content: Content
    place: tuple[int, int]


@dataclass(frozen=True)
class Filters:
    """Which documents are taken.

    Attributes:
        include, exclude: globs over paths relative to the folder given (``*`` matches ``/`` too).
        choice: which records of a log.
        whole: prompts are taken with the responses, as one document.
        strict: what cannot be read is an error instead of a count.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    choice: Choice = field(default_factory=Choice)
    whole: bool = False
    strict: bool = False

    def takes_path(self, path: str) -> bool:
        """Whether a file of a folder is read."""
        if any(fnmatch.fnmatch(path, glob) for glob in self.exclude):
            return False
        return not self.include or any(fnmatch.fnmatch(path, glob) for glob in self.include)


@dataclass
class Inputs:
    """Reads inputs one after the other. Iterated once.

    Attributes:
        unreadable: records and files that could not be read.
        filtered: files of folders that the filters left out.
        problems: the first few of the unreadable, as sentences.
        bytes_read: of the files that are behind us, and of the one at hand.
    """

    paths: Sequence[Path]
    filters: Filters = field(default_factory=Filters)
    unreadable: int = 0
    filtered: int = 0
    problems: list[str] = field(default_factory=list)
    bytes_read: int = 0

    @property
    def size(self) -> int:
        """Bytes of all inputs."""
        files = (file for path in self.paths for file in _files(path))
        return sum(file.stat().st_size for file in files if file.is_file())

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents, in order.

        Raises:
            DatastoreError: an input does not exist, or (``strict``) something is unreadable.
            MissingExtraError: a package is missing that reads this kind of input.
        """
        for number, path in enumerate(self.paths):
            if not path.exists():
                raise DatastoreError(f"input {path} does not exist")
            for count, content in enumerate(self._contents(path)):
                yield Document(content, (number, count))

    def _contents(self, path: Path) -> Iterator[Content]:
        for file in _files(path):
            name = file.relative_to(path).as_posix() if file != path else file.name
            if file != path and file.name != FILE and not self.filters.takes_path(name):
                self.filtered += 1
                continue
            start = self.bytes_read
            try:
                yield from self._reader_of(file)(file)
                self.bytes_read = start + file.stat().st_size
            except (OSError, EOFError, zlib.error, LogError) as error:
                self._complain(f"{file} cannot be read: {error or type(error).__name__}")

    def _reader_of(self, file: Path) -> Callable[[Path], Iterator[Content]]:
        if file.name == FILE:
            return self._datastore
        name = file.name.lower().removesuffix(".gz").removesuffix(".zst")
        return self._log if name.endswith(LOGS) else self._text

    def _log(self, path: Path) -> Iterator[Content]:
        log = LogFile(path, strict=self.filters.strict, choice=self.filters.choice)
        start = self.bytes_read
        for record in log:
            parts = (record.prompt, record.response) if self.filters.whole else (record.response,)
            yield _joined(parts)
            self.bytes_read = start + log.position
        self.unreadable += log.malformed
        self.problems.extend(log.problems[: SHOWN - len(self.problems)])

    def _text(self, path: Path) -> Iterator[Content]:
        start = self.bytes_read
        with open(path, "rb") as raw, decompressed(raw, path) as file:
            piece = file.read(PIECE)
            if b"\0" in piece[:SNIFFED]:
                self._complain(f"{path}: binary, no text")
                return
            while piece:
                piece += file.readline()
                try:
                    yield piece.decode()
                except UnicodeDecodeError as error:
                    self._complain(f"{path}: not UTF-8: {error.reason}")
                    return
                self.bytes_read = start + raw.tell()
                piece = file.read(PIECE)

    def _datastore(self, path: Path) -> Iterator[Content]:
        yield from documents_of(Datastore(path))

    def _complain(self, sentence: str) -> None:
        if self.filters.strict:
            raise DatastoreError(f"{sentence}; correct it, or build without --strict")
        self.unreadable += 1
        if len(self.problems) < SHOWN:
            self.problems.append(sentence)


def documents_of(store: Datastore, block: int = 1 << 20) -> Iterator[TokenArray]:
    """The documents of a datastore: int32 ``[n]`` each; ``block`` tokens are read at once."""
    parts: list[TokenArray] = []
    for start in range(0, store.header.tokens, block):
        tokens = store.tokens(start, start + block).astype(TOKEN_DTYPE)
        low = 0
        for end in np.flatnonzero(tokens < 0).tolist():
            yield np.concatenate([*parts, tokens[low:end]])
            parts, low = [], end + 1
        parts.append(tokens[low:])


def _joined(parts: Sequence[Text]) -> Content:
    """Prompt and response as one document."""
    if all(isinstance(part, str) for part in parts):
        return "".join(str(part) for part in parts)
    ids = [np.array(part, np.int64) for part in parts if not isinstance(part, str)]
    tokens = np.concatenate(ids)
    # An id that is too large for the array is reported like one that is too large for the vocabulary.
    return np.clip(tokens, -1, np.iinfo(TOKEN_DTYPE).max).astype(TOKEN_DTYPE)


def _files(path: Path) -> Iterator[Path]:
    """A file itself; the files below a folder in the order of their paths, hidden ones left out."""
    if not path.is_dir():
        yield path
    elif (path / FILE).is_file():
        yield path / FILE
    else:
        for root, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from (Path(root) / name for name in sorted(names) if not name.startswith("."))
