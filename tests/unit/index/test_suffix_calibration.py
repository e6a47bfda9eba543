"""What is said of a draft's survival follows how such drafts have fared; what is drafted does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specplug.kernels import layout
from specplug.types import Capabilities, allocate_drafts

WORDS = list(range(100, 140))


def drafted(index: Any, trees: bool = False) -> tuple[list[int], list[float]]:
    out = allocate_drafts(1, 8, 1, Capabilities(trees=trees))
    index.index.draft(np.zeros(1, np.int32), np.full(1, 8, np.int32), out)
    count = int(out.lengths[0])
    return out.tokens[0, :count].tolist(), out.survival[0, :count].tolist()


def factors(index: Any, count: int) -> list[float]:
    """Of the first draft of slot 0: the probability of each token, if all before it are right."""
    log = index.index.state.log
    return log.probs[0, log.depths[0, :count, layout.D_TOP]].tolist()


def test_nothing_counted_changes_nothing(lists: Any) -> None:
    index = lists()
    index.start(WORDS + WORDS[:6])
    _, said = drafted(index)
    assert said == np.cumprod(factors(index, len(said))).tolist()


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("ratio", [0.25, 3.0])
def test_the_odds_are_multiplied_and_the_draft_is_the_same(
    lists: Any, ratio: float, trees: bool
) -> None:
    plain, other = lists(), lists()
    other.index.state.model.calibration[:, :, layout.C_RATIO] = ratio
    text = [*WORDS, 7, *WORDS[:20], 8, *WORDS[3:12], 9, *WORDS[:6]]  # some places to branch
    for index in (plain, other):
        index.start(text)
    (tokens, raw), (same, said) = drafted(plain, trees), drafted(other, trees)
    assert len(tokens) == 8
    assert tokens == same
    if trees:
        assert said == raw
    else:
        odds = [ratio * p / (1.0 - p) for p in factors(plain, 8)]
        assert said == pytest.approx(np.cumprod([o / (1.0 + o) for o in odds]).tolist())


@pytest.mark.parametrize("right", [False, True])
def test_a_request_is_believed_as_it_deserves(lists: Any, right: bool) -> None:
    """Drafts of a request that always hold or never do; the next request in its slot begins anew."""
    index = lists()
    index.start(WORDS + WORDS[:6])
    state = index.index.state
    for number in range(12):
        tokens, _ = drafted(index)
        index.observe(tokens if right else [200 + number])
        index.observe(WORDS[:6])
    index.index.learn()
    numbers = state.slots.numbers[0]
    agreed, expected = int(numbers[layout.N_AGREED]), int(numbers[layout.N_EXPECTED])
    assert expected > 0
    assert (agreed > expected) == right
    index.start([5, 6], slot=0)
    assert state.slots.numbers[0, [layout.N_AGREED, layout.N_EXPECTED]].tolist() == [0, 0]


def test_what_the_target_did_not_say_is_not_counted(lists: Any) -> None:
    """A draft may be cut before it is verified: tokens behind the cut are neither right nor wrong.

    What was said counts as often as drafted tokens hang on it, cut or not.
    """
    index = lists()
    index.start(WORDS + WORDS[:6])
    tokens, _ = drafted(index)
    assert len(tokens) == 8
    index.observe(tokens[:3])
    index.index.learn()
    bins = index.index.state.model.calibration[0]
    assert bins[:, [layout.C_TRIED, layout.C_ACCEPTED]].sum(axis=0).tolist() == [21, 21]
    assert bins[:, layout.C_EXPECTED].sum() == pytest.approx(np.dot([8, 7, 6], factors(index, 3)))


def test_what_is_said_of_tokens_behind_the_cut_does_not_collapse(lists: Any) -> None:
    """Where only four are verified, the others must not be known by the drafts alone that failed before them."""
    index = lists(max_length=20_000)
    index.start(WORDS + WORDS[:6])
    coins = np.random.default_rng(3)
    for number in range(400):
        tokens, _ = drafted(index)
        right = int(np.argmin([*(coins.random(min(4, len(tokens))) < 0.85), False]))
        wrong = [200 + number] if right < 4 else []
        index.observe([*tokens[:right], *wrong])
        index.observe(WORDS[:6])
    tokens, said = drafted(index)
    assert len(tokens) == 8
    assert said[7] / said[3] == pytest.approx(
        0.85**4, abs=0.15
    )  # of those behind the cut, if the others are right
