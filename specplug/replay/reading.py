"""From logs to token ids, some at a time, so that a log may be larger than memory."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from specplug.errors import LogError
from specplug.replay.tokenizers import TextTokenizer
from specplug.replay.traces import LogFile, Record, Text
from specplug.types import TOKEN_DTYPE, TokenArray

#: Tokens that are held in memory at a time.
CHUNK_TOKENS = 1 << 21
CHUNK_RECORDS = 4096
ENCODE_RECORDS = 64
#: Records among which order of arrival is restored.
WINDOW = 4096


class Tokenised(NamedTuple):
    """A record as token ids.

    Attributes:
        size: its share of the log in bytes.
        share: where it stands in its log: 0 at the beginning, 1 at the end.
        arrived: seconds since some epoch, or None where the log does not say.
    """

    workload: str
    prompt: TokenArray
    response: TokenArray
    size: int
    share: float = 0.0
    arrived: float | None = None


class Reader:
    """Reads logs of one order and counts what it leaves out.

    Attributes:
        too_long: requests of more than ``max_length`` tokens, by log.
    """

    def __init__(self, tokenizer: TextTokenizer, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.too_long: dict[str, int] = {}

    def chunks(self, records: Iterable[tuple[LogFile, Record]]) -> Iterator[list[Tokenised]]:
        """Tokenised records, as many at a time as :data:`CHUNK_TOKENS` allows."""
        chunk: list[Tokenised] = []
        tokens = 0
        for record in self.tokenised(records):
            chunk.append(record)
            tokens += len(record.prompt) + len(record.response)
            if tokens >= CHUNK_TOKENS or len(chunk) >= CHUNK_RECORDS:
                yield chunk
                chunk, tokens = [], 0
        if chunk:
            yield chunk

    def tokenised(self, records: Iterable[tuple[LogFile, Record]]) -> Iterator[Tokenised]:
        """One after the other, in order."""
        group: list[tuple[LogFile, Record, int, float]] = []
        seen: dict[int, int] = {}
        for log, record in records:
            position = log.position
            size = max(0, position - seen.get(id(log), 0))
            seen[id(log)] = position
            group.append((log, record, size, log.share))
            if len(group) == ENCODE_RECORDS:
                yield from self._encode(group)
                group = []
        yield from self._encode(group)

    def _encode(self, group: Sequence[tuple[LogFile, Record, int, float]]) -> Iterator[Tokenised]:
        texts = [text for _, record, *_ in group for text in (record.prompt, record.response)]
        ids = iter(self._ids(texts))
        for (log, record, size, share), prompt, response in zip(group, ids, ids, strict=True):
            if isinstance(prompt, LogError) or isinstance(response, LogError):
                problem = prompt if isinstance(prompt, LogError) else response
                log.refuse(record.line, f"{problem}")
                continue
            if len(prompt) + len(response) > self.max_length:
                self.too_long[log.name] = self.too_long.get(log.name, 0) + 1
                continue
            yield Tokenised(record.workload, prompt, response, size, share, record.arrived)

    def _ids(self, texts: Sequence[Text]) -> list[TokenArray | LogError]:
        found: list[TokenArray | LogError] = [np.zeros(0, TOKEN_DTYPE)] * len(texts)
        strings = [i for i, text in enumerate(texts) if isinstance(text, str)]
        words = [str(texts[i]) for i in strings]
        try:
            encoded: Sequence[TokenArray | LogError] = self.tokenizer.encode(words)
        except LogError:
            encoded = [self._one(word) for word in words]
        for i, array in zip(strings, encoded, strict=True):
            found[i] = array
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                found[i] = self._given(text)
        return found

    def _one(self, text: str) -> TokenArray | LogError:
        """Of a batch of texts only those are refused that the tokenizer cannot take."""
        try:
            return self.tokenizer.encode([text])[0]
        except LogError as error:
            return error

    def _given(self, ids: Sequence[int]) -> TokenArray | LogError:
        """Ids that stand in the log. An id outside the vocabulary means that another tokenizer made them."""
        array = np.array(ids, np.int64)
        outside = np.flatnonzero((array < 0) | (array >= self.tokenizer.vocab_size))
        if len(outside):
            return LogError(
                f"token id {array[outside[0]]} lies outside the vocabulary of {self.tokenizer.vocab_size}: these ids "
                "were made by another tokenizer; give the one of the model that answered"
            )
        return array.astype(TOKEN_DTYPE)


def in_turn(logs: Sequence[LogFile]) -> Iterator[tuple[LogFile, Record]]:
    """One record of each log, then the next of each, until all are read."""
    waiting = [(log, iter(log)) for log in logs]
    while waiting:
        left = []
        for log, records in waiting:
            record = next(records, None)
            if record is not None:
                left.append((log, records))
                yield log, record
        waiting = left


def by_arrival(logs: Sequence[LogFile]) -> Iterator[tuple[LogFile, Record]]:
    """All records of all logs by the time of their arrival.

    Servers log a request when it ends, so a log is only nearly in order: each is sorted within a window of
    :data:`WINDOW` records, and the logs are merged.

    Raises:
        LogError: a record has no time.
    """
    return ((log, record) for _, _, _, log, record in heapq.merge(*map(_sorted, logs, count())))


def _sorted(log: LogFile, number: int) -> Iterator[tuple[float, int, int, LogFile, Record]]:
    window: list[tuple[float, int, int, LogFile, Record]] = []
    for serial, record in enumerate(log):
        if record.arrived is None:
            raise LogError(
                f"{log.path}:{record.line}: no time of arrival; name its field with --time, or leave out --arrivals "
                "and give a number of clients with --concurrency"
            )
        # Log and serial number are told apart before records, which have no order, would be compared.
        heapq.heappush(window, (record.arrived, number, serial, log, record))
        if len(window) > WINDOW:
            yield heapq.heappop(window)
    while window:
        yield heapq.heappop(window)


def one_after_the_other(logs: Sequence[LogFile]) -> Iterator[tuple[LogFile, Record]]:
    """All records of each log, log by log."""
    for log in logs:
        for record in log:
            yield log, record
