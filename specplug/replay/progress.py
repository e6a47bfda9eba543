"""A progress bar on standard error, if ``tqdm`` is installed (it comes with the extra ``replay``)."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Progress:
    """Counts work, in bytes of a log unless ``unit`` says otherwise. A context manager.

    Without ``tqdm`` or if ``quiet`` it shows nothing.
    """

    def __init__(self, total: int, quiet: bool = False, unit: str = "B") -> None:
        self._bar: Any = None
        if quiet:
            return
        try:
            from tqdm import tqdm
        except ImportError:
            return
        # A log file of a CI run should not get ten lines a second.
        pause = 0.2 if sys.stderr.isatty() else 30.0
        self._bar = tqdm(
            total=total, unit=unit, unit_scale=True, mininterval=pause, file=sys.stderr, leave=False
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def at(self, what: str) -> None:
        """Name what is being worked on."""
        if self._bar is not None:
            self._bar.set_description(what, refresh=False)

    def done(self, size: float) -> None:
        """That many bytes are behind us."""
        if self._bar is not None:
            self._bar.update(size)

    def skip(self, size: float) -> None:
        """That many bytes will not be read after all."""
        if self._bar is not None:
            self._bar.total = max(1, self._bar.total - size)
