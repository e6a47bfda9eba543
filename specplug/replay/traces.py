"""Logs of requests, read line by line: a log may be larger than memory.

Each line is a JSON object of one of these forms; other fields are ignored:

* ``{"prompt": str, "response": str}``;
* ``{"messages": [{"role", "content"}, ...]}``, an OpenAI chat log: the last message must be the assistant's and is the
  response, the rest is the prompt; with a field ``"response"`` beside it all messages are prompt;
* ``{"text": str}``: no prompt, all of it is response.

Files may be compressed with gzip or zstandard; the first bytes tell, not the name.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from specplug.errors import LogError, MissingExtraError

#: How many malformed lines of a log are kept to be shown; all are counted.
SHOWN = 5
_SUFFIXES = (".gz", ".zst", ".jsonl", ".json", ".ndjson", ".log")


@dataclass(frozen=True, slots=True)
class Record:
    """One request: what the model was given and what it answered.

    Attributes:
        prompt, response: text.
        line: number of the line in its file, from 1.
        workload: the group under which it is reported.
    """

    prompt: str
    response: str
    line: int
    workload: str


@dataclass(slots=True)
class LogFile:
    """One log file, iterated once. Counts what it read.

    Args:
        path: of the file.
        strict: the first malformed line is an error instead of a count.
        tag: field that names the workload of a line; by default the file is the workload.
        limit: at most that many records are read.

    Attributes:
        records: well-formed lines so far.
        malformed: lines that were not.
        problems: the first few of those, as sentences.
    """

    path: Path
    strict: bool = False
    tag: str | None = None
    limit: int | None = None
    records: int = 0
    malformed: int = 0
    problems: list[str] = field(default_factory=list)
    _raw: IO[bytes] | None = None
    _end: int = 0

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
        if self._raw is None or self._raw.closed:
            return self._end
        return self._raw.tell()

    def __iter__(self) -> Iterator[Record]:
        """Yield the records in order.

        Raises:
            LogError: the file cannot be read or decompressed, holds no record, or (``strict``) has a malformed line.
            MissingExtraError: it is compressed with zstandard, and that library is missing.
        """
        number = 0
        if not self.path.is_file():
            raise LogError(
                f"{self.path}: no such file; a log is a file with one JSON object per line"
            )
        try:
            with open(self.path, "rb") as self._raw, _decompressed(self._raw) as lines:
                for number, line in enumerate(lines, 1):
                    if self.limit is not None and self.records >= self.limit:
                        break
                    if line.strip():
                        yield from self._parsed(line, number)
                self._end = self._raw.tell()
        except (OSError, EOFError, zlib.error) as error:
            # gzip.BadGzipFile is an OSError, a truncated gzip file an EOFError.
            raise LogError(
                f"{self.path}: cannot be read after line {number}: {error or type(error).__name__}; "
                "is the file complete?"
            ) from error
        if not self.records:
            raise LogError(f"{self.path}: no record in {number} lines. {self._why_empty()}")

    def _parsed(self, line: bytes, number: int) -> Iterator[Record]:
        try:
            record = parse_line(line, number, self.name, self.tag)
        except LogError as error:
            sentence = f"{self.path}:{number}: {error}"
            if self.strict:
                raise LogError(sentence) from None
            self.malformed += 1
            if len(self.problems) < SHOWN:
                self.problems.append(sentence)
            return
        self.records += 1
        yield record

    def _why_empty(self) -> str:
        if self.problems:
            return f"First problem: {self.problems[0]}"
        return 'A log holds one JSON object per line, such as {"prompt": "...", "response": "..."}'


def parse_line(line: bytes, number: int, workload: str, tag: str | None = None) -> Record:
    """Read one line of a log.

    Raises:
        LogError: not UTF-8, not a JSON object, a field is missing or has the wrong type.
    """
    try:
        entry = json.loads(line)
    except UnicodeDecodeError as error:
        raise LogError(f"not UTF-8 at byte {error.start}; re-encode the log") from None
    except (ValueError, RecursionError) as error:
        raise LogError(f"not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise LogError(f"a JSON object is expected, got {_short(entry)}")
    prompt, response = _prompt_and_response(entry)
    if tag is not None:
        if not isinstance(entry.get(tag), (str, int)):
            raise LogError(
                f"field {tag!r} (the tag) must be a string, got {_short(entry.get(tag))}"
            )
        workload = str(entry[tag])
    return Record(prompt, response, number, workload)


def _prompt_and_response(entry: dict[str, Any]) -> tuple[str, str]:
    if "messages" in entry:
        return _from_messages(entry)
    if "prompt" in entry or "response" in entry:
        return _text(entry, "prompt"), _text(entry, "response")
    if "text" in entry:
        return "", _text(entry, "text")
    known = ", ".join(sorted(map(str, entry))) or "none"
    raise LogError(
        f"fields 'prompt' and 'response', or 'messages', or 'text' are expected; found: {known}"
    )


def _text(entry: dict[str, Any], name: str) -> str:
    if not isinstance(entry.get(name), str):
        found = _short(entry[name]) if name in entry else "no such field"
        raise LogError(f"field {name!r} must be a string, got {found}")
    return _encodable(entry[name])


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # JSON can spell half of a surrogate pair, which is no character and which no tokenizer takes.
        raise LogError(f"half of a surrogate pair at character {error.start}") from None
    return text


def _from_messages(entry: dict[str, Any]) -> tuple[str, str]:
    messages = entry["messages"]
    if not isinstance(messages, list) or not messages:
        raise LogError(f"field 'messages' must be a list of messages, got {_short(messages)}")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise LogError(f"a message must be an object with a 'role', got {_short(message)}")
    if "response" in entry:
        return render_chat(messages), _text(entry, "response")
    if messages[-1]["role"] != "assistant":
        raise LogError(
            f"the last message must be the assistant's (or a field 'response' be there), "
            f"got role {messages[-1]['role']!r}"
        )
    return render_chat(messages[:-1]), _content(messages[-1])


def render_chat(messages: list[dict[str, Any]]) -> str:
    """Messages as one text in the ChatML layout, ending where the assistant begins.

    A log does not say which template the server used. Every layout repeats roles and separators in much the same
    way, so what can be drafted from the text hardly depends on it.
    """
    turns = [f"<|im_start|>{m['role']}\n{_content(m)}<|im_end|>\n" for m in messages]
    return "".join([*turns, "<|im_start|>assistant\n"])


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    parts = []
    if isinstance(content, str):
        parts.append(content)
    elif isinstance(content, list):
        parts += [
            p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str)
        ]
    elif content is not None:
        raise LogError(f"the content of a message must be text, got {_short(content)}")
    if message.get("tool_calls"):
        parts.append(json.dumps(message["tool_calls"], ensure_ascii=False))
    return _encodable("\n".join(parts))


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _decompressed(raw: IO[bytes]) -> IO[bytes]:
    """The bytes of the log, whatever its compression."""
    start = raw.read(4)
    raw.seek(0)
    if start[:2] == b"\x1f\x8b":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw))
    if start == b"\x28\xb5\x2f\xfd":
        return _zstandard(raw)
    return raw


def _zstandard(raw: IO[bytes]) -> IO[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError("reading .zst logs", "zstandard", "replay") from error
    return io.BufferedReader(_ZstdReader(raw, zstandard))


class _ZstdReader(io.RawIOBase):
    """Decompresses frame after frame. The library's own stream reader takes a truncated file for a shorter one."""

    def __init__(self, raw: IO[bytes], library: Any) -> None:
        self._raw, self._library = raw, library
        self._frame: Any = None
        self._waiting = self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._waiting or self._raw.read(1 << 16)
            if not packed:
                if self._frame is not None:
                    raise OSError("the compressed data ends within a frame")
                return 0
            self._unpack(packed)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _unpack(self, packed: bytes) -> None:
        self._waiting = b""
        try:
            if self._frame is None:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            self._ready = self._frame.decompress(packed)
        except self._library.ZstdError as error:
            raise OSError(str(error)) from error
        if self._frame.eof:
            self._waiting = self._frame.unused_data
            self._frame = None
