"""The suffix index behind lists, for tests that care about tokens only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from specplug.index.suffix import SuffixIndex
from specplug.types import Context, Observed, allocate_drafts

WIDTH = 8


class ListIndex:
    """An index that takes and gives lists.

    Drafting costs nothing (``cost=0``), so that a draft ends only where there is nothing more to copy. Where there is
    only one place to copy from, no probability decides what comes out.
    """

    def __init__(
        self,
        budget: int = 1 << 16,
        cost: float = 0.0,
        max_length: int = 2048,
        vocab_size: int = 2**31 - 1,
        common: str | None = None,
    ) -> None:
        self.index = SuffixIndex(Context(vocab_size, max_length, WIDTH, 4), budget, cost, common)

    def start(
        self, history: Sequence[int], slot: int = 0, prompt: int | None = None, namespace: str = ""
    ) -> None:
        prompt = len(history) if prompt is None else prompt
        self.index.start(slot, namespace, prompt, np.array(history, np.int32))

    def observe(self, tokens: Sequence[int], slot: int = 0) -> None:
        self.index.observe(
            Observed(
                np.array([slot], np.int32),
                np.array([0, len(tokens)], np.int64),
                np.array(tokens, np.int32),
            )
        )

    def draft(self, slot: int = 0, ceiling: int = WIDTH) -> list[int]:
        out = allocate_drafts(1, WIDTH)
        self.index.draft(np.array([slot], np.int32), np.array([ceiling], np.int32), out)
        return out.tokens[0, : out.lengths[0]].tolist()

    def store(self, output: Sequence[int], stops: Sequence[int] = (), namespace: str = "") -> None:
        """A request without a prompt says ``output`` and ends; its text is kept."""
        self.start([], slot=3, namespace=namespace)
        self.observe(output, slot=3)
        self.index.finish(3, True, frozenset(stops))

    def draft_after(self, prompt: Sequence[int], namespace: str = "") -> list[int]:
        """The first draft of a request that begins with ``prompt``."""
        self.start(prompt, slot=2, namespace=namespace)
        draft = self.draft(slot=2)
        self.index.finish(2, False, frozenset())
        return draft


@pytest.fixture
def lists() -> type[ListIndex]:
    """The class, since many tests choose a budget."""
    return ListIndex
