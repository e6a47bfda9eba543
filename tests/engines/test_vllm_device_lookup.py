"""The Triton kernels of look-ups on the device, in Triton's interpreter, against the CPU kernel: equal bits.

Needs Triton and torch, which vLLM brings, but no engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specplug.adapters.device import lookup as lookup_module
from specplug.adapters.device.lookup import (
    BLOCK,
    DeviceLookup,
    LookupSettings,
    Tiles,
    blocks_within,
    check,
)
from specplug.errors import SettingsError
from specplug.kernels import flat_match

from .three_lookups import BLOCK_MB, SMALL, Three, play, random_three
from .three_lookups import interpreted as interpreted

RARE = 2**31 - 1
RULE = flat_match.Rule(shortest=1, longest=8, growth=0, most=6)


pytestmark = pytest.mark.usefixtures("interpreted")


def test_random_histories_give_equal_drafts() -> None:
    rng = np.random.default_rng(80)
    assert sum(play(rng, random_three(rng, 256)) for _ in range(16)) > 2000


@pytest.mark.long
def test_a_hundred_thousand_random_histories_give_equal_drafts() -> None:
    rng = np.random.default_rng(81)
    done = 0
    while done < 100_000:
        done += play(rng, random_three(rng, int(rng.choice([1, 7, 256, 1024]))))
    print(f"{done} random cases, all equal")


TOKENS = st.sampled_from([0, 1, 2, RARE, RARE - 1, -1, -2])


@given(data=st.data())
def test_edge_cases_give_equal_drafts(data: st.DataObject) -> None:
    """Empty histories, of one token, rows used again by longer and shorter ones, no room for a draft."""
    rows = data.draw(st.integers(1, 3))
    rule = data.draw(
        st.builds(
            *(flat_match.Rule, st.integers(1, 3), st.integers(3, 9)),
            *(st.integers(0, 2), st.integers(0, 9)),
        )
    )
    three = Three(rows, 24, 4, rule, data.draw(st.sampled_from([0, 1, 2, 5, 8])), SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        row = data.draw(st.integers(0, rows - 1))
        tokens = data.draw(st.lists(TOKENS, max_size=24))
        three.put(row, tokens, data.draw(st.integers(0, 1)), data.draw(st.integers(0, 9)))
        three.send([row])
        if data.draw(st.booleans()):
            three.append([row], [data.draw(st.integers(0, 24))])
        batch = data.draw(st.lists(st.integers(0, rows - 1), unique=True))
        three.check(batch, [data.draw(st.integers(0, 2)) for _ in batch])


def test_the_size_of_tiles_changes_no_draft() -> None:
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 3, (5, 100)).tolist()
    drafts = []
    for tiles in (
        *(Tiles(2, 32, 1, 64, 32, 4), Tiles(), Tiles(8, 128, 2, 1024, 16, 2), SMALL),
        *(Tiles(ring_span=16, ring_programs=most) for most in (1, 3)),
    ):
        three = Three(5, 100, 10, RULE, 6, tiles)
        for row, text in enumerate(tokens):
            three.put(row, text, 0, 9)
        three.send(list(range(5)))
        three.append([3, 1, 4], [0, 20, 99])
        drafts.append(three.check([2, 0, 4], [1, 1, 1]))
    assert all(each == drafts[0] for each in drafts)
    assert any(any(row) for row in drafts[0])


def test_an_output_over_the_end_of_the_ring_is_found_and_drafted_across_it() -> None:
    three = Three(1, 60, 4, RULE, 4, SMALL)
    for first, length in ((100, 40), (500, 30)):
        three.put(0, list(range(first, first + length)), 0, 9)
        three.send([0])
        three.append([0], [0])
    # The token 516 stands at place 0.
    for last in range(511, 520):
        three.put(0, [last - 2, last - 1, last], 0, 9)
        three.send([0])
        assert three.check([0], [1]) == [[last + 1, last + 2, last + 3, last + 4]]


@pytest.mark.parametrize("backwards", [False, True])
def test_more_outputs_at_once_than_the_ring_holds_leave_the_newest(
    monkeypatch: pytest.MonkeyPatch, backwards: bool
) -> None:
    """Programs of one launch run in any order, so what a later output overwrites must not be written at all."""
    if backwards:
        from triton.runtime.interpreter import InterpreterBuilder

        forwards = InterpreterBuilder.set_grid_idx

        def set_grid_idx(self: Any, *place: int) -> None:
            forwards(self, *(n - 1 - i for n, i in zip(self.grid_dim, place, strict=True)))

        monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", set_grid_idx)
    three = Three(8, 60, 4, RULE, 4, SMALL)
    for row in range(8):
        three.put(row, list(range(100 * row, 100 * row + 40)), 0, 9)
    three.send(list(range(8)))
    three.append(list(range(8)), [0] * 8)
    three.put(0, [5, 738], 0, 9)
    three.send([0])
    assert three.check([0], [1]) == [[739, 0, 0, 0]]


def test_the_ring_stays_within_its_budget() -> None:
    tokens, lengths = torch.zeros((2, 8), dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    for store_mb in (4.0, 1.0, 4 * BLOCK_MB, 0.01):
        lookup = DeviceLookup(tokens, lengths, 2, 4, LookupSettings(store_mb))
        assert lookup.keeps
        budget = store_mb * 2**20
        assert budget - 68 < lookup.memory()["ring"] <= budget
    for too_small in (0.0, 3 * BLOCK_MB):
        lookup = DeviceLookup(tokens, lengths, 2, 4, LookupSettings(too_small))
        assert not lookup.keeps
        lookup.append([0], [0])
        assert lookup.look_up(lengths, lengths, 4).tolist() == [[0] * 4] * 2
        assert lookup.appended == 0
    assert (*(flat_match.BLOCK, flat_match.PADDING, flat_match.SEPARATOR),) == (
        BLOCK,
        lookup_module.PADDING,
        lookup_module.SEPARATOR,
    )
    # 4 MB hold what the option says of each.
    assert blocks_within(1.0) * BLOCK // 1000 == 246


def test_warming_up_leaves_no_trace() -> None:
    three = Three(2, 24, 4, RULE, 4, SMALL)
    three.lookup.warm()
    assert three.lookup.appended == 0
    three.put(0, [1, 2, 1], 0, 4)
    three.send([0])
    three.append([0], [0])
    assert three.check([0, 1], [1, 1]) == [[2, 1, 2, 1], [0] * 4]


def test_wrong_options_and_tensors_are_refused() -> None:
    assert check({"store_mb": 1.5, "shortest": 2}, "lookup").longest == 16
    with pytest.raises(SettingsError, match="shortest is 9, more than longest, 8"):
        check({"shortest": 9, "longest": 8}, "lookup")
    with pytest.raises(SettingsError, match=r"unknown option 'stor_mb'.*store_mb"):
        check({"stor_mb": 1}, "lookup")
    lengths = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"tokens: an int32 tensor of 2 .* got torch.int64"):
        DeviceLookup(torch.zeros((2, 8), dtype=torch.int64), lengths, 2, 4)
    tokens = torch.zeros((2, 8), dtype=torch.int32)
    with pytest.raises(ValueError, match=r"lengths: .*shape \(2, 8\)"):
        DeviceLookup(tokens, tokens, 2, 4)
