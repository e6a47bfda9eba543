"""A proposer that drafts as many tokens as it may, whatever they are: what a verification costs, without any gain."""

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


class ProbeProposer:
    """Drafts ids that change from step to step and that no text would say in this order."""

    capabilities = Capabilities()

    def __init__(self, context: Context) -> None:
        self._vocab_size = context.vocab_size
        self._next = 0

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        """See :class:`specplug.protocols.Proposer`."""

    def observe(self, observed: Observed) -> None:
        """See :class:`specplug.protocols.Proposer`."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        for row, count in enumerate(ceilings.tolist()):
            for position in range(count):
                self._next = (self._next * 5 + 7919) % self._vocab_size
                out.tokens[row, position] = self._next
            out.lengths[row] = count
            out.survival[row, :count] = 0.0

    def finish(self, slot: int, keep: bool) -> None:
        """See :class:`specplug.protocols.Proposer`."""
