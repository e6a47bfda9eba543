"""What the session does with a controller that cuts drafts, and with one that fails."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from specplug.control.fixed import BatchSizeTable, FixedLength
from specplug.errors import InvalidRequestError
from specplug.session import Session
from specplug.types import Capabilities, Context, DraftBuffers, IntArray, ProbArray, Request


class Script:
    """Drafts 10, 11, 12, ... whatever was said."""

    def __init__(self, **capabilities: bool) -> None:
        self.capabilities = Capabilities(**capabilities)

    def start(self, slot: int, request: Request, history: IntArray) -> None: ...

    def observe(self, observed: Any) -> None: ...

    def finish(self, slot: int, keep: bool) -> None: ...

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        for row, ceiling in enumerate(ceilings.tolist()):
            out.tokens[row, :ceiling] = np.arange(10, 10 + ceiling)
            out.survival[row, :ceiling] = 0.5 ** np.arange(1, ceiling + 1)
            out.lengths[row] = ceiling


class Cutter:
    """Cuts every draft to ``length``, which may be nonsense, and writes down what it is told."""

    trims = True

    def __init__(self, length: int, fail_in: str = "") -> None:
        self.length, self.fail_in = length, fail_in
        self.compared: list[list[int]] = []
        self.observed: list[list[int]] = []
        self.began: list[str] = []

    def _maybe_fail(self, where: str) -> None:
        if where == self.fail_in:
            raise ZeroDivisionError(where)

    def begin(self, slot: int, request: Request) -> None:
        self._maybe_fail("begin")
        self.began.append(request.request_id)

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        self._maybe_fail("plan")
        ceilings[:] = limits

    def trim(self, slots: IntArray, survival: ProbArray, lengths: IntArray) -> None:
        lengths[:] = self.length
        self._maybe_fail("trim")

    def compare(self, slots: IntArray, tested: IntArray, agreed: IntArray) -> None:
        self._maybe_fail("compare")
        self.compared += np.array([slots, tested, agreed]).T.tolist()

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        self._maybe_fail("observe")
        self.observed += np.array([slots, drafted, accepted]).T.tolist()


def session(controller: Any, **options: Any) -> Session:
    return Session(Script(), Context(100, 64, 4, max_requests=2), controller=controller, **options)


def step(subject: Session, *history: int) -> list[int]:
    out = subject.step(["a"], [np.array(history, np.int32)])
    return out.tokens[0, : out.lengths[0]].tolist()


def two_steps(subject: Session) -> None:
    step(subject, 1)
    step(subject, 1, 10)


@pytest.mark.parametrize(
    ("emitted", "tested", "agreed", "accepted"),
    [
        ([10, 11, 12], 3, 3, 2),  # the target's own token is what was cut: known to be right
        ([10, 11, 50], 3, 2, 2),
        ([10, 50], 2, 1, 1),
        ([50], 1, 0, 0),
    ],
)
def test_what_was_cut_is_compared_too(
    emitted: list[int], tested: int, agreed: int, accepted: int
) -> None:
    cutter = Cutter(2)
    subject = session(cutter)
    assert step(subject, 1) == [10, 11]
    step(subject, 1, *emitted)
    assert cutter.compared == [[1, tested, agreed]] or cutter.compared == [[0, tested, agreed]]
    assert cutter.observed[0][1:] == [2, accepted]
    assert subject.stats.accepted == accepted
    assert (subject.stats.offered, subject.stats.drafted) == (8, 4)
    assert cutter.began == ["a"]


def test_a_draft_cut_to_nothing_is_compared_and_not_counted_as_drafted() -> None:
    cutter = Cutter(0)
    subject = session(cutter)
    assert step(subject, 1) == []
    assert step(subject, 1, 10) == []
    assert cutter.compared[0][1:] == [1, 1]
    assert cutter.observed == []
    assert subject.stats.drafted == subject.stats.drafted_rows == 0


@pytest.mark.parametrize(("length", "expected"), [(99, 4), (-3, 0)])
def test_a_draft_cannot_grow_or_have_less_than_nothing(length: int, expected: int) -> None:
    assert len(step(session(Cutter(length)), 1)) == expected


@pytest.mark.parametrize("method", ["begin", "plan", "trim", "compare", "observe"])
def test_a_failing_controller_costs_the_drafts_and_one_message(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    subject = session(Cutter(2, fail_in=method))
    with caplog.at_level(logging.ERROR, logger="specplug"):
        for end in range(3, 8):
            last = step(subject, *range(9, 9 + end))
    assert last == []
    assert len(caplog.records) == 1
    assert method in caplog.text
    with pytest.raises(ZeroDivisionError):
        two_steps(session(Cutter(2, fail_in=method), on_fault="raise"))


@pytest.mark.parametrize("kind", ["sampled", "trees"])
def test_drafts_that_must_not_be_cut_refuse_a_controller_that_cuts(kind: str) -> None:
    with pytest.raises(InvalidRequestError, match="trims=False"):
        Session(Script(**{kind: True}), Context(100, 64, 4), controller=Cutter(1))


@pytest.mark.parametrize("learns", [True, False])
def test_a_controller_that_learns_nothing_is_not_told(learns: bool) -> None:
    cutter: Any = Cutter(2)
    cutter.learns = learns
    subject = session(cutter)
    two_steps(subject)
    assert cutter.observed == ([[cutter.compared[0][0], 2, 0]] if learns else [])
    assert subject.stats.accepted == 0


@pytest.mark.parametrize("base", [FixedLength, BatchSizeTable])
def test_a_controller_made_of_a_constant_one_is_told_what_it_asks_for(base: Any) -> None:
    told: list[int] = []

    class Counting(base):  # type: ignore[misc]
        def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
            told.extend(accepted.tolist())

    class Mixin:
        def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
            told.extend(accepted.tolist())

    class Mixed(Mixin, base):  # type: ignore[misc]
        pass

    class Deaf(Counting):
        learns = False

    for number, (kind, expected) in enumerate([(Counting, 1), (Mixed, 2), (Deaf, 2)]):
        two_steps(session(kind({1: 2}) if base is BatchSizeTable else kind(2)))
        assert told == [0] * expected, number
