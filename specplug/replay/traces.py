"""Logs of requests, read entry by entry: a log may be larger than memory.

An entry is a line of JSON (see :mod:`specplug.replay.forms`), a row of a Parquet file, or what an engine wrote about a
request into its own log (:mod:`specplug.replay.engine_logs`). Files may be compressed with gzip or zstandard.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any

from specplug.errors import LogError
from specplug.replay.chat import render_chat, short
from specplug.replay.containers import PARQUET_MAGIC, ParquetRows, decompressed, first_bytes
from specplug.replay.engine_logs import EngineLog
from specplug.replay.forms import Text, Turns, arrival_of, at, exchanges, model_of

__all__ = ["SHOWN", "Choice", "LogFile", "Record", "Text", "parse_line", "render_chat"]

#: How many malformed lines of a log are kept to be shown; all are counted.
SHOWN = 5
#: Lines at the beginning of an engine's log that its libraries may have written.
DOUBTFUL = 1000
#: Fields in which log shippers put the line that a program wrote.
SHIPPED = ("message", "msg", "log")
_SUFFIXES = (".gz", ".zst", ".jsonl", ".json", ".ndjson", ".log", ".parquet", ".txt")


@dataclass(frozen=True, slots=True)
class Record:
    """One request: what the model was given and what it answered.

    Attributes:
        prompt, response: text, or token ids where the log holds them.
        line: number of the line (or row) in its file, from 1.
        workload: the group under which it is reported.
        arrived: seconds since 1970, or None.
        model: which model answered, or None.
    """

    prompt: Text
    response: Text
    line: int
    workload: str
    arrived: float | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a log is read, and how.

    Attributes:
        tag: field that names the workload of an entry (``a.b`` for a field of a field); by default the file does.
        limit: at most that many records.
        turns: the last answer of a chat, or all of them, each as a request.
        model: only what this model answered.
        time: field that says when a request arrived; by default the usual names are tried.
        where: fields and globs; only entries are read in which each of these fields matches one of its globs.
    """

    tag: str | None = None
    limit: int | None = None
    turns: Turns = "last"
    model: str | None = None
    time: str | None = None
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def takes(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry has the values that ``where`` asks for; letters of either case are equal."""
        return all(
            any(fnmatch(str(at(entry, name)).lower(), glob.lower()) for glob in globs)
            for name, globs in self.where
        )


@dataclass(slots=True)
class LogFile:
    """One log file, iterated once. Counts what it read.

    Args:
        path: of the file.
        strict: the first malformed line is an error instead of a count.
        choice: what is read.
        expected: how many records there are, if somebody has counted them.

    Attributes:
        records: well-formed requests so far.
        malformed: lines that were not.
        problems: the first few of those, as sentences.
        models: how many records each model answered, if the log says so.
    """

    path: Path
    strict: bool = False
    choice: Choice = Choice()
    expected: int | None = None
    records: int = 0
    malformed: int = 0
    problems: list[str] = field(default_factory=list)
    models: Counter[str] = field(default_factory=Counter)
    _raw: IO[bytes] | None = None
    _rows: ParquetRows | None = None
    _end: int = 0
    _number: int = 0
    _engine: EngineLog = field(default_factory=EngineLog)
    _doubtful: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The file's name without the endings that only say how it is written."""
        name = self.path.name
        while True:
            ending = next((s for s in _SUFFIXES if name.endswith(s) and name != s), None)
            if ending is None:
                return name
            name = name[: -len(ending)]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size

    @property
    def position(self) -> int:
        """How many of those bytes have been read."""
        if self._rows is not None:
            return int(self.size * self._rows.done)
        if self._raw is None or self._raw.closed:
            return self._end
        return self._raw.tell()

    @property
    def share(self) -> float:
        """How much of the log has been read, 0 to 1: by records where their number is known, else by bytes."""
        if self.expected is not None:
            return self.records / max(1, self.expected)
        return self.position / max(1, self.size)

    def refuse(self, line: int, problem: str) -> None:
        """Count a malformed line, and keep the sentence if it is one of the first.

        Raises:
            LogError: with ``strict``.
        """
        sentence = f"{self.path}:{line}: {problem}"
        if self.strict:
            raise LogError(sentence)
        self.malformed += 1
        if len(self.problems) < SHOWN:
            self.problems.append(sentence)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records in order.

        Raises:
            LogError: the file cannot be read or decompressed, holds no record, or (``strict``) has a malformed line.
            MissingExtraError: a library that reads this kind of file is missing.
        """
        if not self.path.is_file():
            raise LogError(
                f"{self.path}: no such file; a log is a file with one JSON object per line"
            )
        limit = self.choice.limit
        try:
            for entry in self._entries():
                if limit is not None and self.records >= limit:
                    break
                yield from self._of(entry)
        except (OSError, EOFError, zlib.error) as error:
            # gzip.BadGzipFile is an OSError, a truncated gzip file an EOFError.
            raise LogError(
                f"{self.path}: cannot be read after line {self._number}: {error or type(error).__name__}; "
                "is the file complete?"
            ) from error
        if not self.records:
            raise LogError(f"{self.path}: no record in {self._number} lines. {self._why_empty()}")

    def _entries(self) -> Iterator[Mapping[str, Any]]:
        if first_bytes(self.path) == PARQUET_MAGIC:
            self._rows = ParquetRows(self.path)
            for number, row in enumerate(self._rows, 1):
                self._number = number
                yield row
            return
        with open(self.path, "rb") as self._raw, decompressed(self._raw, self.path) as lines:
            for number, line in enumerate(lines, 1):
                self._number = number
                if line.strip():
                    yield from self._parsed(line)
            self._end = self._raw.tell()
        self._settle()

    def _parsed(self, line: bytes) -> Iterator[Mapping[str, Any]]:
        try:
            yield from self._line(line)
        except LogError as error:
            self.refuse(self._number, str(error))

    def _line(self, line: bytes) -> list[Mapping[str, Any]]:
        """The entries of a line: one of JSON, or what a line of an engine's log completes."""
        if line.lstrip()[:1] != b"{":
            found = self._engine.feed(_decoded(line))
            if found is not None:
                return found
            if self._engine.seen:
                return []  # what else lands in the log of an engine: tracebacks, banners
            if not self.records and len(self._doubtful) < DOUBTFUL:
                # An engine's log may begin with warnings of its libraries; what follows tells.
                self._doubtful.append(self._number)
                return []
        entry = _json(line)
        self._settle()
        shipped = next((entry[n] for n in SHIPPED if isinstance(entry.get(n), str)), None)
        found = self._engine.event(entry)
        if found is None and shipped is not None:
            found = self._engine.feed(shipped if "levelname" not in entry else f"INFO {shipped}")
            if found is None and self._engine.seen:
                return []
        return [entry] if found is None else found

    def _settle(self) -> None:
        """Lines at the beginning that are no JSON are malformed, unless an engine's log follows."""
        numbers, self._doubtful = self._doubtful, []
        for number in numbers if not self._engine.seen else ():
            self.refuse(number, "not JSON: a JSON object is expected on each line")

    def _of(self, entry: Mapping[str, Any]) -> Iterator[Record]:
        try:
            records = read_entry(entry, self._number, self.name, self.choice)
        except LogError as error:
            self.refuse(self._number, str(error))
            return
        for record in records:
            if record.model is not None:
                self.models[record.model] += 1
            self.records += 1
            yield record

    def _why_empty(self) -> str:
        if self._engine.hint:
            return self._engine.hint
        if self.problems:
            return f"First problem: {self.problems[0]}"
        if self.choice.model is not None:
            return f"None of them was answered by {self.choice.model!r}"
        if self._engine.seen:
            return "An engine wrote them, but none about a finished request"
        return 'A log holds one JSON object per line, such as {"prompt": "...", "response": "..."}'


def parse_line(
    line: bytes, number: int, workload: str, choice: Choice | None = None
) -> list[Record]:
    """Read one line of JSON.

    Raises:
        LogError: not UTF-8, not a JSON object, a field is missing or has the wrong type.
    """
    return read_entry(_json(line), number, workload, choice or Choice())


def read_entry(
    entry: Mapping[str, Any], number: int, workload: str, choice: Choice
) -> list[Record]:
    """The requests of one entry.

    Raises:
        LogError: a field is missing or has the wrong type.
    """
    model = model_of(entry)
    if (choice.model is not None and model != choice.model) or not choice.takes(entry):
        return []
    arrived = arrival_of(entry, choice.time)
    if choice.tag is not None:
        value = at(entry, choice.tag)
        if not isinstance(value, (str, int)):
            raise LogError(f"field {choice.tag!r} (the tag) must be a string, got {short(value)}")
        workload = str(value)
    found = exchanges(entry, choice.turns)
    return [Record(e.prompt, e.response, number, workload, arrived, model) for e in found]


def _json(line: bytes) -> Mapping[str, Any]:
    try:
        entry = json.loads(line)
    except UnicodeDecodeError as error:
        raise LogError(f"not UTF-8 at byte {error.start}; re-encode the log") from None
    except (ValueError, RecursionError) as error:
        raise LogError(f"not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise LogError(f"a JSON object is expected, got {short(entry)}")
    return entry


def _decoded(line: bytes) -> str:
    # Engines colour their lines; what is no UTF-8 is no line of theirs.
    return line.decode("utf-8", "replace").replace("\x1b[0m", "").rstrip("\r\n")
