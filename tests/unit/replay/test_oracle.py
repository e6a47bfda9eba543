"""The oracle against its definition, written out as loops."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from specplug.replay.metrics import Tally
from specplug.replay.oracle import Oracle, longest_earlier
from specplug.types import TokenArray


def ids(*tokens: int) -> TokenArray:
    """Token ids as the oracle wants them."""
    return np.array(tokens, np.int32)


Texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def ref_longest_earlier(text: list[int], first: int, limit: int) -> list[int]:
    found = []
    for place in range(first, len(text)):
        best = 0
        for earlier in range(place):
            length = 0
            while (
                length < limit
                and place + length < len(text)
                and text[earlier + length] == text[place + length]
            ):
                length += 1
            best = max(best, length)
        found.append(best)
    return found


@given(Texts, st.integers(0, 40), st.integers(1, 9))
@example([0, 0, 0, 0], 1, 9)
@example([1], 0, 3)
@example([1, 2], 2, 3)
def test_longest_earlier_is_what_it_says(text: list[int], first: int, limit: int) -> None:
    first = min(first, len(text))
    got = longest_earlier(np.array(text, np.int32), first, limit, 4)
    assert got.tolist() == ref_longest_earlier(text, first, limit)


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
    oracle, tally = Oracle(5, width), Tally()
    for prompt, response in requests:
        oracle.replay(ids(*prompt), ids(*response), tally)
    assert (tally.steps, tally.accepted) == (len(ref), sum(n for _, n in ref))
    assert tally.drafted == tally.accepted
    assert tally.emitted == sum(max(0, len(r) - 1) for _, r in requests)


def test_it_forgets_outputs_beyond_its_store() -> None:
    """The first response is repeated after the store has been overwritten, and then at once."""
    first = ids(*range(1, 9))
    small = Oracle(100, 16, store_tokens=20)
    tally = Tally()
    small.replay(ids(), first, tally)
    for start in (20, 30, 40, 50):
        small.replay(ids(), ids(*range(start, start + 8)), tally)
    late, soon = Tally(), Tally()
    small.replay(ids(), first, late)
    small.replay(ids(), first, soon)
    assert (late.accepted, soon.accepted) == (0, 7)
