"""Small proposers for tests of the kit and of verifiers: obvious, and right."""

from __future__ import annotations

from collections.abc import Callable

from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
)


class HistoryProposer:
    """Keeps the whole history of every slot; a subclass says what follows from it.

    Attributes:
        histories: per live slot, all tokens so far.
        namespaces: per live slot.
        finished: namespace and text of the requests that ended with ``keep``, oldest first.
    """

    capabilities = Capabilities(shares_requests=True)

    def __init__(self, context: Context) -> None:
        self.context = context
        self.histories: dict[int, list[int]] = {}
        self.namespaces: dict[int, str] = {}
        self.finished: list[tuple[str, list[int]]] = []

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        self.histories[slot] = history.tolist()
        self.namespaces[slot] = request.namespace

    def observe(self, observed: Observed) -> None:
        for row, slot in enumerate(observed.slots.tolist()):
            first, last = observed.offsets[row : row + 2]
            self.histories[slot] += observed.tokens[first:last].tolist()

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        for row, (slot, ceiling) in enumerate(zip(slots.tolist(), ceilings.tolist(), strict=True)):
            guess = self.guess(slot, self.histories[slot])[:ceiling]
            out.tokens[row, : len(guess)] = guess
            out.survival[row, : len(guess)] = 0.5
            out.lengths[row] = len(guess)

    def finish(self, slot: int, keep: bool) -> None:
        text, namespace = self.histories.pop(slot), self.namespaces.pop(slot)
        if keep:
            self.finished.append((namespace, text))

    def guess(self, slot: int, history: list[int]) -> list[int]:
        """The draft after ``history``; what exceeds the ceiling is cut off."""
        raise NotImplementedError


class CopyProposer(HistoryProposer):
    """Copies what followed the last earlier occurrence of the last token, here or in a finished request."""

    def guess(self, slot: int, history: list[int]) -> list[int]:
        if not history:
            return []
        last = history[-1]
        if not 0 <= last < self.context.vocab_size:
            return []
        shared = [text for name, text in self.finished if name == self.namespaces[slot]]
        for text in (history[:-1], *reversed(shared)):
            for place in range(len(text) - 1, -1, -1):
                if text[place] == last:
                    return self._readable(text[place + 1 :])
        return []

    def _readable(self, tokens: list[int]) -> list[int]:
        inside = [0 <= token < self.context.vocab_size for token in tokens]
        return tokens[: inside.index(False)] if False in inside else tokens


class ConstantProposer(HistoryProposer):
    """Always drafts the same tokens, whatever was said."""

    def __init__(self, context: Context, tokens: tuple[int, ...] = (0, 0, 0, 0)) -> None:
        super().__init__(context)
        self.tokens = tokens

    def guess(self, slot: int, history: list[int]) -> list[int]:
        return [token for token in self.tokens if token < self.context.vocab_size]


def constant(*tokens: int) -> Callable[[Context], ConstantProposer]:
    """A factory of proposers that always draft ``tokens``."""
    return lambda context: ConstantProposer(context, tokens)
