"""How a log is written: plain lines, gzip, zstandard, Parquet. The first bytes tell, not the name."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from specplug.errors import LogError, MissingExtraError

PARQUET_MAGIC = b"PAR1"
#: Rows that are decoded at a time.
PARQUET_ROWS = 256
#: First bytes of a pickle, as written since 2003.
_PICKLES = tuple(bytes((0x80, version)) for version in range(2, 6))


def first_bytes(path: Path) -> bytes:
    """The first four bytes of a file."""
    with open(path, "rb") as raw:
        return raw.read(4)


def decompressed(raw: IO[bytes], path: Path) -> IO[bytes]:
    """The bytes of a log, whatever its compression.

    Raises:
        LogError: it is a pickle (SGLang's ``--dump-requests-folder`` writes them), which is a program, not data.
        MissingExtraError: it is compressed with zstandard, and that library is missing.
    """
    start = raw.read(4)
    raw.seek(0)
    if start[:2] == b"\x1f\x8b":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw))
    if start == b"\x28\xb5\x2f\xfd":
        return _zstandard(raw)
    if start[:2] in _PICKLES:
        raise LogError(
            f"{path} is a pickle; reading one runs whatever code is in it. SGLang writes a log that can be read with "
            "--log-requests --log-requests-level 3 --log-requests-format json"
        )
    return raw


class ParquetRows:
    """The rows of a Parquet file as dictionaries; columns without a value are left out of a row.

    Attributes:
        done: share of the rows that was read, 0 to 1.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = 0.0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield row after row.

        Raises:
            LogError: the file is damaged.
            MissingExtraError: the library is missing.
        """
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise MissingExtraError("reading Parquet logs", "pyarrow", "parquet") from error
        try:
            with pyarrow.parquet.ParquetFile(self.path) as file:
                total = max(1, file.metadata.num_rows)
                read = 0
                for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                    for row in batch.to_pylist():
                        read += 1
                        self.done = read / total
                        yield _pruned(row)
        except (pyarrow.ArrowException, OSError) as error:
            raise LogError(f"{self.path}: cannot be read as Parquet: {error}") from error


def _pruned(value: Any) -> Any:
    """Without the empty fields that a column of structures has for every field of any row."""
    if isinstance(value, dict):
        return {k: _pruned(v) for k, v in value.items() if v is not None}
    return [_pruned(v) for v in value] if isinstance(value, list) else value


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
