"""Tree kernels and their slow twins agree to the last bit."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specplug.kernels import accept_tree as tree_kernels
from specplug.kernels import topology as topology_kernels
from specplug.reference import accept_tree as tree_reference
from specplug.reference import topology as topology_reference
from specplug.testing.strategies import laws

COINS = st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.6, 2 / 3, 0.75, 0.9, 1.0 - 2.0**-53])


@st.composite
def forests(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Parents and lengths of one to three rows; behind the lengths stands rubbish."""
    rows, nodes = draw(st.integers(1, 3)), draw(st.integers(0, 6))
    lengths = np.array([draw(st.integers(0, nodes)) for _ in range(rows)], np.int32)
    parents = np.full((rows, nodes), 99, np.int32)
    for row, length in enumerate(lengths):
        parents[row, :length] = [draw(st.integers(-1, node - 1)) for node in range(length)]
    return parents, lengths


@given(forest=forests())
def test_topology(forest: tuple[np.ndarray, np.ndarray]) -> None:
    parents, lengths = forest
    rows, nodes = parents.shape

    def described(module: ModuleType) -> list[Any]:
        arrays = [np.full((rows, n), 7, np.int32) for n in (nodes + 1, nodes, nodes)]
        mask = np.ones((rows, nodes + 1, nodes + 1), np.bool_)
        module.link_children(parents, lengths, *arrays[:2])
        module.node_depths(parents, lengths, arrays[2])
        module.ancestor_mask(parents, lengths, mask)
        return [a.tolist() for a in (*arrays, mask)]

    assert described(topology_kernels) == described(topology_reference)


@given(data=st.data())
def test_acceptance_of_trees(data: st.DataObject) -> None:
    parents, lengths = data.draw(forests())
    rows, nodes = parents.shape
    vocab_size = data.draw(st.integers(1, 3))

    def drawn(count: int) -> np.ndarray:
        flat = [data.draw(laws(vocab_size)) for _ in range(rows * count)]
        return np.array(flat).reshape(rows, count, vocab_size)

    target, draft = drawn(nodes + 1), drawn(nodes)
    tokens = np.array(
        [data.draw(st.integers(0, vocab_size - 1)) for _ in range(rows * nodes)], np.int32
    ).reshape(rows, nodes)
    coins = np.array([data.draw(COINS) for _ in range(rows * (nodes + 1))]).reshape(rows, -1)
    for place in np.ndindex(rows, nodes):
        if data.draw(st.booleans()):
            # As good as the target's own law: a rejection then leaves nothing, or a few last bits.
            parent = parents[place] if place[1] < lengths[place[0]] else -1
            draft[place] = target[place[0], parent + 1] * data.draw(
                st.sampled_from([1.0, 1 - 2**-50])
            )
        if draft[place][tokens[place]] == 0.0:
            tokens[place] = int(draft[place].argmax())

    def verdicts(module: ModuleType) -> list[Any]:
        found = []
        for function, inputs in [
            ("accept_tree_greedy", (target, tokens, parents, lengths)),
            ("accept_tree_one_hot", (target, tokens, parents, lengths, coins)),
            ("accept_tree_sampled", (target, draft, tokens, parents, lengths, coins)),
        ]:
            emitted, path = (
                np.full((rows, nodes + 1), 7, np.int32),
                np.full((rows, nodes), 7, np.int32),
            )
            getattr(module, function)(*inputs, emitted, path)
            found.append((function, emitted.tolist(), path.tolist()))
        return found

    assert verdicts(tree_kernels) == verdicts(tree_reference)
