"""Answers that are still being written: who drafts from them, and when they are gone.

Nobody draws on a prompt here but its own request: what is drafted has been said in an answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specplug.index.suffix import SuffixIndex
from specplug.kernels import layout
from specplug.types import Context, Observed

WIDTH = 8
TEXT = list(range(1000, 1040))


def continued(index: Any, after: list[int], slot: int = 1, namespace: str = "") -> list[int]:
    """What a request of its own that has said ``after`` drafts; it is gone afterwards."""
    index.start([], slot=slot, namespace=namespace)
    index.observe(after, slot=slot)
    draft: list[int] = index.draft(slot=slot)
    index.index.finish(slot, False, frozenset())
    return draft


def say(
    index: Any, text: list[int], slot: int = 0, namespace: str = "", prompt: list[int] | None = None
) -> None:
    """A request says ``text`` and goes on running. Two must run for their answers to be entered."""
    if not index.index.state.slots.running[0]:
        index.start([7], slot=3, namespace="nobody")
    index.start(prompt or [], slot=slot, namespace=namespace)
    for begin in range(0, len(text), 7):
        index.observe(text[begin : begin + 7], slot=slot)


def test_what_another_request_is_saying_is_drafted(lists: Any) -> None:
    index = lists()
    say(index, TEXT)
    assert continued(index, TEXT[5:8]) == TEXT[8 : 8 + WIDTH]
    assert continued(index, TEXT[-12:-8]) == TEXT[-8:], "up to the last token"
    index.observe([5, 6], slot=0)
    assert continued(index, TEXT[-6:-3]) == [*TEXT[-3:], 5, 6], "and on"


def test_one_token_in_common_is_too_little(lists: Any) -> None:
    index = lists()
    say(index, TEXT)
    assert continued(index, TEXT[5:6]) == []


def test_it_is_drafted_from_the_store_once_it_is_over(lists: Any) -> None:
    index = lists()
    say(index, TEXT)
    index.index.finish(0, True, frozenset())
    assert continued(index, TEXT[5:8]) == TEXT[8 : 8 + WIDTH]


def test_an_answer_that_is_aborted_is_gone(lists: Any) -> None:
    index = lists()
    say(index, TEXT)
    index.index.finish(0, False, frozenset())
    assert continued(index, TEXT[5:8]) == []
    index.start([], slot=0)
    assert continued(index, TEXT[5:8]) == []


def test_a_prompt_is_nobody_elses(lists: Any) -> None:
    index = lists()
    say(index, TEXT[20:], prompt=TEXT[:20])
    assert continued(index, TEXT[5:8]) == []
    assert continued(index, TEXT[18:20]) == [], "nor does it lead to the answer"
    assert continued(index, TEXT[18:21]) == []
    assert continued(index, TEXT[20:22]) == TEXT[22 : 22 + WIDTH]


def test_tenants_keep_their_answers(lists: Any) -> None:
    index = lists()
    say(index, TEXT, namespace="a")
    assert continued(index, TEXT[5:8], namespace="b") == []
    assert continued(index, TEXT[5:8], namespace="a") == TEXT[8 : 8 + WIDTH]


def test_the_next_tenant_of_a_slot_is_not_taken_for_the_last(lists: Any) -> None:
    """The table still names the places; what stands there now is another tenant's."""
    index = lists()
    say(index, TEXT, namespace="a")
    say(index, TEXT, namespace="b")
    assert continued(index, TEXT[5:8], namespace="a") == []
    assert continued(index, TEXT[5:8], namespace="b") == TEXT[8 : 8 + WIDTH]


def test_the_common_namespace_is_drafted_from_by_all(lists: Any) -> None:
    index = lists(common="docs")
    say(index, TEXT, namespace="docs")
    assert continued(index, TEXT[5:8], namespace="a") == TEXT[8 : 8 + WIDTH]
    say(index, TEXT[::-1], namespace="a")
    assert continued(index, TEXT[8:5:-1], namespace="docs") == []


def test_an_answer_that_is_taken_back_is_not_drafted_from(lists: Any) -> None:
    index = lists()
    say(index, TEXT)
    index.start(TEXT[:10], slot=0, prompt=0)
    index.observe([5], slot=0)
    assert continued(index, TEXT[5:8]) == [*TEXT[8:10], 5]
    assert continued(index, TEXT[15:18]) == []


def test_a_request_that_does_not_share_reads_but_shows_nothing(lists: Any) -> None:
    index = lists()
    say(index, TEXT)
    index.index.start(2, "", 0, np.array([], np.int32), False)
    index.observe([*TEXT[::-1], *TEXT[5:8]], slot=2)
    assert index.draft(slot=2) == TEXT[8 : 8 + WIDTH]
    assert continued(index, TEXT[8:5:-1]) == []


