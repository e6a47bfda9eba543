"""The store of finished outputs: an exact budget, eviction, tenants, and what enters it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from specplug.index.arrays import store_bytes, store_layout
from specplug.index.suffix import SuffixIndex
from specplug.kernels import layout
from specplug.types import Context

BUDGETS = [
    0,
    1,
    15,
    1000,
    1068,
    1500,
    2000,
    2048,
    3000,
    4096,
    10_000,
    65_536,
    100_001,
    10**6,
    2**24,
]


def phrase(number: int, length: int = 19) -> list[int]:
    """Tokens that occur in no other phrase."""
    return [100_000 * (number + 1) + place for place in range(length)]


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_store_takes_what_it_may_and_not_a_byte_more(budget: int) -> None:
    index = SuffixIndex(Context(100, 100, 4, 2), budget, 0.03)
    arrays = sum(array.nbytes for array in index.state.store)
    assert index.store_bytes == (arrays if budget >= 1256 else 0)
    assert index.store_bytes <= budget
    # A block of 16 tokens costs 260 bytes; no more than the next step of the tables may lie idle.
    assert budget < 1256 or budget - index.store_bytes < 260
    assert index.check_invariants() == ""


def test_bytes_are_foretold_for_every_budget() -> None:
    for budget in range(0, 40_000, 13):
        capacity, buckets = store_layout(budget)
        assert capacity == 0 or store_bytes(capacity, buckets) <= budget
        assert capacity % layout.BLOCK == 0
        assert buckets & (buckets - 1) == 0, "a power of two"


def test_a_larger_budget_never_holds_less_by_more_than_the_tables_growth() -> None:
    held = [store_layout(budget)[0] for budget in range(2000, 2**20, 1000)]
    assert all(after >= 0.7 * before for before, after in pairwise(held))
    assert held[-1] > 45_000, "47,000 to 55,000 tokens per MB, as the option's help says"


@pytest.mark.parametrize("budget", [1600, 3000, 20_000])
def test_the_bytes_never_change_however_much_is_stored(lists: Any, budget: int) -> None:
    index = lists(budget)
    before = index.index.store_bytes
    for number in range(120):
        index.store(phrase(number, 1 + number % 60))
        assert index.index.store_bytes == before <= budget
        assert index.index.check_invariants() == ""
    assert index.index.stored_tokens == len(index.index.state.store.tokens)


@pytest.mark.parametrize("length", [1, 15, 16, 40])
def test_eviction_costs_no_more_than_writing(lists: Any, length: int) -> None:
    """Old text goes by being overwritten: the cells that change are those of the new output, full ring or not."""
    index = lists(6000)
    store = index.index.state.store
    places = -(-(length + 1) // layout.BLOCK) * layout.BLOCK
    for number in range(60):
        before = [array.copy() for array in store]
        index.store(phrase(number, length))
        changed = [int((a != b).sum()) for a, b in zip(store, before, strict=True)]
        assert changed[0] <= places, "tokens"
        assert changed[1] <= places * layout.N_ORDERS, "links"
        assert changed[2] <= length * layout.N_ORDERS, "buckets"
        assert changed[3] <= places // layout.BLOCK, "namespaces"
    assert int(store.numbers[layout.S_END]) > len(store.tokens), "the ring has been full for long"


def test_without_a_budget_nothing_is_kept(lists: Any) -> None:
    index = lists(0)
    index.store(phrase(0))
    assert index.draft_after(phrase(0)[:4]) == []
    assert (index.index.stored_tokens, index.index.store_bytes) == (0, 0)
    assert index.index.check_invariants() == ""


def test_what_one_request_said_is_drafted_for_the_next(lists: Any) -> None:
    index = lists()
    index.store(phrase(0))
    assert index.draft_after(phrase(0)[:4]) == phrase(0)[4:12]
    assert index.draft_after(phrase(0)[10:14]) == phrase(0)[14:]


def test_only_output_is_kept_and_no_prompt(lists: Any) -> None:
    index = lists()
    index.start(phrase(0) + phrase(1), prompt=19)
    index.index.finish(0, True, frozenset())
    assert index.draft_after(phrase(0)[:4]) == []
    assert index.draft_after(phrase(1)[:4]) == phrase(1)[4:12]


def test_a_request_that_said_nothing_leaves_nothing(lists: Any) -> None:
    index = lists()
    index.start(phrase(0))
    index.index.finish(0, True, frozenset())
    assert index.index.stored_tokens == 0


def test_a_draft_does_not_run_into_the_next_output(lists: Any) -> None:
    index = lists()
    index.store(phrase(0, 6))
    index.store(phrase(1, 31))  # with its separator exactly two blocks
    index.store(phrase(2, 6))
    assert index.draft_after(phrase(0)[:4]) == phrase(0)[4:6]
    assert index.draft_after(phrase(1, 31)[25:28]) == phrase(1, 31)[28:]


def test_not_kept_means_no_trace(lists: Any) -> None:
    index = lists()
    before = [array.copy() for array in index.index.state.store]
    index.start([], slot=3)
    index.observe(phrase(0), slot=3)
    index.index.finish(3, False, frozenset())
    for array, was in zip(index.index.state.store, before, strict=True):
        np.testing.assert_array_equal(array, was)
    assert index.draft_after(phrase(0)[:4]) == []


def test_the_oldest_output_goes_and_the_newest_stays(lists: Any) -> None:
    index = lists(3000)
    assert len(index.index.state.store.tokens) == 128, "four outputs of 19 tokens and padding"
    for number in range(12):
        index.store(phrase(number))
        known = [index.draft_after(phrase(n)[3:5]) for n in range(number + 1)]
        alive = [n for n, draft in enumerate(known) if draft]
        assert alive == list(range(max(0, number - 3), number + 1))
        assert [known[n] for n in alive] == [phrase(n)[5:13] for n in alive]
        assert index.index.check_invariants() == ""


def test_an_output_longer_than_the_ring_keeps_its_end(lists: Any) -> None:
    index = lists(3000)
    index.store(phrase(0, 500))
    assert index.index.stored_tokens <= 128
    assert index.draft_after(phrase(0, 500)[490:492]) == phrase(0, 500)[492:]
    assert index.draft_after(phrase(0, 500)[300:304]) == []
    assert index.index.check_invariants() == ""


def test_an_output_is_cut_behind_its_first_stop_token(lists: Any) -> None:
    index = lists()
    output = [*phrase(0, 6), 7, *phrase(1, 6), 8, *phrase(2, 6)]
    index.store(output, stops=[8, 7])
    assert index.draft_after(phrase(0)[2:4]) == [*phrase(0)[4:6], 7]
    assert index.draft_after([7]) == []
    assert index.draft_after(phrase(1)[:3]) == []
    assert index.index.stored_tokens == 16


def test_a_stop_token_in_the_prompt_ends_no_output(lists: Any) -> None:
    index = lists()
    index.start([7, 5, 7, *phrase(0)], prompt=3)
    index.index.finish(0, True, frozenset({7}))
    assert index.draft_after(phrase(0)[:4]) == phrase(0)[4:12]


def test_an_output_with_a_separator_is_stored_around_it(lists: Any) -> None:
    index = lists()
    index.store([*phrase(0, 6), -1, *phrase(1, 6)])
    assert index.draft_after(phrase(0)[1:3]) == phrase(0)[3:6]
    assert index.draft_after(phrase(1)[1:3]) == phrase(1)[3:6]
    assert index.draft_after([-1]) == []


def test_one_tenants_text_is_never_drafted_for_another(lists: Any) -> None:
    index = lists()
    secret = phrase(0)
    index.store(secret, namespace="a")
    for start in range(len(secret) - 1):
        assert index.draft_after(secret[start : start + 4], namespace="b") == []
        assert index.draft_after(secret[start : start + 4]) == []
    assert index.draft_after(secret[:4], namespace="a") == secret[4:12]
    index.store([*secret[:6], 7], namespace="b")
    assert index.draft_after(secret[:4], namespace="b") == [*secret[4:6], 7]
    assert index.draft_after(secret[:4], namespace="a") == secret[4:12]


def test_a_common_namespace_serves_all_and_takes_nothing_from_them(lists: Any) -> None:
    index = lists(common="docs")
    index.store(phrase(0), namespace="a")
    index.store(phrase(1), namespace="docs")
    for namespace in ("", "a", "b", "docs"):
        assert index.draft_after(phrase(1)[:4], namespace=namespace) == phrase(1)[4:12]
    assert index.draft_after(phrase(0)[:4], namespace="docs") == []
    assert index.draft_after(phrase(0)[:4], namespace="b") == []
    assert index.draft_after(phrase(0)[:4], namespace="a") == phrase(0)[4:12]


def test_what_a_tenant_said_itself_comes_before_the_common_text(lists: Any) -> None:
    index = lists(common="")
    for _ in range(layout.ENOUGH):
        index.store([1, 2, 3, 4, 5], namespace="a")
    index.store([1, 2, 3, 4, 6])
    assert index.draft_after([1, 2, 3, 4], namespace="a") == [5]
    assert index.draft_after([1, 2, 3, 4], namespace="b") == [6]


def test_the_common_namespace_is_not_forgotten(lists: Any) -> None:
    """Of namespaces only so many are remembered; the one that all requests read is never the oldest."""
    index = lists(common="docs")
    index.index.namespaces._remembered = 3
    index.store(phrase(0), namespace="docs")
    for number in range(8):
        index.store(phrase(1 + number), namespace=f"t{number}")
        index.index.store_text(f"loaded {number}", np.array(phrase(30 + number), np.int32))
    index.store(phrase(20), namespace="docs")
    for number in (0, 20):
        assert index.draft_after(phrase(number)[:4], namespace="t7") == phrase(number)[4:12]


def test_copying_does_not_run_on_into_the_output_of_another_tenant(lists: Any) -> None:
    """The place where copying had got to went on by itself, over the separator into what a stranger had been told."""
    index = lists()
    index.store(phrase(0, 15), namespace="a")  # fills its block but for one separator
    index.store(phrase(1, 4), namespace="secret")
    index.start(phrase(0, 10), namespace="a")
    assert index.draft() == phrase(0, 15)[10:]
    index.observe(phrase(0, 15)[10:])
    for other in (5000, 5001, 5002):
        index.draft()
        index.observe([other])
        assert index.draft() == []


@pytest.mark.parametrize("common", [None, "2"])
def test_no_token_of_another_tenant_is_ever_drafted(lists: Any, common: str | None) -> None:
    """Three tenants say the same things, each in numbers of its own but for every third token."""
    rng = np.random.default_rng(3)
    index = lists(3000, common=common)
    motifs = rng.integers(0, 9, (6, 12))

    def says(tenant: int) -> list[int]:
        words = np.concatenate(motifs[rng.integers(0, 6, 3)])[: rng.integers(1, 36)]
        return np.where(np.arange(len(words)) % 3 == 0, words, words + 100 * (tenant + 1)).tolist()

    drafted = 0
    for number in range(150):
        tenant = number % 3
        index.start(says(tenant), namespace=str(tenant))
        readable = {tenant + 1, 0} | ({3} if common else set())
        for _ in range(4):
            draft = index.draft()
            drafted += len(draft)
            assert {token // 100 for token in draft} <= readable
            said = [*draft[: rng.integers(0, 9)], *says(tenant)[: rng.integers(1, 4)]]
            index.observe(said)
        index.index.finish(0, True, frozenset())
    assert drafted > 500


def test_tenants_that_share_every_bucket_stay_apart(lists: Any) -> None:
    # A tiny store has few buckets, so that the chains of all tenants are the same ones.
    index = lists(1600)
    for number in range(40):
        index.store([1, 2, 3, 4, 1000 + number], namespace=f"t{number}")
        for other in range(max(0, number - 3), number + 2):
            draft = index.draft_after([1, 2, 3, 4], namespace=f"t{other}")
            assert draft in ([], [1000 + other])
        assert index.draft_after([1, 2, 3, 4], namespace=f"t{number}") == [1000 + number]


def test_the_ring_goes_on_when_its_positions_exceed_32_bits(lists: Any) -> None:
    index = lists(3000)
    store = index.index.state.store
    store.numbers[layout.S_END] = 2**32 - 48
    for number in range(9):
        index.store(phrase(number))
        alive = [n for n in range(number + 1) if index.draft_after(phrase(n)[3:5])]
        assert alive == list(range(max(0, number - 3), number + 1))
        assert index.draft_after(phrase(number)[:4]) == phrase(number)[4:12]
    assert store.numbers[layout.S_END] > 2**32
    assert index.index.check_invariants() == ""
