"""What reaches the engine: drafts cut to everything that limits them, and counted as they fare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specplug.control.fixed import FixedLength
from specplug.proposers.suffix import SuffixProposer, SuffixSettings
from specplug.session import Session, accepted_tokens
from specplug.types import ROOT, Capabilities, Context, IntArray, Request


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def draft_of(out: Any, row: int = 0) -> list[int]:
    return out.tokens[row, : out.lengths[row]].tolist()


@pytest.fixture
def session(proposer: Any, context: Context) -> Session:
    return Session(proposer, context, on_fault="raise")


@pytest.mark.parametrize(
    ("claimed", "expected"), [(9, 4), (4, 4), (1, 1), (0, 0), (-1, 0), (-99, 0)]
)
def test_a_length_outside_the_ceiling_is_cut(
    session: Session, proposer: Any, claimed: int, expected: int
) -> None:
    proposer.draft = [7, 8, 9, 10]
    proposer.claimed = claimed
    assert session.step(["a"], [tokens(1)]).lengths.tolist() == [expected]


@pytest.mark.parametrize("foreign", [100, -1, 2**31 - 1, -(2**31)], ids=["V", "-1", "max", "min"])
@pytest.mark.parametrize("place", [0, 2, 3])
def test_a_draft_ends_before_an_id_outside_the_vocabulary(
    session: Session, proposer: Any, foreign: int, place: int
) -> None:
    proposer.draft = [97, 98, 99, 0]
    proposer.drafts["bad"] = [97, 98, 99, 0]
    proposer.drafts["bad"][place] = foreign
    out = session.step(["good", "bad"], [tokens(1), tokens(1)])
    assert draft_of(out, 0) == [97, 98, 99, 0]
    assert draft_of(out, 1) == [97, 98, 99, 0][:place]
    assert session.stats.clipped == 1


def test_a_foreign_id_behind_the_end_of_a_draft_does_not_count(
    session: Session, proposer: Any
) -> None:
    proposer.draft = [7, 100, 100, 100]
    proposer.claimed = 1
    assert draft_of(session.step(["a"], [tokens(1)])) == [7]
    assert session.stats.clipped == 0


@pytest.mark.parametrize(
    ("length", "expected"), [(44, 4), (45, 4), (46, 3), (48, 1), (49, 0), (50, 0), (51, 0)]
)
def test_a_draft_ends_before_the_models_length_limit(
    session: Session, proposer: Any, length: int, expected: int
) -> None:
    # max_length is 50, and the target adds a token of its own.
    proposer.draft = [7, 8, 9, 10]
    assert len(draft_of(session.step(["a"], [np.ones(length, np.int32)]))) == expected
    assert proposer.named("propose") == [("propose", ["a"], [expected])]


@pytest.mark.parametrize(
    ("emitted", "expected"), [(0, 4), (1, 4), (2, 3), (3, 2), (4, 1), (5, 0), (6, 0), (7, 0)]
)
def test_no_more_is_drafted_than_the_output_limit_leaves(
    session: Session, proposer: Any, emitted: int, expected: int
) -> None:
    proposer.draft = [7, 8, 9, 10]
    session.begin(Request("a", 3, max_output=6), np.ones(3, np.int32))
    assert len(draft_of(session.step(["a"], [np.ones(3 + emitted, np.int32)]))) == expected


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, 4), (9, 4), (3, 3), (1, 1), (0, 0), (-5, 0)]
)
def test_a_request_may_limit_its_drafts_or_opt_out(
    session: Session, proposer: Any, limit: int | None, expected: int
) -> None:
    proposer.draft = [7, 8, 9, 10]
    session.begin(Request("a", 1, draft_limit=limit), tokens(1))
    out = session.step(["a", "other"], [tokens(1), tokens(1)])
    assert out.lengths.tolist() == [expected, 4]


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        ([7, 99, 8, 9], [7, 99]),
        ([99, 7, 8, 9], [99]),
        ([7, 8, 9, 99], [7, 8, 9, 99]),
        ([7, 98, 99, 9], [7, 98]),
        ([7, 8, 9, 10], [7, 8, 9, 10]),
    ],
)
def test_nothing_is_drafted_after_a_stop_token_which_itself_may_be(
    session: Session, proposer: Any, draft: list[int], expected: list[int]
) -> None:
    proposer.draft = draft
    session.begin(Request("a", 1, frozenset({98, 99})), tokens(1))
    assert draft_of(session.step(["a"], [tokens(1)])) == expected


def test_every_request_has_stop_tokens_of_its_own(session: Session, proposer: Any) -> None:
    proposer.draft = [7, 8, 9, 10]
    session.begin(Request("a", 1, frozenset({8})), tokens(1))
    session.begin(Request("b", 1, frozenset({9, 7})), tokens(1))
    session.begin(Request("c", 1), tokens(1))
    out = session.step(["c", "b", "a"], [tokens(1)] * 3)
    assert [draft_of(out, row) for row in range(3)] == [[7, 8, 9, 10], [7], [7, 8]]


def test_a_stop_token_behind_the_end_of_a_draft_does_not_lengthen_it(
    session: Session, proposer: Any
) -> None:
    proposer.draft = [7, 8, 9, 10]
    proposer.claimed = 2
    session.begin(Request("a", 1, frozenset({9})), tokens(1))
    assert draft_of(session.step(["a"], [tokens(1)])) == [7, 8]


@pytest.mark.parametrize("stop", [2**40, 2**31, -1, 100])
def test_a_stop_id_that_no_token_has_is_ignored(session: Session, proposer: Any, stop: int) -> None:
    proposer.draft = [7, 8, 9, 10]
    session.begin(Request("a", 1, frozenset({8, stop})), tokens(1))
    assert draft_of(session.step(["a"], [tokens(1)])) == [7, 8]
    assert proposer.requests[0].stop_token_ids == {8}


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (2, 2), (9, 3), (-1, 0)])
def test_the_controllers_ceiling_holds_within_the_limits(
    proposer: Any, context: Context, length: int, expected: int
) -> None:
    session = Session(proposer, context, controller=FixedLength(length), on_fault="raise")
    proposer.draft = [7, 8, 9, 10]
    session.begin(Request("a", 1, draft_limit=3), tokens(1))
    assert len(draft_of(session.step(["a"], [tokens(1)]))) == expected
    assert proposer.named("propose") == [("propose", ["a"], [expected])]


class Greedy:
    """A controller that allows more than it may, and records what it is told."""

    def __init__(self) -> None:
        self.told: list[list[list[int]]] = []

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        ceilings[:] = limits + 10

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        self.told.append([slots.tolist(), drafted.tolist(), accepted.tolist()])


def test_a_controller_that_allows_too_much_is_cut_to_the_limits(
    proposer: Any, context: Context
) -> None:
    session = Session(proposer, context, controller=Greedy(), on_fault="raise")
    session.step(["a"], [np.ones(48, np.int32)])
    assert proposer.named("propose") == [("propose", ["a"], [1])]


def test_a_controller_hears_of_drafted_rows_only_and_once(proposer: Any, context: Context) -> None:
    controller = Greedy()
    session = Session(proposer, context, controller=controller, on_fault="raise")
    proposer.drafts = {"a": [7, 8, 9], "c": [7]}
    session.step(["a", "b", "c"], [tokens(1)] * 3)
    proposer.drafts = {}
    session.step(["c", "b", "a"], [tokens(1, 5), tokens(1, 5), tokens(1, 7, 8, 4)])
    session.step(["a", "b", "c"], [tokens(1, 7, 8, 4, 7), tokens(1, 5, 6), tokens(1, 5, 6)])
    assert controller.told == [[[0, 2], [3, 1], [2, 0]]]


@pytest.mark.parametrize(
    ("emitted", "accepted"),
    [
        ([5], 0),
        ([7], 0),  # the target's own token, which happens to be the drafted one
        ([7, 5], 1),
        ([7, 8, 5], 2),
        ([7, 8, 9, 5], 3),
        ([7, 8, 9, 7, 8], 3),  # a step later
        ([5, 8, 9], 0),
        ([7, 5, 9, 6], 1),
    ],
)
def test_a_draft_is_accepted_as_far_as_the_target_says_the_same(
    session: Session, proposer: Any, emitted: list[int], accepted: int
) -> None:
    proposer.draft = [7, 8, 9]
    session.step(["a"], [tokens(1)])
    session.step(["a"], [tokens(1, *emitted)])
    assert session.stats.accepted == accepted


# 0: 10 ── 1: 20 ── 3: 30          a tree of two branches at the root and two under node 1
# 2: 11 ── 5: 21     4: 31 (under 1)
TREE = ([10, 20, 11, 30, 31, 21], [ROOT, 0, ROOT, 1, 1, 2])


@pytest.mark.parametrize(
    ("emitted", "accepted"),
    [
        ([], 0),
        ([10], 1),
        ([11], 1),
        ([20], 0),
        ([10, 20, 30], 3),
        ([10, 20, 31], 3),
        ([10, 20, 32], 2),
        ([10, 21], 1),
        ([11, 21], 2),
        ([11, 20], 1),
        ([10, 20, 31, 10], 3),
    ],
)
def test_a_tree_is_walked_along_what_was_emitted(emitted: list[int], accepted: int) -> None:
    draft, parents = TREE
    assert accepted_tokens(tokens(*draft), tokens(*parents), tokens(*emitted)) == accepted


def test_a_tree_through_the_session(tree_proposer: Any) -> None:
    context = Context(vocab_size=100, max_length=50, max_draft=6, max_requests=2)
    session = Session(tree_proposer, context, on_fault="raise")
    tree_proposer.draft, tree_proposer.parents = TREE
    out = session.step(["a"], [tokens(1)])
    assert out.parents is not None
    assert out.parents[0].tolist() == TREE[1]
    assert draft_of(out) == TREE[0]
    session.step(["a"], [tokens(1, 11, 21, 5)])
    assert (session.stats.drafted, session.stats.accepted) == (12, 2)


def test_a_tree_cut_to_its_ceiling_keeps_its_first_nodes(tree_proposer: Any) -> None:
    context = Context(vocab_size=100, max_length=50, max_draft=6, max_requests=2)
    session = Session(tree_proposer, context, controller=FixedLength(3), on_fault="raise")
    tree_proposer.draft, tree_proposer.parents = TREE
    assert draft_of(session.step(["a"], [tokens(1)])) == [10, 20, 11]
    session.step(["a"], [tokens(1, 11, 21, 5)])
    assert session.stats.accepted == 1, "node 21 was cut off"


@pytest.mark.parametrize(
    ("stop", "kept"),
    [
        (99, 6),
        (31, 6),
        (20, 3),
        (10, 1),
        (11, 5),
    ],  # 31 is a leaf; the first child of a stop token ends the draft
)
def test_nothing_is_drafted_after_a_stop_token_of_a_tree(
    stop: int, kept: int, tree_proposer: Any
) -> None:
    context = Context(vocab_size=100, max_length=50, max_draft=6, max_requests=2)
    session = Session(tree_proposer, context, on_fault="raise")
    tree_proposer.draft, tree_proposer.parents = TREE
    session.begin(Request("a", 1, frozenset({stop})), tokens(1))
    assert draft_of(session.step(["a"], [tokens(1)])) == TREE[0][:kept]


@pytest.mark.parametrize("rows", [1, 12], ids=["few", "many"])
@pytest.mark.parametrize(
    ("parents", "kept"),
    [([3] * 6, 0), ([-1, -2, 0, 1, 1, 2], 1), ([-1, 0, 2, 0, 1, 2], 2), ([-1, 0, 0, 0, 0, 99], 5)],
)
def test_a_tree_ends_before_a_node_that_hangs_on_none_before_it(
    parents: list[int], kept: int, rows: int, tree_proposer: Any
) -> None:
    """It ended the step of all requests with an IndexError, where there was a stop token or something was emitted."""
    context = Context(vocab_size=100, max_length=50, max_draft=6, max_requests=rows)
    session = Session(tree_proposer, context, on_fault="raise")
    tree_proposer.draft, tree_proposer.parents = TREE[0], parents
    session.begin(Request("0", 1, frozenset({10})), tokens(1))
    names = [str(row) for row in range(rows)]
    out = session.step(names, [tokens(1)] * rows)
    assert out.lengths.tolist() == [min(kept, 1), *[kept] * (rows - 1)]
    assert session.stats.clipped == rows
    session.step(names, [tokens(1, 10, 20, 31, 5)] * rows)


def test_a_tree_waits_for_a_preempted_request(tree_proposer: Any) -> None:
    context = Context(vocab_size=100, max_length=50, max_draft=6, max_requests=2)
    session = Session(tree_proposer, context, on_fault="raise")
    tree_proposer.draft, tree_proposer.parents = TREE
    session.step(["a"], [tokens(1)])
    tree_proposer.draft, tree_proposer.parents = [9, 9, 9, 9, 9, 9], [ROOT] * 6
    session.step(["b"], [tokens(1)])  # in the row, and so in the buffers, that a had
    tree_proposer.drafts = {"a": []}
    session.step(["a"], [tokens(1, 10, 20, 31, 5)])
    assert session.stats.accepted == 3


def test_buffers_hold_what_the_proposer_declares(proposer: Any, context: Context) -> None:
    out = Session(proposer, context).step(["a", "b"], [tokens(1), tokens(1)])
    assert out.parents is None
    assert out.draft_probs is None
    proposer.capabilities = Capabilities(sampled=True)
    out = Session(proposer, context).step(["a", "b"], [tokens(1), tokens(1)])
    assert out.draft_probs is not None
    assert out.draft_probs.shape == (2, 4, 100)


def test_the_counters_of_a_known_run(session: Session, proposer: Any) -> None:
    proposer.drafts = {"a": [7, 8, 9]}
    session.begin(Request("a", 1), tokens(1))
    session.begin(Request("b", 1), tokens(1))
    assert session.stats.mean_acceptance_length is None
    session.step(["a", "b"], [tokens(1), tokens(1)])  # 3 drafts for a
    proposer.drafts = {"b": [5]}
    session.step(["a", "b"], [tokens(1, 7, 8, 3), tokens(1, 4)])  # 2 accepted; 1 draft for b
    proposer.drafts = {}
    session.step(["b"], [tokens(1, 4, 5, 6)])  # 1 accepted
    session.finish("a")
    assert session.stats.as_dict() == {
        "steps": 3,
        "rows": 5,
        "drafted_rows": 2,
        "offered": 4,
        "drafted": 4,
        "accepted": 3,
        "emitted": 6,
        "started": 2,
        "finished": 1,
        "restarted": 0,
        "recycled": 0,
        "clipped": 0,
        "faults": 0,
        "acceptance_rate": 0.75,
        "mean_acceptance_length_drafted": 2.5,
        "mean_acceptance_length": 1.6,
    }


def test_a_restarted_request_is_not_judged_by_its_old_draft(
    session: Session, proposer: Any
) -> None:
    proposer.draft = [7, 8]
    session.step(["a"], [tokens(1, 2)])
    session.step(["a"], [tokens(7)])
    proposer.draft = []
    session.step(["a"], [tokens(7, 7, 8, 9)])
    assert session.stats.accepted == 2, "the draft after the restart, and only that"


def test_the_order_of_rows_does_not_change_drafts() -> None:
    context = Context(vocab_size=30, max_length=200, max_draft=6, max_requests=4)
    runs = [
        Session(SuffixProposer(context, SuffixSettings(0.1)), context, on_fault="raise")
        for _ in range(2)
    ]
    rng = np.random.default_rng(3)
    text = {
        n: np.tile(rng.integers(0, 30, 7 + i), 12).astype(np.int32) for i, n in enumerate("abcd")
    }
    drafted = 0
    for length in range(10, 60, 2):
        first = [n for n in "abcd" if rng.random() < 0.8]
        for run, names in zip(runs, (first, [*reversed(first)]), strict=True):
            out = run.step(names, [text[n][:length] for n in names])
            drafts = {n: draft_of(out, row) for row, n in enumerate(names)}
            if run is runs[0]:
                expected = drafts
        assert drafts == expected
        drafted += sum(map(len, drafts.values()))
        if length % 20 == 0:
            runs[0].finish_all("ab")
            runs[1].finish_all("ba")
    assert drafted > 100
    assert runs[0].stats == runs[1].stats


def test_a_proposer_that_writes_its_ceilings_is_held_to_what_they_were(
    session: Session, proposer: Any
) -> None:
    plain = proposer.propose

    def generous(slots: IntArray, ceilings: IntArray, out: Any) -> None:
        plain(slots, ceilings, out)
        ceilings[:] = out.lengths[:] = 1000

    proposer.propose, proposer.draft = generous, [7, 8, 9, 10]
    assert session.step(["a"], [tokens(1)]).lengths.tolist() == [4]
