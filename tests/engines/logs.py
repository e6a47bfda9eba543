"""What the log of an engine says about us: engines have tracebacks of their own that are none of our business."""

from __future__ import annotations

from pathlib import Path

import specplug
import specplug.adapters
import specplug.proposers

_FRAMES_OF_OURS = tuple(
    f'File "{Path(package.__path__[0]).resolve()}/'
    for package in (specplug, specplug.adapters, specplug.proposers)
)


def our_faults(text: str) -> list[str]:
    """Lines in which we say that something failed, and frames of ours in a traceback, whatever stands before them."""
    return [
        line
        for line in text.splitlines()
        if "answers are not affected" in line or any(frame in line for frame in _FRAMES_OF_OURS)
    ]
