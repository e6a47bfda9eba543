"""Where the file of a datastore is put together: in memory while it is small, else in a hidden folder.

The hidden folder ``.building`` lies beside the file that will be replaced. What is there can be continued after an
interruption; readers never see it. Publishing is one rename, so that a server that has the old version open keeps it,
and one that opens the path gets the old or the new version, never a part of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from specplug.errors import DatastoreError
from specplug.index.datastore import FILE
from specplug.index.datastore_format import HEADER_BYTES
from specplug.kernels.datastore_layout import WordArray

WORKSHOP = ".building"
JOURNAL = "journal.json"
#: What was in memory is written here, then renamed.
_FRESH = f".{FILE}.new"


class Workshop:
    """A file under construction, and the right to construct it. Close it.

    Args:
        folder: of the datastore; made if it is missing.
        restart: remove what an interrupted build left there, once no other process can be at it.

    Attributes:
        file: open for reading and writing, binary; None while all is in memory.
        published: whether the file is in its place; what is written to it then, readers see.

    Raises:
        DatastoreError: another process builds this datastore.
        OSError: the folder cannot be made or written.
    """

    def __init__(self, folder: str, restart: bool = False) -> None:
        self._folder = folder
        self.file: IO[bytes] | None = None
        self.published = False
        self._lock: IO[str] | None = None
        try:
            self._handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            self._handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._take_lock()
            if restart:  # not the folder, in which the lock may be
                for left in (self.place / JOURNAL, self.place / FILE, self.folder / _FRESH):
                    left.unlink(missing_ok=True)
            # Asked so that there being none is no exception, which would take as long as all other calls here. One that
            # cannot be looked at counts as none: what cannot be read cannot be gone on with either.
            self._left = os.access(WORKSHOP, os.F_OK, dir_fd=self._handle)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give up the file, if it is not published, and the right to construct it."""
        if self.file is not None:
            self.file.close()
        if self._lock is not None:
            self._lock.close()
        os.close(self._handle)

    @property
    def folder(self) -> Path:
        """Of the datastore."""
        return Path(self._folder)

    @property
    def place(self) -> Path:
        """The hidden folder."""
        return self.folder / WORKSHOP

    def resume(self, identity: Mapping[str, Any], bits: int) -> dict[str, Any]:
        """What an interrupted build of the same inputs remembered, its file opened; empty if there is none.

        Args:
            identity: see :meth:`remember`.
            bits: per token.
        """
        if not self._left:
            return {}
        try:
            found: dict[str, Any] = json.loads((self.place / JOURNAL).read_text("utf-8"))
            size = (self.place / FILE).stat().st_size
            written, noted = found["tokens"][0], found["identity"]
            end = HEADER_BYTES + written * bits // 8
        except (OSError, ValueError, LookupError, TypeError):  # none, damaged, or of another kind
            return {}
        if noted != identity or (written and size < end):
            return {}
        self.file = open(self.place / FILE, "r+b")  # noqa: SIM115 (held until close)
        # What was written after that would stand behind the end of a corpus that has become shorter.
        self.file.truncate(end)
        return found

    @contextlib.contextmanager
    def moving(self) -> Iterator[IO[bytes]]:
        """A file on disk, to go on in it unless what is in memory could not be written to it."""
        self.place.mkdir(exist_ok=True)
        self._left = True
        # What another build remembered is about the file that is now overwritten.
        (self.place / JOURNAL).unlink(missing_ok=True)
        opened = open(self.place / FILE, "w+b")  # noqa: SIM115 (held until close)
        try:
            yield opened
        except BaseException:
            with contextlib.suppress(OSError):  # what it could not write it cannot flush
                opened.close()
            raise
        self.file = opened

    def remember(self, journal: Mapping[str, Any]) -> None:
        """Note how far the file on disk has come, once it is there so far."""
        file = self._opened()
        file.flush()
        os.fsync(file.fileno())
        path = self.place / JOURNAL
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(journal), "utf-8")
        os.replace(fresh, path)

    def words(self) -> WordArray:
        """What is in the file, read-only. The map goes with the last reference to the array."""
        file = self._opened()
        file.flush()
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # Where the disk was full once, a part of a word may be at the end.
        return np.frombuffer(content, "<u8", len(content) // 8)

    def publish(self, size: int, durable: bool) -> None:
        """Put the file of ``size`` bytes in its place.

        Args:
            durable: only return when it would outlive a power failure.
        """
        file = self._opened()
        file.flush()
        file.truncate(size)
        if durable:
            os.fsync(file.fileno())
        os.replace(self.place / FILE, self.folder / FILE)
        with contextlib.suppress(FileNotFoundError):  # of a small build that was killed
            os.unlink(self.folder / _FRESH)
        self._end(durable)

    def publish_content(self, content: memoryview, durable: bool) -> None:
        """Put a file with this content in its place. See :meth:`publish`."""
        # Relative to the folder that is open: to make paths would take a tenth of the time of a small store.
        folder = self._handle
        try:
            file = os.open(_FRESH, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666, dir_fd=folder)
            try:
                done = 0
                while done < len(content):  # one call writes 2 GB at most, or what fits on the disk
                    done += os.write(file, content[done:])
                if durable:
                    os.fsync(file)
            finally:
                os.close(file)
            os.replace(_FRESH, FILE, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):  # it may not be there, or already in its place
                os.unlink(_FRESH, dir_fd=folder)
            raise
        self._end(durable)

    def _end(self, durable: bool) -> None:
        self.published = True
        if durable:
            os.fsync(self._handle)
        if self._left:
            shutil.rmtree(self.place)

    def _opened(self) -> IO[bytes]:
        assert self.file is not None, "what is in memory has no file"
        return self.file

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy(self.folder) from None
        except OSError:  # some network file systems lock no folders
            self.place.mkdir(exist_ok=True)
            self._lock = open(self.place / "lock", "w")  # noqa: SIM115 (held until close)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
                raise _busy(self.folder) from None


def _busy(folder: Path) -> DatastoreError:
    return DatastoreError(
        f"{folder} is being built by another process; wait for it or choose another folder"
    )
