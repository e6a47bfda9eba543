"""Controllers that do not learn: a constant draft length, and a table by batch size."""

from __future__ import annotations

from collections.abc import Mapping

from specplug.errors import SettingsError
from specplug.types import IntArray


class FixedLength:
    """Every request may use up to ``length`` draft tokens, or all that the engine allows if that is None."""

    learns = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _ask_if_observing(cls)

    def __init__(self, length: int | None = None) -> None:
        self.length = length

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        """See :class:`specplug.protocols.Controller`."""
        ceilings[:] = limits if self.length is None else limits.clip(max=self.length)

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """A constant learns nothing."""


class BatchSizeTable:
    """A draft length by the number of requests in the batch, as vLLM's ``num_speculative_tokens_per_batch_size``.

    Args:
        lengths: smallest batch size to draft length; below the smallest key the length is that of the smallest.
    """

    learns = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _ask_if_observing(cls)

    def __init__(self, lengths: Mapping[int, int]) -> None:
        if not lengths or any(size < 1 or length < 0 for size, length in lengths.items()):
            raise SettingsError(
                f"a table of draft lengths maps batch sizes from 1 on to lengths from 0 on, got {dict(lengths)!r}"
            )
        self._steps = sorted(lengths.items())

    @classmethod
    def parse(cls, text: str) -> dict[int, int]:
        """``{1: 16, 4: 4}`` from ``"1:16,4:4"``.

        Raises:
            SettingsError: the text is no such list, or the table would be refused.
        """
        try:
            pairs = [part.split(":") for part in text.split(",")]
            table = {int(size): int(length) for size, length in pairs}
        except ValueError:
            raise SettingsError(
                f"a table of draft lengths is written '1:16,4:4' (batch size:length), got {text!r}"
            ) from None
        cls(table)
        return table

    def length(self, rows: int) -> int:
        """The draft length for a batch of ``rows`` requests."""
        found = self._steps[0][1]
        for size, length in self._steps:
            if rows >= size:
                found = length
        return found

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        """See :class:`specplug.protocols.Controller`."""
        ceilings[:] = limits.clip(max=self.length(len(slots)))

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """A table learns nothing."""


def _ask_if_observing(kind: type[FixedLength] | type[BatchSizeTable]) -> None:
    """A kind of controller with an ``observe`` of its own wants to be told, unless it says otherwise."""
    said = next(base for base in kind.__mro__ if "learns" in vars(base))
    if kind.observe is not vars(said).get("observe", kind.observe):
        kind.learns = True
