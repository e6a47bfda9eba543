"""The brute-force check is silent on every state that operations make, and names what a hand has broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specplug.index import arrays
from specplug.kernels import layout
from specplug.kernels.layout import State


@pytest.fixture
def busy(lists: Any) -> Any:
    """Slots 0 and 1 hold two and three pages, slots 2 and 3 none; the store has two outputs."""
    index = lists(3000)
    index.store(list(range(40)))
    index.store(list(range(50, 70)))
    index.start(list(range(100)), slot=0)
    index.start(list(range(30)) * 5, slot=1)
    assert index.index.check_invariants() == ""
    return index


def _set(array: np.ndarray, place: Any, value: Any) -> None:
    array[place] = value


def page(state: State, slot: int, number: int = 0) -> int:
    return int(state.slots.pages[slot, number])


Corruption = Callable[[State], None]
CORRUPTIONS: dict[str, tuple[Corruption, str]] = {
    "shared page": (
        lambda s: _set(s.slots.pages, (1, 1), page(s, 0, 0)),
        r"page \d+ belongs to slots 0 and 1",
    ),
    "page of nowhere": (
        lambda s: _set(s.slots.pages, (0, 1), len(s.slots.free)),
        r"slot 0 holds page \d+, but there are \d+",
    ),
    "page freed twice": (
        lambda s: _set(s.slots.free, 0, s.slots.free[1]),
        "a page stands twice in the free stack",
    ),
    "free page in use": (
        lambda s: _set(s.slots.free, 0, page(s, 1, 2)),
        r"page \d+ is free and belongs to slot 1",
    ),
    "lost page": (
        lambda s: _set(s.slots.free_count, 0, s.slots.free_count[0] - 1),
        "1 pages are neither free nor in use",
    ),
    "lost stream": (
        lambda s: _set(s.slots.numbers, (1, layout.N_LENGTH), 0),
        "3 pages are neither free nor in use",
    ),
    "linked beyond the end": (
        lambda s: _set(s.slots.numbers, (0, layout.N_INDEXED), 101),
        "slot 0 has linked 101 positions of 100 tokens",
    ),
    "link forwards": (
        lambda s: _set(s.slots.links, (page(s, 1, 1) * layout.PAGE + 6, 1), 71),
        "slot 1, order 2: position 70 links to a later one",
    ),
    "link to itself": (
        lambda s: _set(s.slots.links, (page(s, 0) * layout.PAGE + 5, 0), 5),
        "slot 0, order 1: position 5 links to a later one",
    ),
    "negative link": (
        lambda s: _set(s.slots.links, (page(s, 0) * layout.PAGE + 9, 2), -4),
        "slot 0, order 4: position 9 links to -4",
    ),
    "bucket beyond the end": (
        lambda s: _set(s.slots.heads, (page(s, 0, 1), 2, 3), 100),
        "slot 0: a bucket points to 100, but 100 positions are linked",
    ),
    "last place of a token": (
        lambda s: _set(s.slots.recent[0, :, 1], s.slots.recent[0, :, 0] == 5, 7),
        "slot 0: token 5 stands last at 5, but at 7 according to the table of last places",
    ),
    "store off its blocks": (
        lambda s: _set(s.store.numbers, layout.S_END, s.store.numbers[layout.S_END] + 3),
        "the store ends at 99, which is no multiple of 16",
    ),
    "output without an end": (
        lambda s: _set(s.store.tokens, int(s.store.numbers[layout.S_END] - 1) % 128, 7),
        "the last output of the store has no separator",
    ),
    "store link too long": (
        lambda s: _set(s.store.links, (20, 0), 21),
        "store, order 1: position 20 links 21 places back",
    ),
    "store bucket beyond the end": (
        lambda s: _set(s.store.heads, (1, 0), 96),
        "store, order 2: a bucket points to 96, but the store ends at 96",
    ),
    "lost request": (
        lambda s: _set(s.slots.running, 0, 1),
        "2 slots are somebody's, but 1 are counted",
    ),
    "more shown than said": (
        lambda s: _set(s.slots.numbers, (0, layout.N_SHOWN), 101),
        "slot 0 shows 101 of 100 tokens",
    ),
    "gap in a row of running answers": (
        lambda s: _set(s.slots.live, (0, 5, 1), layout.LIVE + 7),
        "a row of the running answers has a gap or a place twice",
    ),
    "place twice in a row of running answers": (
        lambda s: _set(s.slots.live, (0, 5, slice(0, 2)), layout.LIVE + 7),
        "a row of the running answers has a gap or a place twice",
    ),
    "running answer of nowhere": (
        lambda s: _set(s.slots.live, (1, 5, 0), layout.LIVE + (4 << layout.LIVE_BITS) + 7),
        "a row of the running answers names a slot that does not exist",
    ),
    "weights not finite": (
        lambda s: _set(s.model.weights, (0, 0, 1, 2), np.nan),
        "model array 'weights' holds a value that is not finite",
    ),
    "more hits than trials": (
        lambda s: _set(s.model.by_token, 77, (3.0, 2.0)),
        "table 'by_token' counts more hits than trials",
    ),
    "negative trials": (
        lambda s: _set(s.model.cells, (0, 1, 5), (-2.0, -1.0)),
        "table 'cells' counts more hits than trials",
    ),
}


@pytest.mark.parametrize("kind", sorted(CORRUPTIONS))
def test_a_corruption_is_named(busy: Any, kind: str) -> None:
    corrupt, message = CORRUPTIONS[kind]
    corrupt(busy.index.state)
    found = busy.index.check_invariants()
    assert found, "the check has not noticed"
    assert pytest.raises(AssertionError, match=message).matches(AssertionError(found)), found


@pytest.mark.parametrize("first_pages", [1, 4096])
def test_a_long_mixed_life_breaks_nothing(
    lists: Any, monkeypatch: pytest.MonkeyPatch, first_pages: int
) -> None:
    monkeypatch.setattr(arrays, "FIRST_PAGES", first_pages)
    rng = np.random.default_rng(11)
    index = lists(4000)
    lengths: dict[int, int] = {}
    for _ in range(300):
        slot = int(rng.integers(0, 4))
        if slot not in lengths:
            prompt = rng.integers(-1, 6, rng.integers(0, 150)).tolist()
            index.start(prompt, slot, namespace=str(rng.integers(0, 2)))
            lengths[slot] = len(prompt)
        else:
            draft = index.draft(slot, int(rng.integers(0, 9)))
            assert all(token >= 0 for token in draft)
            emitted = [*draft[: rng.integers(0, 9)], int(rng.integers(-1, 6))]
            index.observe(emitted, slot)
            lengths[slot] += len(emitted)
        if rng.random() < 0.05:
            index.index.finish(slot, bool(rng.random() < 0.7), frozenset({5}))
            del lengths[slot]
        assert index.index.check_invariants() == ""
    assert int(index.index.state.store.numbers[layout.S_OUTPUTS]) > 3