@pytest.mark.parametrize("budget", [0, 1 << 16])
def test_where_nothing_is_shared_there_is_no_table(lists: Any, budget: int) -> None:
    index = lists(budget)
    index.index = SuffixIndex(Context(10**6, 2048, WIDTH, 4), budget, 0.0, shows=budget == 0)
    assert index.index.state.slots.live.size == 0
    say(index, TEXT)
    assert continued(index, TEXT[5:8]) == []


def test_a_request_alone_enters_nothing_and_is_caught_up_with(lists: Any) -> None:
    index = lists()
    index.start([])
    index.observe(TEXT)
    table = index.index.state.slots.live
    assert not table.any()
    index.start([], slot=1)
    index.observe(TEXT[5:8], slot=1)
    assert index.draft(slot=1) == []
    index.observe([], slot=0)
    assert index.draft(slot=1) == TEXT[8 : 8 + WIDTH]


def test_a_long_answer_is_entered_over_several_calls(lists: Any) -> None:
    index = lists(max_length=4 * layout.SHOWN_PER_CALL)
    long = list(range(2 * layout.SHOWN_PER_CALL + 100))
    index.start([7], slot=3)
    index.start(long, slot=0, prompt=0)
    shown = index.index.state.slots.numbers
    for end in (layout.SHOWN_PER_CALL + 1, 2 * layout.SHOWN_PER_CALL + 1, len(long)):
        index.observe([], slot=0)
        assert shown[0, layout.N_SHOWN] == end
    # A place is entered with its context; how many the table holds is another matter.
    assert continued(index, long[-20:-16]) == long[-16:-8]


def test_of_a_context_the_newest_places_are_kept(lists: Any) -> None:
    index = lists()
    text = [token for turn in range(20) for token in (1, 2, 3, 4, 100 + turn)]
    say(index, text)
    table = index.index.state.slots.live
    places = [5 * turn + 4 for turn in range(20)][: -layout.LIVE_WAYS - 1 : -1]
    rows = table[-1] & (2**layout.LIVE_BITS - 1)
    assert places in rows.tolist()


def test_copying_a_running_answer_survives_an_edit(lists: Any) -> None:
    """One other token, and the copy pointer goes on behind it, before two tokens agree again."""
    index = lists()
    say(index, TEXT)
    index.start([], slot=1)
    index.observe(TEXT[2:8], slot=1)
    assert index.draft(slot=1) == TEXT[8 : 8 + WIDTH]
    index.observe([*TEXT[8:10], 5], slot=1)
    assert index.draft(slot=1) == TEXT[11 : 11 + WIDTH]
    assert index.index.check_invariants() == ""


def test_a_pointer_into_an_answer_that_is_over_leads_nowhere(lists: Any) -> None:
    index = lists()
    say(index, TEXT)
    index.start([], slot=1)
    index.observe(TEXT[2:8], slot=1)
    index.draft(slot=1)
    index.observe([*TEXT[8:10], 5], slot=1)
    index.index.finish(0, False, frozenset())
    assert index.draft(slot=1) == []


def test_threads_and_the_order_of_drafting_do_not_matter(lists: Any) -> None:
    """Drafts of a step see what was observed before it, whoever is first."""
    drafts = []
    for slots in ([0, 1, 2], [2, 0, 1]):
        index = lists()
        for slot in range(3):
            index.start([], slot=slot)
        news = [TEXT[:6], [5, *TEXT[2:5]], [6, *TEXT[3:6]]]
        index.index.observe(
            Observed(
                np.arange(3, dtype=np.int32),
                np.cumsum([0, *map(len, news)]),
                np.concatenate(news).astype(np.int32),
            )
        )
        drafts.append({slot: index.draft(slot=slot) for slot in slots})
    assert drafts[0] == drafts[1]
    assert drafts[0][1] == TEXT[5:6]


def test_a_stop_in_growth_keeps_the_table(lists: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are added while answers are entered."""
    from specplug.index import arrays

    monkeypatch.setattr(arrays, "FIRST_PAGES", 1)
    index = lists()
    say(index, list(range(300)))
    assert continued(index, [70, 71, 72]) == list(range(73, 73 + WIDTH))
    assert index.index.check_invariants() == ""


def test_equal_digests_mean_equal_tables(lists: Any) -> None:
    digests = []
    for text in (TEXT, TEXT, TEXT[::-1]):
        index = lists()
        say(index, text)
        index.index.finish(0, False, frozenset())
        digests.append(index.index.state_digest())
    assert digests[0] == digests[1] != digests[2]
