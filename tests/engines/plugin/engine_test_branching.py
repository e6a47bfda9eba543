"""A proposer that drafts trees, and a way to break verification, for tests inside SGLang."""

from __future__ import annotations

from typing import Any

from specplug.types import (
    ROOT,
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
)


class BranchingProposer:
    """Two branches: what followed the last token most recently, and what followed it before that.

    The older follower comes first, so that an accepted branch is often not the first one.
    """

    capabilities = Capabilities(trees=True)

    def __init__(self, context: Context) -> None:
        self.texts: dict[int, list[int]] = {}

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        self.texts[slot] = history.tolist()

    def observe(self, observed: Observed) -> None:
        for row, slot in enumerate(observed.slots.tolist()):
            first, end = observed.offsets[row : row + 2].tolist()
            self.texts[slot] += observed.tokens[first:end].tolist()

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        assert out.parents is not None
        for row, (slot, ceiling) in enumerate(zip(slots.tolist(), ceilings.tolist(), strict=True)):
            text = self.texts[slot]
            places = [i + 1 for i in range(len(text) - 1) if text[i] == text[-1]]
            places = [p for p in places if text[p] >= 0]
            latest = places[-1:]
            older = [p for p in places if latest and text[p] != text[latest[0]]][-1:]
            node = 0
            for place in older + latest:
                parent = ROOT
                for token in text[place : place + (ceiling // 2 or 1)]:
                    if node == ceiling or token < 0:
                        break
                    out.tokens[row, node], out.parents[row, node] = token, parent
                    out.survival[row, node] = 0.5
                    parent, node = node, node + 1
            out.lengths[row] = node

    def finish(self, slot: int, keep: bool) -> None:
        del self.texts[slot]


def break_verification(host: Any, times: int) -> None:
    """Let the next ``times`` verifications of drafts raise, the repetition without drafts not."""
    from specplug.adapters.sglang_srt import worker

    original = worker.verify
    left = [times]

    def failing(step: Any, *arguments: Any) -> Any:
        if left[0] and step.logits.shape[1] > 1:
            left[0] -= 1
            step.logits.fill_(0.0)
            raise RuntimeError("this verification was told to fail")
        return original(step, *arguments)

    worker.verify = failing
