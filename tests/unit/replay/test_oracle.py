"""The oracle against its definition, written out as loops."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from specplug.reference import earlier
from specplug.replay.metrics import Tally
from specplug.replay.oracle import Memory, Oracle
from specplug.types import TokenArray


def ids(*tokens: int) -> TokenArray:
    """Token ids as the oracle wants them."""
    return np.array(tokens, np.int32)


Texts = st.lists(st.integers(0, 3), max_size=30)


@given(st.lists(st.tuples(Texts, Texts), min_size=1, max_size=4), st.integers(1, 9))
@example([([0, 0], [0, 0])], 9)
@example([([], [1, 2]), ([], [1, 2])], 3)
@example([([], [])], 1)
def test_repetition_is_what_the_slow_twin_says(
    requests: list[tuple[list[int], list[int]]], limit: int
) -> None:
    memory = Memory(limit)
    outputs: set[tuple[int, ...]] = set()
    for prompt, response in requests:
        text = prompt + response
        out = [0] * len(text)
        earlier.longest_earlier(text, set(), set(), outputs, set(), limit, out)
        got = memory.look(ids(*prompt), ids(*response))
        assert got.ahead.tolist() == out[len(prompt) :]
        assert got.behind.tolist() == [
            max((n for n in range(1, limit + 1) if n <= at and out[at - n] >= n), default=0)
            for at in range(len(prompt), len(text))
        ]
        earlier.add_text(outputs, response, limit)


def ref_steps(requests: list[tuple[list[int], list[int]]], width: int) -> list[tuple[int, int]]:
    """Response position and accepted tokens of every step, by trying each earlier place."""
    steps = []
    outputs: list[list[int]] = []
    for prompt, response in requests:
        own = prompt + response
        position = 1
        while position < len(response):
            here = len(prompt) + position
            best = 0
            for text, end in [*((t, len(t)) for t in outputs), (own, here)]:
                for place in range(end):
                    if text[place] != own[here - 1] or (text is own and place + 1 >= here):
                        continue
                    agreed = 0
                    while (
                        agreed < min(width, len(response) - position)
                        and place + 1 + agreed < len(text)
                        and text[place + 1 + agreed] == own[here + agreed]
                    ):
                        agreed += 1
                    best = max(best, agreed)
            steps.append((position, best))
            position = min(len(response), position + best + 1)
        if len(response) > 1:
            outputs.append(response)
    return steps


Requests = st.lists(
    st.tuples(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), max_size=20)),
    min_size=1,
    max_size=5,
)


@given(Requests, st.integers(1, 6))
def test_the_oracle_takes_the_best_earlier_occurrence(
    requests: list[tuple[list[int], list[int]]], width: int
) -> None:
    ref = ref_steps(requests, width)
    memory, oracle, tally = Memory(width + 1), Oracle(width), Tally()
    for prompt, response in requests:
        if len(response) < 2:
            continue
        seen = memory.look(ids(*prompt), ids(*response))
        oracle.replay(ids(*prompt), ids(*response), seen, tally)
    assert (tally.steps, tally.accepted) == (len(ref), sum(n for _, n in ref))
    assert tally.drafted == tally.accepted
    assert tally.emitted == sum(max(0, len(r) - 1) for _, r in requests)


def test_it_forgets_outputs_beyond_its_store() -> None:
    """The first response is repeated after the store has been overwritten, and then at once."""
    first = ids(*range(1, 9))
    memory, oracle = Memory(17, store_tokens=20), Oracle(16)

    def play(response: TokenArray, tally: Tally) -> None:
        oracle.replay(ids(), response, memory.look(ids(), response), tally)

    play(first, Tally())
    for start in (20, 30, 40, 50):
        play(ids(*range(start, start + 8)), Tally())
    late, soon = Tally(), Tally()
    play(first, late)
    play(first, soon)
    assert (late.accepted, soon.accepted) == (0, 7)
