"""Repeats what followed the last few tokens when they occurred before in the same request (prompt lookup).

Small on purpose: this is the example of docs/writing-a-proposer.md. ``specplug.suffix`` does the same far better.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specplug.settings import option
from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
)


@dataclass(frozen=True)
class EchoSettings:
    """Options of ``specplug.echo``."""

    words: int = option(2, minimum=1, maximum=8, help="How many of the last tokens must agree.")
    trust: float = option(
        0.7, minimum=0.0, maximum=1.0, help="Expected probability that a drafted token is accepted."
    )


@dataclass
class _Text:
    """All tokens of one request, and where each sequence of ``words`` tokens was last followed by another."""

    tokens: list[int] = field(default_factory=list)
    followed: dict[tuple[int, ...], int] = field(default_factory=dict)


class EchoProposer:
    """See the module. O(1) per token observed, O(draft) per row proposed; about 200 bytes per token."""

    Settings = EchoSettings
    # Chains of tokens that are a function of the text: no trees, nothing drawn at random, nothing shared.
    capabilities = Capabilities()

    def __init__(self, context: Context, settings: EchoSettings) -> None:
        self._words = settings.words
        self._trust = settings.trust
        self._texts: dict[int, _Text] = {}

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        """A new text in ``slot``; whatever was there is gone."""
        self._texts[slot] = _Text()
        self._grow(slot, history)

    def observe(self, observed: Observed) -> None:
        """The texts grow by the tokens that became certain. Rejected drafts never arrive here."""
        for row, slot in enumerate(observed.slots.tolist()):
            self._grow(slot, observed.tokens[observed.offsets[row] : observed.offsets[row + 1]])

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """Copy what followed the last tokens before, up to the ceiling and never across a separator."""
        for row, (slot, ceiling) in enumerate(zip(slots.tolist(), ceilings.tolist(), strict=True)):
            text = self._texts[slot]
            place = text.followed.get(tuple(text.tokens[-self._words :]))
            if place is None:
                continue
            for token in text.tokens[place : place + ceiling]:
                if token < 0:
                    break
                length = out.lengths[row]
                out.tokens[row, length] = token
                out.survival[row, length] = self._trust ** (length + 1)
                out.lengths[row] += 1

    def finish(self, slot: int, keep: bool) -> None:
        """Nothing is shared, so nothing is kept."""
        del self._texts[slot]

    def _grow(self, slot: int, tokens: TokenArray) -> None:
        text = self._texts[slot]
        for token in tokens.tolist():
            before = tuple(text.tokens[-self._words :])
            if len(before) == self._words and min(before) >= 0:
                text.followed[before] = len(text.tokens)
            text.tokens.append(token)
