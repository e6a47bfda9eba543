"""Counting by source and position: the fast ways against sums written out by hand, and through the session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specplug import registry
from specplug.session import Session
from specplug.sources import _TOGETHER, POSITIONS, UNNAMED, DraftSources
from specplug.types import Context, Request

CONTEXT = Context(1000, 4000, max_draft=20, max_requests=32)


class Told:
    """A proposer that says where its tokens come from."""

    source_names = ("first", "second", "third")

    def __init__(self) -> None:
        generator = np.random.default_rng(3)
        self.draft_sources: NDArray[np.uint8] = generator.integers(0, 3, (32, 20)).astype(np.uint8)


def by_hand(told: Any, slots: list[int], lengths: list[int]) -> list[list[float]]:
    table = [[0.0] * POSITIONS for _ in range(3)]
    for slot, length in zip(slots, lengths, strict=True):
        for place in range(length):
            table[told.draft_sources[slot, place]][min(place, POSITIONS - 1)] += 1
    return table


@pytest.mark.parametrize("rows", [1, 5, 6, 32])
def test_small_and_large_batches_count_alike(rows: int) -> None:
    told = Told()
    sources = DraftSources(told, CONTEXT)
    generator = np.random.default_rng(rows)
    slots = generator.permutation(32)[:rows].astype(np.int32)
    lengths = generator.integers(0, 21, rows).astype(np.int32)
    sources.count_drafted(slots.tolist(), lengths.tolist())
    sources.count_accepted(slots.tolist(), (lengths // 2).tolist())
    assert sources.drafted.tolist() == by_hand(told, slots.tolist(), lengths.tolist())
    halves = [length // 2 for length in lengths.tolist()]
    assert sources.accepted.tolist() == by_hand(told, slots.tolist(), halves)
    assert sum(s["drafted"] for s in sources.as_dict().values()) == lengths.sum()


@pytest.mark.parametrize("rows", [2, 6])
def test_a_proposer_that_says_nothing_has_one_source(rows: int) -> None:
    sources = DraftSources(object(), CONTEXT)
    assert sources.names == UNNAMED
    slots = np.arange(rows, dtype=np.int32)
    sources.count_drafted(slots.tolist(), [20] * rows)
    sources.count_accepted([0], [18])
    assert sources.drafted[0].tolist() == [rows] * (POSITIONS - 1) + [5 * rows]
    assert sources.accepted[0].tolist() == [1] * (POSITIONS - 1) + [3]


@pytest.mark.parametrize(
    "array",
    [None, np.zeros((32, 20)), np.zeros((31, 20), np.uint8), np.zeros((32, 19), np.uint8), [[0]]],
)
def test_an_array_that_does_not_fit_is_not_used(array: Any) -> None:
    told = Told()
    told.draft_sources = array
    assert DraftSources(told, CONTEXT).names == UNNAMED


def test_a_number_beyond_the_names_counts_for_the_last() -> None:
    told = Told()
    told.draft_sources[:] = 200
    sources = DraftSources(told, CONTEXT)
    few, many = np.arange(2, dtype=np.int32), np.arange(20, dtype=np.int32)
    for slots in (few, many):
        sources.count_drafted(slots.tolist(), [1] * len(slots))
    sources.count_accepted([0], [1])
    assert sources.as_dict()["third"] == {"drafted": 22, "accepted": 1}


def test_what_is_counted_later_is_what_was_drafted_then() -> None:
    """Drafts are counted together, some steps later; the proposer has overwritten its array by then."""
    told = Told()
    sources = DraftSources(told, CONTEXT)
    generator = np.random.default_rng(5)
    expected = np.zeros((3, POSITIONS))
    for _ in range(2 * _TOGETHER + 3):
        told.draft_sources[:] = generator.integers(0, 3, (32, 20))
        expected += by_hand(told, [7], [3])
        sources.count_drafted([7], [3])
    assert sources.drafted.tolist() == expected.tolist()


def test_a_tree_counts_by_depth() -> None:
    told = Told()
    told.draft_sources[4, :5] = [1, 0, 1, 2, 1]
    sources = DraftSources(told, CONTEXT)
    parents = np.array([[-1, -1, 0, 0, 2]], np.int32)
    sources.count_drafted([4], [5], parents)
    assert sources.drafted[:, :4].tolist() == [[1, 0, 0, 0], [1, 1, 1, 0], [0, 1, 0, 0]]
    sources.count_path(4, [0, 3])
    assert sources.accepted[:, :2].tolist() == [[0, 0], [1, 0], [0, 1]]


def test_the_sums_of_trees_are_those_of_the_session() -> None:
    context = Context(1000, 400, 8, 4)
    options = {"verify_cost": 0.0, "tree": True}
    session = Session(registry.build("suffix", context, options), context)
    pattern = [*range(20, 40), 7, *range(20, 40), 8, *range(20, 40)]
    text = np.array(pattern * 3, np.int32)
    for length in (70, 71, 75, 90, 93, 95, 104, 112):
        session.step(["r"], [text[:length]])
    drafted, accepted = session.sources.drafted.sum(), session.sources.accepted.sum()
    assert (drafted, accepted) == (session.stats.drafted, session.stats.accepted)
    assert accepted > 0


def test_suffix_tells_prompt_output_and_store_apart() -> None:
    """Each request can copy from one place only."""
    context = Context(1000, 400, 8, 4)
    session = Session(registry.build("suffix", context, {"verify_cost": 0.0}), context)
    pattern = list(range(20, 60))

    def serve(name: str, prompt: list[int], said: list[int]) -> dict[str, dict[str, int]]:
        before = session.sources.as_dict()
        session.begin(Request(name, len(prompt)), np.array(prompt, np.int32))
        # As if four drafts were accepted in each step.
        for end in range(len(prompt) + 1, len(prompt) + len(said) + 1, 5):
            session.step([name], [np.array(prompt + said, np.int32)[:end]])
        session.finish(name)
        return {
            source: {kind: n - before[source][kind] for kind, n in counts.items()}
            for source, counts in session.sources.as_dict().items()
        }

    copied = serve("a", [*pattern, 1, 2, 3], pattern[:30])
    assert copied["prompt"]["accepted"] > 12
    assert copied["output"]["drafted"] == copied["store"]["drafted"] == 0
    repeated = serve("b", [500, 501], [*range(600, 640), *range(600, 640)])
    assert repeated["output"]["accepted"] > 20
    assert repeated["prompt"]["drafted"] == repeated["store"]["drafted"] == 0
    recalled = serve("c", [502, 503], list(range(600, 640)))
    assert recalled["store"]["accepted"] > 12
    assert recalled["prompt"]["drafted"] == 0


def test_the_sums_by_source_are_those_of_the_session() -> None:
    context = Context(1000, 400, 8, 16)
    session = Session(registry.build("suffix", context, {"verify_cost": 0.0}), context)
    text = np.tile(np.arange(20, 50, dtype=np.int32), 4)
    names = [f"r{n}" for n in range(14)]
    for length in (40, 41, 45, 60, 90):
        session.step(names, [text[: length + n] for n in range(14)])
    drafted, accepted = session.sources.drafted.sum(), session.sources.accepted.sum()
    assert (drafted, accepted) == (session.stats.drafted, session.stats.accepted)
    assert accepted > 0
