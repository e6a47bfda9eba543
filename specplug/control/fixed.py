"""A constant draft length: the controller that does not control."""

from __future__ import annotations

from specplug.types import IntArray


class FixedLength:
    """Every request may use up to ``length`` draft tokens, or all that the engine allows if that is None."""

    def __init__(self, length: int | None = None) -> None:
        self.length = length

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        """See :class:`specplug.protocols.Controller`."""
        ceilings[:] = limits if self.length is None else limits.clip(max=self.length)

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """A constant learns nothing."""
