"""Several sources for one request: who is taken, who is asked less, who is found again, who is left out."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from specplug.index.contest import ContestProposer
from specplug.kernels import contest as kernels
from specplug.session import Session
from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
)

CONTEXT = Context(vocab_size=100, max_length=100_000, max_draft=4, max_requests=2)


class Parrot:
    """Always drafts the same, with the same estimate of every token."""

    capabilities = Capabilities()

    def __init__(self, draft: list[int], estimate: float = 0.9) -> None:
        self.draft, self.estimate = draft, estimate
        self.asked = 0
        self.fails = False

    def start(self, slot: int, request: Request, history: TokenArray) -> None: ...

    def observe(self, observed: Observed) -> None: ...

    def finish(self, slot: int, keep: bool) -> None: ...

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        if self.fails:
            raise RuntimeError("out of order")
        self.asked += len(slots)
        for row, ceiling in enumerate(ceilings.tolist()):
            size = min(ceiling, len(self.draft))
            out.tokens[row, :size] = self.draft[:size]
            out.survival[row, :size] = self.estimate ** np.arange(1, size + 1)
            out.lengths[row] = size


def contest(*sources: Any, cost: float = 0.0) -> tuple[ContestProposer, Session]:
    named = [(f"source {i}", source) for i, source in enumerate(sources)]
    proposer = ContestProposer(CONTEXT, named, cost)
    return proposer, Session(proposer, CONTEXT, on_fault="raise")


def step(session: Session, text: list[int]) -> list[int]:
    out = session.step(["a"], [np.array(text, np.int32)])
    return out.tokens[0, : out.lengths[0]].tolist()


def test_the_draft_that_promises_most_is_taken() -> None:
    _, session = contest(Parrot([1, 2], 0.6), Parrot([3, 4, 5], 0.5), Parrot([6], 0.9))
    assert step(session, [9]) == [1, 2]
    _, session = contest(Parrot([1, 2], 0.6), Parrot([3, 4, 5, 6], 0.7))
    assert step(session, [9]) == [3, 4, 5, 6]


def test_a_tie_goes_to_the_first() -> None:
    _, session = contest(Parrot([1, 2], 0.6), Parrot([3, 4], 0.6))
    assert step(session, [9]) == [1, 2]


def test_a_draft_is_cut_where_it_no_longer_pays() -> None:
    _, session = contest(Parrot([1, 2, 3, 4], 0.5), Parrot([], 0.5), cost=0.1)
    assert step(session, [9]) == [1, 2], "0.5 and 0.25 are above 0.1 times a goodput of 2"


def test_one_that_is_never_right_is_not_believed_any_more() -> None:
    boaster = Parrot([3, 4, 5, 6], 0.95)
    _, session = contest(Parrot([1], 0.5), boaster)
    text = [9]
    taken = []
    for _ in range(60):
        taken.append(step(session, text))
        text = [*text, 1]
    assert taken[0] == [3, 4, 5, 6]
    assert taken[-1] == [1]


def test_one_that_never_helps_is_asked_less_and_found_again() -> None:
    idle = Parrot([3], 0.9)
    proposer, session = contest(Parrot([1], 0.5), idle)
    text = [9]
    for _ in range(4000):
        step(session, text)
        text = [*text, 1]
    assert proposer.state.record[1, kernels.PAUSE] == kernels.LONGEST_PAUSE
    before = idle.asked
    for _ in range(640):
        step(session, text)
        text = [*text, 1]
    assert idle.asked - before == 10
    # Now it is the other one that is right.
    for _ in range(64 * 4):
        step(session, text)
        text = [*text, 3]
    assert proposer.state.record[1, kernels.PAUSE] == 1.0
    assert step(session, text) == [3]
    counts = proposer.counts()["source 1"]
    assert counts["pause"] == 1.0
    assert counts["asked"] == idle.asked


def test_one_that_raises_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    broken = Parrot([3, 4, 5], 0.9)
    _, session = contest(Parrot([1], 0.5), broken)
    assert step(session, [9]) == [3, 4, 5]
    broken.fails = True
    with caplog.at_level(logging.ERROR):
        assert step(session, [9, 3]) == [1]
        assert step(session, [9, 3, 1]) == [1]
    assert caplog.text.count("'source 1' failed and is left out") == 1


def test_the_last_one_that_raises_is_for_the_session_to_handle() -> None:
    only = Parrot([1])
    only.fails = True
    _, session = contest(only)
    with pytest.raises(RuntimeError, match="out of order"):
        step(session, [9])


def test_cost_and_end_reach_every_source_that_asks_for_them() -> None:
    class Asking(Parrot):
        cost, closed = 0.0, False

        def set_verify_cost(self, cost: float) -> None:
            self.cost = cost

        def close(self) -> None:
            self.closed = True

        def state_digest(self) -> bytes:
            return bytes([self.closed])

    asking = Asking([1])
    proposer, session = contest(Parrot([1]), asking)
    before = proposer.state_digest()
    proposer.set_verify_cost(0.2)
    assert (proposer.cost, asking.cost) == (0.2, 0.2)
    session.close()
    assert asking.closed
    assert proposer.state_digest() != before


class Library(Parrot):
    """Drafts from two texts by turns."""

    source_names = ("left", "right")

    def __init__(self, draft: list[int], estimate: float = 0.9) -> None:
        super().__init__(draft, estimate)
        self.draft_sources = np.tile(np.array([0, 1, 0, 1], np.uint8), (CONTEXT.max_requests, 1))


def test_tokens_are_counted_for_the_source_that_was_taken_and_for_its_texts() -> None:
    library, parrot = Library([1, 2, 3, 4], 0.9), Parrot([5, 6], 0.5)
    _, session = contest(library, parrot)
    assert session.sources.names == ("left", "right", "source 1")
    session.step(["a"], [np.array([9, 8], np.int32)])
    assert session.sources.as_dict()["left"]["drafted"] == 2
    assert session.sources.as_dict()["right"]["drafted"] == 2
    session.step(["a"], [np.array([9, 8, 1, 2, 3, 7], np.int32)])
    fared = {name: counts["accepted"] for name, counts in session.sources.as_dict().items()}
    assert fared == {"left": 2, "right": 1, "source 1": 0}
    library.draft = []
    before = session.sources.as_dict()["source 1"]["drafted"]
    session.step(["a"], [np.array([9, 8, 1, 2, 3, 7, 5], np.int32)])
    assert session.sources.as_dict()["source 1"]["drafted"] == before + 2
