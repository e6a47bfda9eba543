"""A datastore in use by a server: new versions are taken up, a lost or cut one costs its drafts and nothing else."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from specplug.errors import DatastoreError
from specplug.index.datastore import Datastore, Identity, file_of, identity_of
from specplug.index.datastore_format import check_header
from specplug.kernels.datastore_layout import Shelf

log = logging.getLogger("specplug")


def check_fit(store: Datastore, vocab_size: int, vocabulary: str) -> None:
    """See :func:`specplug.index.datastore_format.check_header`."""
    check_header(store.header, str(store.path), vocab_size, vocabulary)


class Volume:
    """One path at which versions of a datastore are published.

    Args:
        path: folder or file.
        vocab_size, vocabulary: see :func:`check_fit`.
        refresh: seconds between two looks at the path.
        clock: monotonic, in seconds.

    Attributes:
        swaps: versions taken up after the first one.
        problems: times that the path held nothing usable, or that the file in use had been cut.
    """

    def __init__(
        self,
        path: str | Path,
        vocab_size: int,
        vocabulary: str = "",
        *,
        refresh: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(path).expanduser()
        self.swaps = self.problems = 0
        self.store: Datastore | None = None
        self._fit = (vocab_size, vocabulary)
        self._refresh, self._clock = refresh, clock
        self._next = clock() + refresh
        self._refused: Identity | None = None
        self._said = ""

    def open(self) -> None:
        """Open the first version.

        Raises:
            DatastoreError: there is none that fits.
        """
        self.store = self._checked()

    def shelf(self) -> Shelf | None:
        """What kernels may read now; None if there is nothing usable. One system call, more when it is time to look."""
        now = self._clock()
        if now >= self._next:
            self._next = now + self._refresh
            self._look()
        if self.store is not None and not self.store.intact():
            self._complain(f"{self.store.path} was cut while it was in use; publish by renaming")
            self.store = None
        return None if self.store is None else self.store.shelf

    def _checked(self) -> Datastore:
        store = Datastore(self.path)
        check_fit(store, *self._fit)
        return store

    def _look(self) -> None:
        """Take up a new version, if there is one that fits; else keep what is in use."""
        try:
            identity = identity_of(file_of(self.path))
        except OSError as error:
            self._complain(f"{self.path}: {error.strerror or error}")
            return
        if self.store is not None and identity == self.store.identity:
            self._said = ""
            return
        if identity == self._refused:
            return
        try:
            fresh = self._checked()
        except DatastoreError as error:
            self._refused = identity
            self._complain(str(error))
            return
        self.swaps += self.store is not None
        self.store, self._refused, self._said = fresh, None, ""
        log.info("specplug: datastore %s: version with %d tokens", self.path, fresh.header.tokens)

    def _complain(self, problem: str) -> None:
        if problem == self._said:
            return
        self.problems += 1
        self._said = problem
        going_on = "the version in use stays" if self.store is not None else "no drafts from it"
        log.warning("specplug: datastore not usable, %s: %s", going_on, problem)
