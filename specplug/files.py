"""Files that are replaced as a whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def replace_file(path: Path, *content: bytes | memoryview) -> None:
    """Put ``content``, one part behind the other, at ``path`` in one step, readable by its owner only.

    Readers see the old content or the whole new one, after a power failure too, where the system can.

    Raises:
        OSError: it cannot be written; what was there is untouched, and nothing is left beside it.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _synchronise_folder(path.parent)


def _synchronise_folder(folder: Path) -> None:
    """Make the renaming itself survive a power failure, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
