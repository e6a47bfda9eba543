"""A proposer that writes what it is told to and records what it is told, for tests of the session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
)


class ScriptedProposer:
    """Writes the same draft for every request, or the one in ``drafts`` for those named there.

    Attributes:
        draft: default draft; as many tokens as the buffers are wide are written, whatever the ceiling.
        drafts: per request id, instead of ``draft``.
        claimed: what is written to ``lengths``, instead of the length of the draft.
        fails_in: the name of the method that raises.
        calls: every call, arguments as plain lists.
        arrays: the arrays that came with ``start`` and ``observe``, as they are.
        text: per request id, its history and all that was observed for it.
        requests: every request that was started.
    """

    def __init__(self, draft: Sequence[int] = (), capabilities: Capabilities | None = None) -> None:
        self.capabilities = capabilities or Capabilities()
        self.draft = list(draft)
        self.drafts: dict[str, list[int]] = {}
        self.parents: list[int] | None = None
        self.claimed: int | None = None
        self.fails_in = ""
        self.calls: list[tuple[Any, ...]] = []
        self.arrays: list[TokenArray] = []
        self.text: dict[str, list[int]] = {}
        self.requests: list[Request] = []
        self._owners: dict[int, str] = {}

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        self.calls.append(("start", slot, request.request_id, history.tolist()))
        self._fail("start")
        assert slot not in self._owners, "start and finish must take turns for a slot"
        self._owners[slot] = request.request_id
        self.requests.append(request)
        self.arrays.append(history)
        self.text[request.request_id] = history.tolist()

    def observe(self, observed: Observed) -> None:
        rows = [
            (self._owners[slot], observed.tokens[start:end].tolist())
            for slot, start, end in zip(
                observed.slots.tolist(), observed.offsets, observed.offsets[1:], strict=False
            )
        ]
        self.calls.append(("observe", *rows))
        self._fail("observe")
        self.arrays.append(observed.tokens)
        for name, tokens in rows:
            self.text[name] += tokens

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        names = [self._owners[slot] for slot in slots.tolist()]
        self.calls.append(("propose", names, ceilings.tolist()))
        for row, name in enumerate(names):
            draft = self.drafts.get(name, self.draft)[: out.tokens.shape[1]]
            out.tokens[row, : len(draft)] = draft
            out.survival[row, : len(draft)] = 0.5
            out.lengths[row] = len(draft) if self.claimed is None else self.claimed
            if out.parents is not None and self.parents is not None:
                out.parents[row, : len(draft)] = self.parents[: len(draft)]
        self._fail("propose")

    def finish(self, slot: int, keep: bool) -> None:
        self.calls.append(("finish", slot, keep))
        self._fail("finish")
        del self._owners[slot]

    def named(self, method: str) -> list[tuple[Any, ...]]:
        """The calls of one method."""
        return [call for call in self.calls if call[0] == method]

    def _fail(self, method: str) -> None:
        if self.fails_in == method:
            raise RuntimeError(f"broken in {method}")


@pytest.fixture
def proposer() -> ScriptedProposer:
    """Drafts nothing until told otherwise."""
    return ScriptedProposer()


@pytest.fixture
def tree_proposer() -> ScriptedProposer:
    """The same with branching drafts."""
    return ScriptedProposer(capabilities=Capabilities(trees=True))


@pytest.fixture
def context() -> Context:
    """Small limits, so that each can be reached."""
    return Context(vocab_size=100, max_length=50, max_draft=4, max_requests=3)
