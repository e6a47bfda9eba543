"""The life of requests: what a proposer is told, once, in which order, whatever an engine does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specplug.errors import InvalidRequestError
from specplug.session import Session
from specplug.types import SEPARATOR, Context, Request


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


@pytest.fixture
def session(proposer: Any, context: Context) -> Session:
    return Session(proposer, context, on_fault="raise")


def test_a_request_starts_with_its_prompt(session: Session, proposer: Any) -> None:
    session.begin(Request("a", 3), tokens(1, 2, 3))
    assert proposer.calls == [("start", 0, "a", [1, 2, 3])]
    assert "a" in session
    assert session.live == 1
    assert session.stats.emitted == 0, "what a request starts with was not emitted"


def test_only_what_is_new_is_observed(session: Session, proposer: Any) -> None:
    session.begin(Request("a", 2), tokens(1, 2))
    session.step(["a"], [tokens(1, 2, 3)])
    session.step(["a"], [tokens(1, 2, 3, 4, 5, 6)])
    assert proposer.named("observe") == [("observe", ("a", [3])), ("observe", ("a", [4, 5, 6]))]
    assert session.stats.emitted == 4


def test_a_step_without_new_tokens_observes_nothing_but_drafts(
    session: Session, proposer: Any
) -> None:
    session.begin(Request("a", 2), tokens(1, 2))
    session.step(["a"], [tokens(1, 2)])
    session.step(["a"], [tokens(1, 2)])
    assert proposer.named("observe") == []
    assert len(proposer.named("propose")) == 2


def test_missed_steps_are_caught_up_exactly_once(session: Session, proposer: Any) -> None:
    rng = np.random.default_rng(7)
    text = {name: rng.integers(0, 100, 50).tolist() for name in "abc"}
    length = {"a": 4, "b": 0, "c": 9}
    for name, size in length.items():
        session.begin(Request(name, size), tokens(*text[name][:size]))
    for _ in range(40):
        for name in length:
            length[name] = min(50, length[name] + int(rng.integers(0, 3)))
        drafted = [name for name in length if rng.random() < 0.4]
        session.step(drafted, [tokens(*text[name][: length[name]]) for name in drafted])
    session.step(list(length), [tokens(*text[name][: length[name]]) for name in length])
    assert proposer.text == {name: text[name][: length[name]] for name in length}
    assert session.stats.emitted == sum(length.values()) - 13
    assert session.stats.restarted == 0


def test_an_unknown_request_starts_with_its_history_as_prompt(
    session: Session, proposer: Any
) -> None:
    session.step(["new"], [tokens(5, 6, 7)])
    assert proposer.calls == [("start", 0, "new", [5, 6, 7]), ("propose", ["new"], [4])]
    assert proposer.requests == [Request("new", prompt_length=3)]


def test_an_empty_history_grows(session: Session, proposer: Any) -> None:
    session.begin(Request("a", 0), tokens())
    session.step(["a"], [tokens()])
    session.step(["a"], [tokens(9)])
    session.step(["a"], [tokens(9, 8)])
    assert proposer.text == {"a": [9, 8]}
    assert session.stats.restarted == 0


def test_finishing_twice_is_no_error_and_reaches_the_proposer_once(
    session: Session, proposer: Any
) -> None:
    session.begin(Request("a", 1), tokens(1))
    assert session.finish("a") is True
    assert session.finish("a") is False
    assert session.finish("never began") is False
    assert proposer.named("finish") == [("finish", 0, True)]
    assert session.stats.finished == 1
    assert "a" not in session


@pytest.mark.parametrize("keep", [True, False])
def test_whether_to_keep_the_text_is_passed_on(session: Session, proposer: Any, keep: bool) -> None:
    session.begin(Request("a", 1), tokens(1))
    session.finish("a", keep=keep)
    assert proposer.named("finish") == [("finish", 0, keep)]


def test_a_live_id_begun_again_leaves_nothing_of_the_old_request(
    session: Session, proposer: Any
) -> None:
    session.begin(Request("a", 2, frozenset({7})), tokens(1, 2))
    session.step(["a"], [tokens(1, 2, 3)])
    session.begin(Request("a", 1), tokens(8))
    session.step(["a"], [tokens(8, 9)])
    assert [call[:2] for call in proposer.calls if call[0] in ("start", "finish")] == [
        ("start", 0),
        ("finish", 0),
        ("start", 0),
    ]
    assert proposer.named("finish") == [("finish", 0, False)]
    assert proposer.text == {"a": [8, 9]}
    assert (session.live, session.stats.started, session.stats.finished) == (1, 2, 1)


def test_a_preempted_request_is_left_alone_and_goes_on_when_it_is_back(
    session: Session, proposer: Any
) -> None:
    session.begin(Request("a", 1), tokens(1))
    session.begin(Request("b", 1), tokens(2))
    session.step(["a", "b"], [tokens(1, 3), tokens(2, 4)])
    seen = len(proposer.calls)
    session.step(["b"], [tokens(2, 4, 5)])
    assert proposer.calls[seen:] == [("observe", ("b", [5])), ("propose", ["b"], [4])]
    session.step(["b", "a"], [tokens(2, 4, 5), tokens(1, 3, 6)])
    assert proposer.text == {"a": [1, 3, 6], "b": [2, 4, 5]}
    assert session.stats.restarted == 0


def test_a_shrunk_history_restarts_the_request(session: Session, proposer: Any) -> None:
    session.begin(Request("a", 2, frozenset({7}), namespace="x"), tokens(1, 2))
    session.step(["a"], [tokens(1, 2, 3, 4)])
    session.step(["a"], [tokens(1, 2, 3)])
    assert proposer.named("finish") == [("finish", 0, False)]
    assert proposer.text == {"a": [1, 2, 3]}
    assert proposer.requests[1] == proposer.requests[0]
    assert session.stats.restarted == 1


def test_a_history_shorter_than_its_prompt_has_no_other_prompt(
    session: Session, proposer: Any
) -> None:
    session.begin(Request("a", 20, max_output=3), np.arange(20, dtype=np.int32))
    session.step(["a"], [tokens(5, 6)])
    assert proposer.requests[1] == Request("a", 2, max_output=3)
    assert proposer.named("propose") == [("propose", ["a"], [2])], (
        "3 tokens are left, 2 of them drafts"
    )


@pytest.mark.parametrize("history", [[1, 2, 9], [1, 2, 9, 4]], ids=["as long", "longer"])
def test_another_last_token_restarts_the_request(
    session: Session, proposer: Any, history: list[int]
) -> None:
    session.begin(Request("a", 2), tokens(1, 2))
    session.step(["a"], [tokens(1, 2, 3)])
    session.step(["a"], [tokens(*history)])
    assert proposer.text == {"a": history}
    assert session.stats.restarted == 1


def test_a_step_of_nobody_is_counted_and_asks_for_nothing(session: Session, proposer: Any) -> None:
    session.begin(Request("a", 1), tokens(1))
    out = session.step([], [])
    assert out.tokens.shape == (0, 4)
    assert out.lengths.shape == (0,)
    assert proposer.named("propose") == []
    assert (session.stats.steps, session.stats.rows) == (1, 0)


@pytest.mark.parametrize(
    ("ids", "histories", "message"),
    [
        (["a", "b", "a"], [[1], [2], [1]], "request 'a' stands in more than one row"),
        (["a", "b", "c", "d"], [[1]] * 4, r"4 requests, but Context.max_requests is 3"),
        (["a", "b"], [[1]], "got 2 ids and 1 histories"),
        (["a"], [[1], [2]], "got 1 ids and 2 histories"),
    ],
)
def test_malformed_rows_are_refused_and_change_nothing(
    session: Session, proposer: Any, ids: list[str], histories: list[list[int]], message: str
) -> None:
    session.begin(Request("a", 1), tokens(1))
    with pytest.raises(InvalidRequestError, match=message):
        session.step(ids, [tokens(*history) for history in histories])
    assert len(proposer.calls) == 1
    assert session.stats.steps == 0


def test_when_ends_were_missed_the_slot_stepped_longest_ago_is_recycled(
    session: Session, proposer: Any
) -> None:
    for name in "abc":
        session.begin(Request(name, 1), tokens(1))
    session.step(["c", "a"], [tokens(1, 2), tokens(1, 2)])
    session.begin(Request("d", 1), tokens(4))
    assert [name in session for name in "abcd"] == [True, False, True, True]
    assert proposer.calls[-2:] == [("finish", 1, False), ("start", 1, "d", [4])]
    assert (session.stats.recycled, session.live) == (1, 3)


def test_a_newcomer_never_takes_the_slot_of_a_row_of_the_same_step(
    session: Session, proposer: Any
) -> None:
    session.begin(Request("old", 1, frozenset({7})), tokens(1))
    session.begin(Request("gone", 1), tokens(2))
    session.begin(Request("gone too", 1), tokens(2))
    session.step(["new", "newer", "old"], [tokens(3), tokens(4), tokens(1, 5)])
    assert proposer.text["old"] == [1, 5]
    assert [request.request_id for request in proposer.requests].count("old") == 1
    assert ["gone" in session, "gone too" in session] == [False, False]
    assert session.stats.recycled == 2


def test_slots_are_given_back(session: Session) -> None:
    for n in range(20):
        session.begin(Request(f"r{n}", 1), tokens(1))
        if n >= 2:
            assert session.finish(f"r{n - 2}")
    assert (session.stats.recycled, session.live) == (0, 2)


def test_closing_ends_everything_without_keeping_text(session: Session, proposer: Any) -> None:
    for name in "abc":
        session.begin(Request(name, 1), tokens(1))
    session.close()
    assert proposer.named("finish") == [("finish", slot, False) for slot in (0, 1, 2)]
    assert session.live == 0
    for name in "def":
        session.begin(Request(name, 1), tokens(1))
    assert session.stats.recycled == 0


@pytest.mark.parametrize(
    "history",
    [np.zeros((2, 2), np.int32), np.array([1.5]), np.array(3), np.array(["a"])],
    ids=["two-dimensional", "fractions", "a number", "words"],
)
def test_a_malformed_history_is_refused_and_leaks_no_slot(
    session: Session, proposer: Any, history: np.ndarray
) -> None:
    session.begin(Request("a", 1), tokens(1))
    for _ in range(5):
        with pytest.raises(InvalidRequestError, match="one-dimensional array of integer token ids"):
            session.begin(Request("a", 1), history)
    assert "a" in session, "the running request of that id is not harmed"
    session.begin(Request("b", 1), tokens(1))
    session.begin(Request("c", 1), tokens(1))
    assert (session.live, session.stats.recycled) == (3, 0)


FOREIGN = [5, 100, -7, 99, 2**31 - 1, 0]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_outside_the_vocabulary_arrive_as_separators(
    session: Session, proposer: Any, dtype: type
) -> None:
    given = np.array(FOREIGN, dtype)
    session.begin(Request("prompt", 6), given)
    session.begin(Request("output", 0), given[:0])
    session.step(["output"], [given])
    expected = [5, SEPARATOR, SEPARATOR, 99, SEPARATOR, 0]
    assert proposer.text == {"prompt": expected, "output": expected}
    assert given.tolist() == FOREIGN, "the engine's array is left alone"


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_hashes_beyond_32_bits_do_not_turn_into_tokens(
    session: Session, proposer: Any, dtype: type
) -> None:
    session.begin(Request("a", 3), np.array([1, 2**32 + 5, 2**40], dtype))
    assert proposer.text == {"a": [1, SEPARATOR, SEPARATOR]}


def test_a_history_that_ends_with_a_foreign_id_goes_on(session: Session, proposer: Any) -> None:
    session.begin(Request("a", 2), tokens(1, 100))
    session.step(["a"], [tokens(1, 100, 2)])
    session.step(["a"], [tokens(1, 100, 2, -3)])
    session.step(["a"], [tokens(1, 100, 2, -3, 4)])
    assert proposer.text == {"a": [1, SEPARATOR, 2, SEPARATOR, 4]}
    assert session.stats.restarted == 0


@pytest.mark.parametrize("kind", [list, tuple, lambda ids: np.array(ids * 2, np.int16)[::2]])
def test_histories_may_be_any_sequence_of_integers(
    session: Session, proposer: Any, kind: Any
) -> None:
    session.begin(Request("a", 2), kind([3, 3]))
    session.step(["a"], [kind([3, 3, 3])])
    assert proposer.text == {"a": [3, 3, 3]}


def test_what_the_proposer_gets_does_not_change_with_the_engines_buffer(
    session: Session, proposer: Any
) -> None:
    buffer = tokens(1, 2, 3, 4)
    session.begin(Request("a", 2), buffer[:2])
    session.step(["a"], [buffer])
    buffer[:] = 77
    assert [array.tolist() for array in proposer.arrays] == [[1, 2], [3, 4]]


def test_observation_is_by_age_of_the_request_whatever_the_order_of_rows(
    session: Session, proposer: Any
) -> None:
    for name in "abc":
        session.begin(Request(name, 1), tokens(1))
    session.finish("a")
    session.begin(Request("d", 1), tokens(1))  # in the slot of a, but younger than b and c
    session.step(["d", "c", "b"], [tokens(1, 4), tokens(1, 3), tokens(1, 2)])
    assert proposer.named("observe") == [("observe", ("b", [2]), ("c", [3]), ("d", [4]))]
    assert proposer.named("propose") == [("propose", ["d", "c", "b"], [4, 4, 4])]


def test_requests_that_end_together_end_by_age(session: Session, proposer: Any) -> None:
    for name in "abc":
        session.begin(Request(name, 1), tokens(1))
    session.step(["c", "b", "a"], [tokens(1, 2)] * 3)
    session.finish_all(["c", "unknown", "a", "c"])
    assert proposer.named("finish") == [("finish", 0, True), ("finish", 2, True)]
    session.finish_all({"b"}, keep=False)
    assert proposer.named("finish")[2:] == [("finish", 1, False)]
    assert (session.live, session.stats.finished) == (0, 3)


def test_what_a_proposer_does_to_its_arguments_does_not_reach_the_next_step(
    session: Session, proposer: Any
) -> None:
    plain = proposer.observe

    def scribble(observed: Any) -> None:
        plain(observed)
        for array in observed:
            array[:] = 5

    proposer.observe = scribble
    session.begin(Request("a", 1), tokens(1))
    for end in (2, 3, 5):
        session.step(["a"], [tokens(1, 2, 3, 4, 5)[:end]])
    assert proposer.text == {"a": [1, 2, 3, 4, 5]}


def test_limits_that_are_no_integers_do_not_fail_the_step(session: Session, proposer: Any) -> None:
    limits: dict[str, Any] = {"max_output": 3.0, "draft_limit": np.float64(2)}
    endless: dict[str, Any] = {"max_output": float("inf"), "draft_limit": float("inf")}
    session.begin(Request("b", 1, **endless), tokens(1))
    session.begin(Request("a", 1, **limits), tokens(1))
    for end in (2, 3):
        session.step(["a"], [tokens(1, 2, 3)[:end]])
    assert proposer.named("propose") == [("propose", ["a"], [1]), ("propose", ["a"], [0])]
