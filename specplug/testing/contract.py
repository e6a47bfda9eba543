"""Checks of the protocol's letter: sizes, ids, edges, memory. Most replay a bug that some engine once had."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specplug.testing.subject import Subject, check
from specplug.testing.traces import Player, Trace, traces
from specplug.testing.watch import ContractError, Watched, ask_one, tell
from specplug.types import LENGTH_DTYPE, TOKEN_DTYPE, Context, Request

CYCLE = (0, 1, 2, 3)


def begin(
    watched: Watched,
    slot: int,
    history: tuple[int, ...],
    namespace: str = "",
    prompt: int | None = None,
) -> None:
    """Start a request with a history that is all prompt, or its first ``prompt`` tokens."""
    length = len(history) if prompt is None else prompt
    request = Request(f"r{slot}", length, namespace=namespace)
    watched.start(slot, request, np.array(history, TOKEN_DTYPE))


@check(
    "Drafts are valid after any history: lengths, ids, survival, parents, laws, untouched inputs."
)
def check_valid_drafts(subject: Subject) -> None:
    @subject.explore()
    @given(trace=traces())
    def valid(trace: Trace) -> None:
        Player(subject.watched(trace.context())).play(trace)

    valid()


@check("A request without any history, and the very first call, are served.")
def check_empty_history(subject: Subject) -> None:
    watched = subject.watched(Context(4, max_length=16, max_draft=3, max_requests=2))
    begin(watched, 0, ())
    ask_one(watched, 0, 3)
    tell(watched, [(0, [])])
    ask_one(watched, 0, 3)
    tell(watched, [(0, [1])])
    ask_one(watched, 0, 3)


@check("A ceiling of zero gives no draft; batches without rows and without news are accepted.")
def check_nothing_asked(subject: Subject) -> None:
    watched = subject.watched(Context(4, max_length=64, max_draft=3, max_requests=2))
    none = np.zeros(0, LENGTH_DTYPE)
    watched.ask(none, none)
    tell(watched, [])
    begin(watched, 1, CYCLE * 4)
    ask_one(watched, 1, 0)
    watched.ask(none, none)
    tell(watched, [])
    ask_one(watched, 1, 3)


@check("All slots can be used at once, and a row may stand in any place of the batch.")
def check_all_slots(subject: Subject) -> None:
    context = Context(6, max_length=64, max_draft=3, max_requests=5)
    watched = subject.watched(context)
    for slot in range(5):
        begin(watched, slot, CYCLE * (slot + 1))
    for slots in ([4, 3, 2, 1, 0], [2], [0, 4]):
        watched.ask(np.array(slots, LENGTH_DTYPE), np.full(len(slots), 3, LENGTH_DTYPE))
        tell(watched, [(slot, CYCLE[:1]) for slot in sorted(slots)])


@check("A history that fills the context to its last token is served.")
def check_full_context(subject: Subject) -> None:
    context = Context(4, max_length=40, max_draft=4, max_requests=2)
    for length in (38, 39, 40):
        watched = subject.watched(context)
        begin(watched, 0, (CYCLE * 10)[:length])
        ask_one(watched, 0, max(0, context.max_length - length - 1))
        begin(watched, 1, (CYCLE * 10)[:30])
        tell(watched, [(1, (CYCLE * 3)[: length - 30])])
        ask_one(watched, 1, 0)


@check("The largest ids of a vocabulary are ordinary; the id one past the end is never drafted.")
def check_large_ids(subject: Subject) -> None:
    for vocab_size in (2, 70_000, 200_000):
        if subject.capabilities.sampled and vocab_size > 2:
            continue  # laws over a large vocabulary for every position are a matter of memory, not of ids
        watched = subject.watched(Context(vocab_size, max_length=64, max_draft=4, max_requests=1))
        begin(watched, 0, (vocab_size - 1, vocab_size - 2, 0) * 8)
        for token in (vocab_size - 1, vocab_size - 2, 0, -1, vocab_size - 1):
            ask_one(watched, 0, 4)
            tell(watched, [(0, [token])])
        ask_one(watched, 0, 4)


@check("A request that was away for a while comes back with many tokens at once, or none.")
def check_preemption(subject: Subject) -> None:
    context = Context(6, max_length=512, max_draft=4, max_requests=2)
    watched = subject.watched(context)
    begin(watched, 0, CYCLE * 2)
    begin(watched, 1, CYCLE * 3)
    ask_one(watched, 0, 4)
    for _ in range(5):
        tell(watched, [(1, [4])])
        ask_one(watched, 1, 4)
    tell(watched, [(0, CYCLE * 40), (1, [])])
    watched.ask(np.array([1, 0], LENGTH_DTYPE), np.full(2, 4, LENGTH_DTYPE))


@check("Requests that come and go leave no memory behind when their text is not kept.")
def check_no_leak(subject: Subject) -> None:
    grown = _growth(subject, keep=False)
    if grown > _LEAK:
        raise ContractError(
            f"after {_CHURN} requests that ended with keep=False, {grown} bytes more are in use than after the first "
            f"{_CHURN}; finish(slot, keep=False) must free everything (allowed: {_LEAK})"
        )


@check(
    "The memory budget holds: finished requests beyond it replace older ones.",
    skip=lambda s: None if s.budget else "has no option ending in _mb or _bytes",
)
def check_memory_budget(subject: Subject) -> None:
    grown = _growth(subject, keep=True)
    if grown > _LEAK:
        raise ContractError(
            f"with {subject.budget} = {subject.options[str(subject.budget)]}, {grown} bytes more are in "
            f"use after {2 * _CHURN} kept requests than after {_CHURN}, although these filled the "
            f"budget (allowed: {_LEAK})"
        )


_CHURN = 150
_LEAK = 16 * 1024


#: What a leak gains it gains every time; what another thread of the process allocates, not.
_ROUNDS = 3


def _growth(subject: Subject, keep: bool) -> int:
    """Bytes gained by as many requests again as have gone before: the least of a few rounds."""
    context = Context(50, max_length=256, max_draft=4, max_requests=2)
    watched = subject.watched(context)
    generator = np.random.default_rng(0)
    # A few texts come again and again: a bounded cache fills up at once, a leak per request still shows.
    texts = generator.integers(0, 50, (8, 120)).tolist()

    def churn() -> None:
        for request in range(_CHURN):
            text = texts[request % len(texts)]
            begin(watched, 0, tuple(text[:60]), prompt=20)
            ask_one(watched, 0, 4)
            tell(watched, [(0, text[60:])])
            ask_one(watched, 0, 4)
            watched.finish(0, keep)
        gc.collect()

    churn()
    running = tracemalloc.is_tracing()
    if not running:
        tracemalloc.start()
    churn()
    rounds: list[int] = []
    while len(rounds) < _ROUNDS and (not rounds or rounds[-1] > _LEAK):
        before = tracemalloc.get_traced_memory()[0]
        churn()
        rounds.append(tracemalloc.get_traced_memory()[0] - before)
    if not running:
        tracemalloc.stop()
    return min(rounds)


@check(
    "After rejected drafts a proposer that drafts at all drafts again within 40 steps of plain repetition."
)
def check_recovery(subject: Subject) -> None:
    watched = subject.watched(Context(8, max_length=2000, max_draft=4, max_requests=1))
    begin(watched, 0, CYCLE * 12)
    if not ask_one(watched, 0, 4):
        return
    for _ in range(12):
        draft = ask_one(watched, 0, 4)
        tell(watched, [(0, [next(t for t in (4, 5) if t not in draft[:1])])])
    for step in range(40):
        tell(watched, [(0, [CYCLE[step % 4]])])
        if step > 4 and ask_one(watched, 0, 4):
            return
        if step <= 4:
            ask_one(watched, 0, 4)
    raise ContractError(
        "drafted on repeating text, and after 12 rejected drafts not once in 40 further steps of "
        "repeating text; a length that only falls never recovers"
    )


@check(
    "An end that is announced twice, or for a slot that was taken over, cannot happen; slots can be reused at once."
)
def check_slot_reuse(subject: Subject) -> None:
    @subject.explore(fewer=5)
    @given(lengths=st.lists(st.integers(0, 12), min_size=2, max_size=6), keep=st.booleans())
    def reused(lengths: list[int], keep: bool) -> None:
        watched = subject.watched(Context(6, max_length=64, max_draft=4, max_requests=1))
        for length in lengths:
            begin(watched, 0, (CYCLE * 3)[:length])
            ask_one(watched, 0, 4)
            tell(watched, [(0, [4, 5])])
            ask_one(watched, 0, 4)
            watched.finish(0, keep)

    reused()
