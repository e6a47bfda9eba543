"""The longest earlier match over flat arrays: the compiled kernel and its slow twin agree to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.kernels import flat_match as fast
from specplug.reference import flat_match as slow

RARE = 2**31 - 1


class Pair:
    """The arrays of the kernel and the lists of the twin, told the same."""

    def __init__(self, rows: int, length: int, blocks: int) -> None:
        self.table = fast.Table(
            np.full((rows, length), 99, np.int32), *(np.zeros(rows, np.int32) for _ in range(3))
        )
        self.ring = fast.Ring(
            np.full(blocks * fast.BLOCK, fast.SEPARATOR, np.int32),
            np.zeros(blocks, np.int32),
            np.zeros(1, np.int64),
        )
        self.requests = [slow.Request([]) for _ in range(rows)]
        self.outputs = slow.Ring(blocks * fast.BLOCK)

    def put(self, row: int, tokens: list[int], namespace: int, limit: int) -> None:
        """A row holds this request from now on; behind its tokens stands what was there before."""
        self.table.tokens[row, : len(tokens)] = tokens
        self.table.lengths[row] = len(tokens)
        self.table.namespaces[row] = namespace
        self.table.limits[row] = limit
        self.requests[row] = slow.Request(tokens, namespace, limit)

    def append(self, rows: list[int], starts: list[int]) -> None:
        fast.append(self.ring, self.table, np.array(rows, np.int32), np.array(starts, np.int32))
        slow.append(self.outputs, self.requests, rows, starts)
        kept = [t for _, output, _ in self.outputs.outputs for t in output if t >= 0]
        age = self.ring.end[0] - len(self.ring.tokens)
        oldest_first = np.roll(self.ring.tokens, -(age % len(self.ring.tokens)))
        assert [int(t) for t in oldest_first if t >= 0] == kept

    def check(self, rows: list[int], sampled: list[int], rule: fast.Rule, width: int) -> Any:
        """The drafts, which must be equal."""
        drafts = np.full((len(rows), width), 7, np.int64)
        counts = np.full(len(rows), 7, np.int32)
        wanted = [[7] * width for _ in rows]
        lengths = [7] * len(rows)
        fast.look_up(
            *(self.table, self.ring, np.array(rows, np.int32), np.array(sampled, np.int32), rule),
            *(drafts, counts),
        )
        slow.look_up(self.requests, self.outputs, rows, sampled, rule, wanted, lengths)
        assert drafts.tolist() == wanted
        assert counts.tolist() == lengths
        return wanted


TOKENS = st.sampled_from([0, 1, 2, RARE, RARE - 1, -1, -2])
RULES = st.builds(
    fast.Rule, st.integers(1, 3), st.integers(1, 9), st.integers(0, 2), st.integers(0, 9)
)


@given(data=st.data())
def test_any_history_gives_the_same_drafts(data: st.DataObject) -> None:
    """Rows are used again, with longer and shorter texts; the ring is overwritten many times."""
    rows = data.draw(st.integers(1, 3))
    blocks = data.draw(st.integers(2, 4))
    length = 80
    pair = Pair(rows, length, blocks)
    rule = data.draw(RULES)
    width = data.draw(st.integers(0, 8))
    for _ in range(data.draw(st.integers(1, 6))):
        row = data.draw(st.integers(0, rows - 1))
        tokens = data.draw(st.lists(TOKENS, max_size=length))
        pair.put(row, tokens, data.draw(st.integers(0, 1)), data.draw(st.integers(0, 9)))
        if data.draw(st.booleans()):
            pair.append([row], [data.draw(st.integers(0, length))])
        batch = data.draw(st.lists(st.integers(0, rows - 1), unique=True))
        sampled = [data.draw(st.integers(0, 2)) for _ in batch]
        pair.check(batch, sampled, rule, width)


def random_pair(rng: np.random.Generator, rows: int, length: int, blocks: int) -> Pair:
    """Texts over few tokens, so that much repeats, and a ring that was overwritten."""
    pair = Pair(rows, length, blocks)
    for _ in range(int(rng.integers(0, 4))):
        fill_rows(rng, pair)
        chosen = rng.permutation(rows)[: rng.integers(0, min(rows, 6))].tolist()
        pair.append(chosen, rng.integers(0, length, len(chosen)).tolist())
    fill_rows(rng, pair)
    return pair


def fill_rows(rng: np.random.Generator, pair: Pair) -> None:
    rows, length = pair.table.tokens.shape
    kinds = int(rng.integers(1, 5))
    for row in range(rows):
        tokens = rng.integers(0, kinds, int(rng.integers(0, length + 1)))
        tokens[rng.random(len(tokens)) < 0.03] = -1
        tokens[tokens == 3] = RARE
        pair.put(row, tokens.tolist(), int(rng.integers(0, 2)), int(rng.integers(0, 12)))


def test_random_batches_give_the_same_drafts() -> None:
    rng = np.random.default_rng(8)
    drafted = 0
    for _ in range(100):
        rows = int(rng.integers(1, 48))
        pair = random_pair(rng, rows, int(rng.integers(1, 40)), int(rng.integers(2, 6)))
        rule = fast.Rule(*(int(rng.integers(*r)) for r in ((1, 4), (1, 12), (0, 3), (0, 9))))
        batch = rng.permutation(rows)[: rng.integers(1, rows + 1)].tolist()
        sampled = rng.integers(0, 3, len(batch)).tolist()
        found = pair.check(batch, sampled, rule, int(rng.integers(0, 9)))
        drafted += sum(any(draft) for draft in found)
    assert drafted > 100


RULE = fast.Rule(shortest=1, longest=8, growth=0, most=6)


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ([], []),
        ([5], []),
        ([5, 6], []),
        ([5, 5], [5, 5, 5, 5, 5, 5]),
        # Round and round where the text ends.
        ([1, 2, 3, 1], [2, 3, 1, 2, 3, 1]),
        # The longest match, not the most recent.
        ([7, 8, 9, 1, 1, 8, 2, 7, 8], [9, 1, 1, 8, 2, 7]),
        # Of equally long ones the most recent.
        ([8, 1, 8, 2, 8], [2, 8, 2, 8, 2, 8]),
        # A placeholder ends a draft and matches nothing.
        ([4, 5, -1, 4], [5]),
        ([4, -1, 3, -1], []),
        ([RARE, 3, RARE], [3, RARE, 3, RARE, 3, RARE]),
    ],
)
def test_worked_examples(text: list[int], draft: list[int]) -> None:
    pair = Pair(1, 16, 2)
    pair.put(0, text, 0, 99)
    assert pair.check([0], [1], RULE, 6) == [draft + [fast.PADDING] * (6 - len(draft))]


def test_own_text_goes_before_the_ring_and_longer_matches_before_both() -> None:
    pair = Pair(1, 64, 4)
    pair.put(0, [50, 1, 2, 3, 9, 9], 0, 99)
    pair.append([0], [1])
    pair.put(0, [2, 4, 4, 2], 0, 99)
    assert pair.check([0], [1], RULE, 3) == [[4, 4, 2]]
    pair.put(0, [2, 4, 1, 2], 0, 99)
    assert pair.check([0], [1], RULE, 6) == [[3, 9, 9, 0, 0, 0]]
    pair.put(0, [2, 4, 1, 2], 1, 99)
    assert pair.check([0], [1], RULE, 3) == [[4, 1, 2]], "another tenant's text was drafted"


def test_a_draft_is_as_long_as_the_rule_allows() -> None:
    pair = Pair(1, 64, 2)
    pair.put(0, [1, 2, 3, 4, 5, 6, 1, 2], 0, 99)
    for rule, count in (
        (RULE, 6),
        (RULE._replace(growth=1), 2),
        (RULE._replace(growth=2), 4),
        (RULE._replace(most=3), 3),
        (RULE._replace(most=0), 0),
        (RULE._replace(shortest=3), 0),
    ):
        [draft] = pair.check([0], [1], rule, 8)
        assert sum(token != 0 for token in draft) == count, rule
    assert pair.check([0], [0], RULE, 2) == [[0, 0]], "drafted in prefill"
    assert pair.check([0], [1], RULE, 0) == [[]]
    pair.put(0, [1, 2, 3, 1, 2], 0, 1)
    assert pair.check([0], [1], RULE, 3) == [[3, 0, 0]]


def test_the_ring_keeps_within_its_arrays_and_forgets_the_oldest() -> None:
    pair = Pair(1, 200, 3)
    for first in range(0, 1000, 40):
        pair.put(0, list(range(first, first + 20)), 0, 99)
        pair.append([0], [0])
    pair.put(0, [7, 985 - 20], 0, 99)
    assert pair.check([0], [1], RULE, 2) == [[966, 967]]
    pair.put(0, [7, 5], 0, 99)
    assert pair.check([0], [1], RULE, 2) == [[0, 0]]
    # An output longer than the ring keeps its end.
    pair.put(0, list(range(2000, 2200)), 0, 99)
    pair.append([0], [0])
    assert sorted(pair.ring.tokens.tolist()) == [-1] * 16 + list(range(2168, 2200))
