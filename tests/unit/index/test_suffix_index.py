"""What the index drafts from a request's own text, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specplug.index import arrays
from specplug.kernels import layout
from specplug.kernels.candidates import find_candidates
from specplug.kernels.match import load_context
from specplug.types import allocate_drafts

WORDS = list(range(100, 140))  # forty different tokens


def test_a_text_that_begins_again_is_copied(lists: Any) -> None:
    index = lists()
    index.start(WORDS + WORDS[:6])
    assert index.draft() == WORDS[6:14]


def test_what_was_observed_is_copied_too(lists: Any) -> None:
    index = lists()
    index.start([1, 2, 3])
    index.observe(WORDS)
    index.observe([7, *WORDS[:2]])
    assert index.draft() == WORDS[2:10]


def test_copying_runs_into_the_draft_itself(lists: Any) -> None:
    index = lists()
    index.start([1, 2, 3, 1, 2, 3])
    assert index.draft() == [1, 2, 3, 1, 2, 3, 1, 2]


@pytest.mark.parametrize("history", [[], [5], [5, 6], WORDS])
def test_nothing_is_drafted_where_nothing_repeats(lists: Any, history: list[int]) -> None:
    index = lists()
    index.start(history)
    assert index.draft() == []
    assert index.index.check_invariants() == ""


def test_two_equal_tokens_are_a_repetition(lists: Any) -> None:
    index = lists()
    index.start([5, 5])
    assert index.draft() == [5] * 8


def test_an_empty_request_grows_token_by_token(lists: Any) -> None:
    index = lists()
    index.start([])
    drafts = []
    for token in [5, 6, 5, 6]:
        index.observe([token])
        drafts.append(index.draft(ceiling=2))
    assert drafts == [[], [], [6, 5], [5, 6]]


@pytest.mark.parametrize(
    ("ceiling", "length"), [(0, 0), (1, 1), (7, 7), (8, 8), (9, 8), (10**6, 8), (-1, 0)]
)
def test_a_draft_ends_at_its_ceiling_or_the_width_of_the_buffers(
    lists: Any, ceiling: int, length: int
) -> None:
    index = lists()
    index.start(WORDS + WORDS[:6])
    assert index.draft(ceiling=ceiling) == WORDS[6 : 6 + length]
    assert index.index.check_invariants() == ""


def test_ceilings_are_per_row(lists: Any) -> None:
    index = lists()
    for slot in range(4):
        index.start(WORDS[slot:] + WORDS[slot : slot + 3], slot)
    out = allocate_drafts(3, 8)
    index.index.draft(np.array([3, 0, 2], np.int32), np.array([2, 0, 5], np.int32), out)
    assert out.lengths.tolist() == [2, 0, 5]
    assert out.tokens[0, :2].tolist() == WORDS[6:8]
    assert out.tokens[2, :5].tolist() == WORDS[5:10]


def test_the_longest_match_decides(lists: Any) -> None:
    index = lists()
    index.start([1, 2, 3, 4, 50, 9, 2, 3, 4, 60, 8, 3, 4, 70, 7, 1, 2, 3, 4])
    assert index.draft(ceiling=1) == [50]


def test_copying_goes_on_behind_a_substituted_token(lists: Any) -> None:
    index = lists()
    index.start(WORDS)
    for token in WORDS[:20]:
        index.draft()
        index.observe([token])
    assert index.draft() == WORDS[20:28]
    index.observe([999])  # instead of WORDS[20]: nothing in the text was ever said after it
    assert index.draft() == WORDS[21:29]


def test_a_new_request_does_not_go_on_copying_for_the_old_one(lists: Any) -> None:
    index = lists()
    index.start(WORDS)
    for token in WORDS[:20]:
        index.draft()
        index.observe([token])
    index.start([*range(500, 540), 999])
    assert index.draft() == []


def test_a_separator_is_never_drafted(lists: Any) -> None:
    index = lists()
    index.start([1, 2, 3, -1, 4, 5, 1, 2])
    assert index.draft() == [3]
    index.start([1, 2, -1, 4, 5, 1, 2])
    assert index.draft() == []


def test_nothing_is_matched_across_a_separator(lists: Any) -> None:
    index = lists()
    index.start([1, 2, -1, 3, 50, 1, 2, -1, 3])
    state = index.index.state
    size = load_context(state.slots, 0, state.scratch.context)
    assert size == 9
    assert find_candidates(state, 0, size) == 1
    assert state.scratch.candidates[0, [layout.POSITION, layout.LENGTH]].tolist() == [4, 1]


def test_after_a_separator_nothing_matches_yet(lists: Any) -> None:
    index = lists()
    index.start([1, 2, -1, 3, 4, 1, 2, -1])
    assert index.draft() == []


def test_the_largest_and_the_smallest_ids_are_tokens_like_others(lists: Any) -> None:
    top = 2**31 - 2
    text = [top, top - 1, 0, top - 2, 2**24 + 1, 2**30, 1, top - 3]
    index = lists()
    index.start([*text, *text[:2]])
    assert index.draft(ceiling=6) == text[2:]
    index.store([*text, 7])
    assert index.draft_after(text[4:7]) == [top - 3, 7]
    assert index.index.check_invariants() == ""


def test_slots_do_not_see_each_other(lists: Any) -> None:
    index = lists(budget=0)
    index.start(WORDS, slot=0)
    index.start(WORDS[:6], slot=1)
    assert index.draft(slot=1) == []


@pytest.mark.parametrize(
    "pieces", [[0], [1], [63], [64], [65], [127, 1], [128], [1, 128, 1], [64] * 5, [100, 0, 300]]
)
def test_a_stream_is_read_back_as_it_was_written(lists: Any, pieces: list[int]) -> None:
    # Streams lie in pages of 64 tokens.
    text = np.random.default_rng(1).integers(-1, 1000, sum(pieces)).tolist()
    index = lists()
    index.start([9] * 70, slot=1)
    index.start(text[: pieces[0]])
    done = pieces[0]
    for size in pieces[1:]:
        index.observe([8], slot=1)  # so that the pages of the streams alternate
        index.observe(text[done : done + size])
        done += size
    assert index.index.tokens(0).tolist() == text
    assert index.index.check_invariants() == ""
    assert index.index.tokens(0) is not index.index.tokens(0)


def test_a_stream_read_back_is_a_copy(lists: Any) -> None:
    index = lists()
    index.start(WORDS)
    index.index.tokens(0)[:] = 0
    assert index.index.tokens(0).tolist() == WORDS


def test_a_slot_begun_again_has_forgotten_the_old_text(lists: Any) -> None:
    index = lists()
    index.start(WORDS * 3)
    free = int(index.index.state.slots.free_count[0])
    index.start(WORDS[:6])
    assert index.index.tokens(0).tolist() == WORDS[:6]
    assert index.draft() == []
    assert int(index.index.state.slots.free_count[0]) == free + 1, "two pages become one"


def test_finishing_gives_all_pages_back(lists: Any) -> None:
    index = lists()
    before = int(index.index.state.slots.free_count[0])
    for _ in range(50):
        index.start(WORDS * 5)
        index.observe(WORDS)
        index.index.finish(0, True, frozenset())
    index.index.finish(0, True, frozenset())
    assert int(index.index.state.slots.free_count[0]) == before
    assert index.index.tokens(0).tolist() == []


def test_growing_beyond_the_first_pages_changes_no_draft(
    lists: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = lists()
    monkeypatch.setattr(arrays, "FIRST_PAGES", 2)
    small = lists()
    assert len(small.index.state.slots.free) == 2
    rng = np.random.default_rng(5)
    text = {slot: np.tile(rng.integers(0, 50, 90), 8).tolist() for slot in range(3)}
    drafted = 0
    for index in (large, small):
        for slot in text:
            index.start(text[slot][:100], slot)
    for length in range(100, 700, 40):
        for slot in text:
            drafts = []
            for index in (large, small):
                index.observe(text[slot][length : length + 40], slot)
                drafts.append(index.draft(slot))
                assert index.index.check_invariants() == ""
            assert drafts[0] == drafts[1]
            drafted += len(drafts[0])
    assert drafted > 200
    assert 2 < len(small.index.state.slots.free) < len(large.index.state.slots.free)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 128, 1000, 2000])
def test_a_first_text_larger_than_the_first_pages_fits(
    lists: Any, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(arrays, "FIRST_PAGES", 1)
    index = lists()
    text = np.tile(np.arange(90), 30)[:size].tolist()
    for slot in range(3):
        index.start(text, slot)
        assert index.index.tokens(slot).tolist() == text
        assert index.index.check_invariants() == ""
    assert index.draft() == (text[size % 90 : size % 90 + 8] if size > 90 else [])


def test_a_dear_token_is_not_drafted(lists: Any) -> None:
    cheap, dear = lists(cost=0.01), lists(cost=10.0)
    for index in (cheap, dear):
        index.start(WORDS + WORDS[:6])
    assert cheap.draft() != []
    assert dear.draft() == []
