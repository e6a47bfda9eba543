"""Threads that help with large batches: they draft rows of their own, and learn while the target works.

Kernels hold no interpreter lock. What helpers do is complete before anything else reads or writes the state, so that
results do not depend on their speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Helpers:
    """``threads - 1`` helpers of the calling thread; they are started when they are first needed.

    Args:
        threads: the most threads that may work at once, the caller's among them.

    Attributes:
        running: what :meth:`start` was given last and nobody has waited for; None if there is nothing to wait for.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self.running: Future[Any] | None = None

    def share(
        self, work: Callable[..., int], handles: Sequence[Any], rows: int, cost: float
    ) -> int:
        """Call ``work(handle, first, end, cost)`` for consecutive shares of ``rows``; returns the least result."""
        size = -(-rows // self._threads)
        starts = range(0, rows, size)
        shares = [
            (handles[i], start, min(rows, start + size), cost) for i, start in enumerate(starts)
        ]
        others = [self._executor().submit(work, *share) for share in shares[1:]]
        first = work(*shares[0])
        return min([first, *(other.result() for other in others)])

    def start(self, work: Callable[..., None], *arguments: object) -> None:
        """Let a helper do this meanwhile; :meth:`wait` must be called before anything that it touches is used."""
        self.running = self._executor().submit(work, *arguments)

    def wait(self) -> None:
        """Wait for what was started; its exception, if any, is raised here."""
        if self.running is not None:
            running, self.running = self.running, None
            running.result()

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads - 1, "specplug-suffix")
        return self._pool
