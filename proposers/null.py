"""Proposes nothing: plain decoding through the whole machinery, and the template to copy for a proposer of your own."""

from __future__ import annotations

from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
)


class NullProposer:
    """Zero drafts for every request; what is left is the cost of the adapter itself."""

    capabilities = Capabilities()

    def __init__(self, context: Context) -> None:
        self.context = context

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        """Nothing to remember."""

    def observe(self, observed: Observed) -> None:
        """Nothing to learn."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """Leaves every length at zero."""

    def finish(self, slot: int, keep: bool) -> None:
        """Nothing to free."""
