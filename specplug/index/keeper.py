"""Keeps the store of a running engine in a file: read at the start, written now and then and at the end.

Several processes may name the same file (the replicas of a data-parallel server, say): under a lock, each *adds*
what its requests have said since its last time, and reads what the others have added at its next start. Writing happens
in a thread of its own, which only copies; no step waits for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

from specplug.errors import StoreFileError
from specplug.index.store_file import (
    Outputs,
    Vocabulary,
    joined,
    no_outputs,
    read_store,
    write_store,
)
from specplug.index.stored_text import copy_outputs, put_outputs
from specplug.index.suffix import SuffixIndex

log = logging.getLogger("specplug")

#: New text is saved once nothing has been stored for so long.
QUIET_SECONDS = 1.0
#: Seconds that the end of a process may wait for another one that is writing the file.
LOCK_SECONDS = 5.0


class StoreKeeper:
    """Ties ``index`` to ``path``. Nothing that happens to the file raises: each problem is one warning.

    A damaged file is set aside (``<name>.damaged-1``, ...) and begun anew. A file that is no store, or was made for
    another vocabulary or by a newer version, is left alone, and nothing is saved.

    Args:
        index: loaded at once, so it must be new.
        path: of the file; its folder is created.
        seconds: at most, between two times that new text is saved (a quiet moment is used earlier); 0 never saves.
        vocabulary: what the ids mean.
    """

    def __init__(
        self, index: SuffixIndex, path: Path, seconds: float, vocabulary: Vocabulary
    ) -> None:
        self.path = path
        self._index = index
        self._vocabulary = vocabulary
        self._saves = seconds > 0
        self._stop = threading.Event()
        self._busy = threading.Lock()
        self._process = os.getpid()
        self._complaint = ""
        self._finalizer: Any = None
        with contextlib.ExitStack() as stack:
            self._prepare(stack)
            self.loaded_tokens = self._load()
        self._saved_until = index.settled
        if self._saves:
            # Runs in child processes too, whose end skips what `atexit` knows.
            self._finalizer = util.Finalize(None, self.close, exitpriority=10)
            threading.Thread(
                target=self._save_now_and_then, args=(seconds,), name="specplug-store", daemon=True
            ).start()

    def save(self) -> bool:
        """Add to the file what was stored since the last time; True if there is nothing left to save."""
        if not self._saves or os.getpid() != self._process:
            return False
        with self._busy:
            if self._index.settled == self._saved_until:
                return True
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with _locked(self.path):
                    copied = copy_outputs(self._index, self._saved_until)
                    self._add(copied.outputs)
            except StoreFileError as error:
                self._saves = False
                self._complain(f"{error}; nothing is saved")
                return False
            except OSError as error:
                self._complain(f"the store could not be saved to {self.path}: {error}")
                return False
            self._saved_until = copied.end
            self._complaint = ""
            return True

    def close(self) -> None:
        """Save what is new and stop saving. Called by itself when the process ends, unless it is killed."""
        self._stop.set()
        try:
            self.save()
        except Exception:  # an engine that shuts down must get on with it
            log.exception("specplug: the store could not be saved to %s", self.path)
        self._saves = False
        if self._finalizer is not None:
            self._finalizer.cancel()

    def _prepare(self, stack: contextlib.ExitStack) -> None:
        """Hold the lock while loading, as a damaged file may have to be renamed."""
        if not self._saves:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(self.path))
        except OSError as error:
            self._saves = False
            self._complain(f"nothing can be saved to {self.path}: {error}")

    def _load(self) -> int:
        try:
            outputs = self._read()
        except StoreFileError as error:
            self._saves = False
            self._complain(f"{error}; starting with an empty store, and nothing is saved")
            return 0
        except OSError as error:
            self._complain(f"{self.path} cannot be read ({error}); starting with an empty store")
            return 0
        if not len(outputs):
            return 0
        started = time.perf_counter()
        tokens = put_outputs(self._index, outputs)
        log.info(
            "specplug: %d of %d tokens of %d earlier outputs loaded from %s in %.2f s",
            tokens,
            len(outputs.tokens),
            len(outputs),
            self.path,
            time.perf_counter() - started,
        )
        return tokens

    def _read(self) -> Outputs:
        """What the file holds; a damaged one is set aside first."""
        try:
            return read_store(self.path, self._vocabulary)
        except FileNotFoundError:
            return no_outputs()
        except StoreFileError as error:
            if not error.damaged:
                raise
            if self._saves:
                aside = _set_aside(self.path)
                self._complain(f"{error}; it is kept as {aside.name}, and a new store is begun")
            else:
                self._complain(f"{error}; starting with an empty store")
            return no_outputs()

    def _add(self, new: Outputs) -> None:
        there = self._read()
        # A small store must not shrink a large file.
        limit = max(self._index.store_capacity, len(there.tokens))
        write_store(self.path, joined(there, new, limit), self._vocabulary)

    def _save_now_and_then(self, seconds: float) -> None:
        """After a quiet moment, as many engines are killed rather than ended, and at least every ``seconds``."""
        due = time.monotonic() + seconds
        seen = self._saved_until
        rest = 0.0
        while not self._stop.wait(max(rest, min(QUIET_SECONDS, seconds))):
            rest = 0.0
            before, seen = seen, self._index.settled
            started = time.monotonic()
            if seen == self._saved_until or (seen != before and started < due):
                continue
            try:
                self.save()
            except Exception:  # the thread would be gone, and with it all later savings
                log.exception("specplug: the store could not be saved to %s", self.path)
            due = time.monotonic() + seconds
            # A large file is written less often: at most 2 % of the time goes into it.
            rest = 50 * (time.monotonic() - started)

    def _complain(self, message: str) -> None:
        """Once per problem, however often it comes back."""
        if message != self._complaint:
            self._complaint = message
            log.warning("specplug: %s", message)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the one right to write ``path``. The system drops the lock when the holder dies."""
    lock = path.with_name(f".{path.name}.lock")
    with open(lock, "w") as handle:
        end = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(f"another process holds {lock}") from None
                time.sleep(0.05)
        yield


def _set_aside(path: Path) -> Path:
    """Rename ``path`` so that it stays available for whoever wants to look into it."""
    number = 1
    while True:
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            os.rename(path, aside)
            return aside
        number += 1
