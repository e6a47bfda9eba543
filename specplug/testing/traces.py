"""Traces of what happens to a proposer, to be played again and again: reproducible, shrinkable, renamable.

A trace drives a proposer through its protocol, slot by slot, without a session. What the target
emits is written in terms of the draft ("keep two of it, then say 5"), so that a trace makes sense
for every proposer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from specplug.testing.strategies import histories
from specplug.testing.watch import Proposal, Watched, tell
from specplug.types import LENGTH_DTYPE, TOKEN_DTYPE, Context, Request


@dataclass(frozen=True)
class Start:
    """A request takes a slot (if that is taken, the old one is finished first)."""

    slot: int
    history: tuple[int, ...]
    namespace: str = ""


@dataclass(frozen=True)
class Step:
    """All live requests but ``absent`` are drafted for; then each keeps up to ``keep`` drafts and emits ``own``.

    Attributes:
        keep: accepted drafts per slot, cut to the draft's length.
        own: tokens that follow, per slot; more than one if the engine went on without asking for
            drafts.
        ceiling: of every row.
        absent: slots that sit this step out (preempted).
    """

    keep: tuple[int, ...]
    own: tuple[tuple[int, ...], ...]
    ceiling: int
    absent: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Finish:
    """A request ends; nothing happens if the slot is free."""

    slot: int
    keep: bool


Event: TypeAlias = Start | Step | Finish


@dataclass(frozen=True)
class Trace:
    """Events over ``slots`` slots and ids below ``vocab_size``."""

    vocab_size: int
    slots: int
    events: tuple[Event, ...]

    def context(self) -> Context:
        """What a proposer for this trace is built with."""
        return Context(self.vocab_size, max_length=512, max_draft=6, max_requests=self.slots)


@dataclass
class Player:
    """Plays traces on one proposer and writes down what it proposed.

    Attributes:
        order: permutes the rows of each step; the identity by default.
        lengths: per live slot, how many tokens it has.
        heard: for each step, the proposals by slot.
    """

    watched: Watched
    order: Callable[[list[int]], list[int]] = list
    lengths: dict[int, int] = field(default_factory=dict)
    heard: list[dict[int, Proposal]] = field(default_factory=list)

    def play(self, trace: Trace) -> list[dict[int, Proposal]]:
        """All proposals of a trace, step by step."""
        for event in trace.events:
            if isinstance(event, Start):
                self.start(event)
            elif isinstance(event, Finish):
                self.finish(event)
            else:
                self.step(event)
        return self.heard

    def start(self, event: Start) -> None:
        """Occupy a slot."""
        self.finish(Finish(event.slot, keep=False))
        request = Request(
            f"request in slot {event.slot}", len(event.history), namespace=event.namespace
        )
        self.watched.start(event.slot, request, np.array(event.history, TOKEN_DTYPE))
        self.lengths[event.slot] = len(event.history)

    def finish(self, event: Finish) -> None:
        """Free a slot."""
        if self.lengths.pop(event.slot, None) is not None:
            self.watched.finish(event.slot, event.keep)

    def step(self, event: Step) -> None:
        """Draft for all rows that take part, then let the target speak."""
        slots = self.order([s for s in sorted(self.lengths) if s not in event.absent])
        room = self.watched.context.max_length
        ceilings = [max(0, min(event.ceiling, room - self.lengths[s] - 1)) for s in slots]
        proposals = self.watched.ask(
            np.array(slots, LENGTH_DTYPE), np.array(ceilings, LENGTH_DTYPE)
        )
        by_slot = {proposal.slot: proposal for proposal in proposals}
        self.heard.append(by_slot)
        news = []
        for slot in sorted(by_slot):
            kept = first_branch(by_slot[slot])[: event.keep[slot]]
            emitted = (*kept, *event.own[slot])[: room - self.lengths[slot]]
            self.lengths[slot] += len(emitted)
            if emitted:
                news.append((slot, emitted))
        tell(self.watched, news)


def first_branch(proposal: Proposal) -> list[int]:
    """A chain's tokens; of a tree, the branch of first children."""
    parents = proposal.row.parents
    if parents is None:
        return proposal.tokens
    branch: list[int] = []
    last = -1
    for node, parent in enumerate(parents.tolist()):
        if parent == last:
            branch.append(proposal.tokens[node])
            last = node
    return branch


def renamed(trace: Trace, names: dict[int, int], slot: int) -> Trace:
    """The trace with other token ids in all that ``slot`` says itself."""

    def translate(tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(names.get(token, token) for token in tokens)

    events: list[Event] = []
    for event in trace.events:
        if isinstance(event, Start) and event.slot == slot:
            event = replace(event, history=translate(event.history))
        elif isinstance(event, Step):
            own = list(event.own)
            own[slot] = translate(own[slot])
            event = replace(event, own=tuple(own))
        events.append(event)
    return replace(trace, events=tuple(events))


@st.composite
def traces(draw: st.DrawFn, vocab_size: int = 6, slots: int = 3, max_events: int = 14) -> Trace:
    """Random traces: requests come, speak, are preempted, end, and are replaced."""
    ids = st.integers(0, vocab_size - 1)
    slot = st.integers(0, slots - 1)
    starts = st.builds(
        Start,
        slot,
        histories(vocab_size, 16).map(lambda h: tuple(t if 0 <= t < vocab_size else -1 for t in h)),
        st.sampled_from(["", "", "other"]),
    )
    steps = st.builds(
        Step,
        keep=st.tuples(*[st.integers(0, 6)] * slots),
        own=st.tuples(*[st.lists(ids, min_size=1, max_size=3).map(tuple)] * slots),
        ceiling=st.sampled_from([6, 3, 1, 0]),
        absent=st.frozensets(slot, max_size=1),
    )
    finishes = st.builds(Finish, slot, st.booleans())
    first = draw(starts, label="first request")
    rest = draw(
        st.lists(st.one_of(steps, steps, steps, starts, finishes), max_size=max_events),
        label="events",
    )
    return Trace(vocab_size, slots, (first, *rest))
