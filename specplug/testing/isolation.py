"""Checks by comparison: the same proposer, told the same story in two ways, must give the same drafts.

What one request may learn of another is found by renaming: if drafts change when a secret is
spelled with other ids, they depend on the secret. This says nothing about how a proposer works,
and so is fair to all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specplug.testing.contract import CYCLE, begin
from specplug.testing.subject import Subject, check
from specplug.testing.traces import Finish, Player, Start, Step, Trace, renamed, traces
from specplug.testing.watch import ContractError, Proposal, Watched, ask_one, tell
from specplug.types import LENGTH_DTYPE, Context

Order = Callable[[list[int]], list[int]]


@check("The same events give the same drafts, to the last bit.")
def check_deterministic(subject: Subject) -> None:
    @subject.explore()
    @given(trace=traces())
    def same(trace: Trace) -> None:
        one, other = (Player(subject.watched(trace.context())).play(trace) for _ in range(2))
        _same(one, other, "two fresh proposers were told the same", bits=True)

    same()


@check("A row's draft does not depend on where it stands in the batch.")
def check_row_order(subject: Subject) -> None:
    orders: Sequence[Order] = (lambda s: s[::-1], lambda s: s[1:] + s[:1])

    @subject.explore()
    @given(trace=traces(), order=st.sampled_from(orders))
    def same(trace: Trace, order: Order) -> None:
        one = Player(subject.watched(trace.context())).play(trace)
        other = Player(subject.watched(trace.context()), order).play(trace)
        _same(one, other, "only the order of the rows differed", bits=True)

    same()


@check("A row's draft does not depend on which other rows are in the batch.")
def check_batch_composition(subject: Subject) -> None:
    @subject.explore()
    @given(trace=traces(), chosen=st.integers(0, 2))
    def same(trace: Trace, chosen: int) -> None:
        players = [Player(subject.watched(trace.context())) for _ in range(2)]
        for player in players:
            player.play(trace)
        live = sorted(players[0].lengths)
        if not live:
            return
        slot = live[chosen % len(live)]
        drafts = []
        for player, slots in zip(players, (live, [slot]), strict=True):
            ceilings = np.full(len(slots), 4, LENGTH_DTYPE)
            asked = player.watched.ask(np.array(slots, LENGTH_DTYPE), ceilings)
            drafts.append(next(p for p in asked if p.slot == slot).tokens)
        if drafts[0] != drafts[1]:
            raise ContractError(
                f"slot {slot}: drafted {drafts[0]} in a batch of the slots {live}, but {drafts[1]} alone"
            )

    same()


@check("What is handed in is copied: arrays are overwritten by the caller after the call.")
def check_copies_input(subject: Subject) -> None:
    @subject.explore()
    @given(trace=traces())
    def same(trace: Trace) -> None:
        kept = Watched(subject.build(trace.context()), trace.context(), overwrite=False)
        ref = Player(kept).play(trace)
        got = Player(subject.watched(trace.context())).play(trace)
        _same(ref, got, "the caller reused its arrays after the call")

    same()


@check(
    "Rejected drafts leave no trace in the text: what follows is what would have followed without them."
)
def check_rollback(subject: Subject) -> None:
    context = Context(8, max_length=256, max_draft=4, max_requests=1)
    drafting, silent = subject.watched(context), subject.watched(context)
    for watched in (drafting, silent):
        begin(watched, 0, CYCLE * 6)
    # The text is unambiguous: 1 is followed by 2. If the draft (0, 1) were taken for text, also by 5.
    for emitted in ([5, 6, 1], [2, 3, 0, 1, 2, 3], [5, 7, 1]):
        ask_one(drafting, 0, 2)
        ask_one(silent, 0, 0)
        for watched in (drafting, silent):
            tell(watched, [(0, emitted)])
    one, other = ask_one(drafting, 0, 4), ask_one(silent, 0, 4)
    shared = min(len(one), len(other))
    if one[:shared] != other[:shared]:
        raise ContractError(
            f"after rejected drafts {one} is drafted, but {other} where nothing had been drafted: rejected tokens "
            "were taken for text"
        )


@check(
    "No draft continues across a separator (an id outside the vocabulary, such as an image placeholder)."
)
def check_separators(subject: Subject) -> None:
    context = Context(32, max_length=256, max_draft=4, max_requests=1)
    for bridge in ((), (6,)):
        drafts = []
        for behind in (10, 11, 12), (20, 21, 22):
            watched = subject.watched(context)
            text = (2, 3, 4, 5, *bridge, -1, *behind)
            begin(watched, 0, (*text, *text, 2, 3, 4, 5))
            drafts.append(ask_one(watched, 0, 4))
        for position, (one, other) in enumerate(zip(*drafts, strict=False)):
            if one in (10, 11, 12) and other in (20, 21, 22):
                raise ContractError(
                    f"position {position} of the draft is {one}, or {other} where the text behind the separator is "
                    f"spelled so: it was copied across the separator (drafts {drafts[0]} and {drafts[1]})"
                )


_SECRET = dict(zip(range(6, 12), range(12, 18), strict=True))


@check("A request that ended with keep=False is forgotten.")
def check_forgets_unkept(subject: Subject) -> None:
    _no_interference(subject, "a request that had ended with keep=False", "", False)


@check("Requests of another namespace never show in a draft, whether they run or have ended.")
def check_namespaces(subject: Subject) -> None:
    _no_interference(subject, "a kept request of another namespace", "theirs", True)
    _no_interference(subject, "a running request of another namespace", "theirs", None)


@check(
    "A proposer that does not declare shares_requests lets no request show in another's drafts.",
    skip=lambda s: "declares shares_requests" if s.capabilities.shares_requests else None,
)
def check_sharing_is_declared(subject: Subject) -> None:
    _no_interference(subject, "a kept request", "", True)
    _no_interference(subject, "a running request", "", None)


def _no_interference(subject: Subject, who: str, namespace: str, keep: bool | None) -> None:
    """Spell the secrets of a first request in two ways; the second request must not notice.

    Args:
        who: what messages call the first request.
        namespace: of the first request; the second has the empty one.
        keep: how the first request ends, before the second takes over its slot; None lets it run
            on.
    """
    slot = 1 if keep is None else 0
    words = st.lists(st.integers(0, 11), min_size=1, max_size=5)

    @subject.explore()
    @given(
        first=st.tuples(words, words, st.integers(1, 3)),
        second=st.lists(st.integers(0, 5), max_size=6),
        says=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    )
    def unnoticed(
        first: tuple[list[int], list[int], int], second: list[int], says: list[int]
    ) -> None:
        motif, output, times = first
        own = (tuple(output), ())
        first_says = own[0] if keep is None else ()
        events: list[Start | Step | Finish] = [
            Start(0, tuple(motif) * times, namespace),
            Step((0, 0), own, 4),
            Step((0, 0), own, 4),
        ]
        if keep is not None:
            events.append(Finish(0, keep))
        # The second request speaks the first one's words, as far as they are no secret.
        shared = tuple(token for token in motif if token < 6)
        events.append(Start(slot, (*second, *shared)))
        for token in (*says, *shared):
            said = (first_says, (token,)) if slot else ((token,), ())
            events.append(Step((0, 0), said, 4))
        events.append(Step((0, 0), ((), ()), 4))
        trace = Trace(18, 2, tuple(events))
        one, other = (
            Player(subject.watched(trace.context())).play(told)
            for told in (trace, renamed(trace, _SECRET, slot=0))
        )
        # The first two steps are the first request's own.
        for step, (a, b) in enumerate(zip(one[2:], other[2:], strict=True), 2):
            if a[slot].tokens != b[slot].tokens:
                raise ContractError(
                    f"step {step}: the draft is {a[slot].tokens}, but {b[slot].tokens} where {who} spells its secrets "
                    f"with other ids; it said {tuple(motif) * times} and then {output} twice"
                )

    unnoticed()


def _same(
    one: list[dict[int, Proposal]],
    other: list[dict[int, Proposal]],
    difference: str,
    bits: bool = False,
) -> None:
    for step, (a, b) in enumerate(zip(one, other, strict=True)):
        for slot in a:
            if a[slot].tokens != b[slot].tokens:
                raise ContractError(
                    f"step {step}, slot {slot}: drafted {a[slot].tokens} and {b[slot].tokens}, although {difference}"
                )
            if bits and a[slot].survival.tobytes() != b[slot].survival.tobytes():
                raise ContractError(
                    f"step {step}, slot {slot}: survival {a[slot].survival} and {b[slot].survival}, although "
                    f"{difference}"
                )
