"""A running checksum over everything that a proposer was told and has drafted, to compare ranks with each other.

For debugging: ``SPECPLUG_DEBUG_CHECKSUM=N`` logs it every N-th step. Processes that serve the same requests must log
the same lines, whatever order their rows, sets and dictionaries have; the first line that differs names the step.
"""

from __future__ import annotations

import hashlib
import logging
import os
from typing import Any

import numpy as np

from specplug.errors import SettingsError
from specplug.types import DraftBuffers, Observed, Request

VARIABLE = "SPECPLUG_DEBUG_CHECKSUM"

log = logging.getLogger("specplug")


class Checksum:
    """Sees every call of a proposer after it was made.

    A proposer may have a method ``state_digest() -> bytes`` over its whole state, which then counts too (the one of
    ``specplug.suffix`` reads all of its memory: some 50 milliseconds per step).

    Args:
        every: steps between two lines in the log.
    """

    def __init__(self, every: int = 1) -> None:
        self.steps = 0
        self._every = every
        self._value = hashlib.sha256()

    @classmethod
    def from_environment(cls) -> Checksum | None:
        """None unless :data:`VARIABLE` is set.

        Raises:
            SettingsError: it is no integer of at least 1.
        """
        value = os.environ.get(VARIABLE, "").strip()
        if value in ("", "0"):
            return None
        if not value.isdigit():
            raise SettingsError(
                f"{VARIABLE} must be the number of steps between two lines in the log, got {value!r}"
            )
        return cls(int(value))

    @property
    def value(self) -> str:
        """16 hexadecimal digits over all that has happened so far."""
        return self._value.hexdigest()[:16]

    def note(self, proposer: Any, method: str, arguments: tuple[Any, ...]) -> None:
        """A call has returned."""
        self._value.update(method.encode())
        for argument in _canonical(method, arguments):
            self._value.update(repr(argument).encode())
        if method == "propose":
            self.steps += 1
            digest = getattr(proposer, "state_digest", None)
            if digest is not None:
                self._value.update(digest())
            if self.steps % self._every == 0:
                log.info("specplug checksum: step %d %s", self.steps, self.value)


def _canonical(method: str, arguments: tuple[Any, ...]) -> list[object]:
    """The arguments as plain values, rows in the order of their slots."""
    if method == "observe":
        observed: Observed = arguments[0]
        return [
            (int(slot), observed.tokens[observed.offsets[i] : observed.offsets[i + 1]].tolist())
            for i, slot in sorted(enumerate(observed.slots.tolist()), key=lambda pair: pair[1])
        ]
    if method == "propose":
        slots, ceilings, out = arguments
        return [
            (int(slot), int(ceilings[i]), _draft(out, i))
            for i, slot in sorted(enumerate(slots.tolist()), key=lambda pair: pair[1])
        ]
    return [_plain(argument) for argument in arguments]


def _draft(out: DraftBuffers, row: int) -> list[object]:
    length = int(out.lengths[row])
    parts = (out.tokens, out.survival, out.parents)
    return [part[row, :length].tolist() for part in parts if part is not None]


def _plain(value: Any) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Request):
        names = ("request_id", "prompt_length", "max_output", "draft_limit", "namespace", "shares")
        return [sorted(value.stop_token_ids), *(getattr(value, name) for name in names)]
    return value
