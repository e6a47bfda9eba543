"""Draft trees: small cases worked out by hand."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from specplug.errors import InvalidDistributionError, InvalidRequestError
from specplug.kernels import accept_tree as kernels
from specplug.reference import accept_tree as reference
from specplug.verify.tree import greedy_tree, lay_out, reject_tree_one_hot, reject_tree_sampled

#       root
#      /    \
#     0      3
#    / \      \
#   1   2      4
PARENTS = np.array([[-1, 0, 0, -1, 3]])
TOKENS = np.array([[1, 0, 2, 2, 1]])
FULL = np.array([5])


def scores(*best: int) -> np.ndarray:
    """One-hot scores whose maxima are ``best``, at the root and after every node."""
    return np.eye(3)[list(best)][None]


def test_layout_of_the_tree_drawn_above() -> None:
    layout = lay_out(PARENTS, FULL)
    assert layout.depths.tolist() == [[1, 2, 2, 1, 2]]
    assert layout.first_child.tolist() == [[0, 1, -1, -1, 4, -1]]
    assert layout.next_sibling.tolist() == [[3, 2, -1, -1, -1]]
    assert layout.mask[0].astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 0, 0, 0, 1, 0],
        [1, 0, 0, 0, 1, 1],
    ]


def test_layout_ends_at_the_length() -> None:
    layout = lay_out(PARENTS, np.array([1]))
    assert layout.depths.tolist() == [[1, 0, 0, 0, 0]]
    assert layout.first_child.tolist() == [[0, -1, -1, -1, -1, -1]]
    assert layout.next_sibling.tolist() == [[-1] * 5]
    assert layout.mask[0].sum() == 3


@pytest.mark.parametrize(
    ("best", "path", "emitted"),
    [
        ((1, 2, 0, 0, 0, 0), [0, 2], [1, 2, 0]),
        ((1, 1, 0, 0, 0, 0), [0], [1, 1]),
        ((2, 0, 0, 0, 1, 2), [3, 4], [2, 1, 2]),
        ((0, 0, 0, 0, 0, 0), [], [0]),
    ],
)
def test_greedy_follows_one_branch(
    best: tuple[int, ...], path: list[int], emitted: list[int]
) -> None:
    verdict = greedy_tree(scores(*best), TOKENS, PARENTS, FULL)
    assert verdict.row(0) == emitted
    assert verdict.accepted.tolist() == [len(path)]
    assert verdict.path[0].tolist() == path + [-1] * (5 - len(path))


def test_greedy_follows_the_first_of_equal_siblings() -> None:
    verdict = greedy_tree(scores(1, 0, 2), np.array([[1, 1]]), np.array([[-1, -1]]), np.array([2]))
    assert verdict.path.tolist() == [[0, -1]]
    assert verdict.row(0) == [1, 0]


def test_siblings_share_out_the_mass_of_their_elders() -> None:
    target = np.tile([0.5, 0.25, 0.25], (1, 3, 1))
    tokens, parents = np.array([[0, 1]]), np.array([[-1, -1]])

    def emitted(*coins: float) -> list[int]:
        return reject_tree_one_hot(target, tokens, parents, [2], np.array([coins])).row(0)

    assert emitted(0.49, 0.9, 0.0) == [0, 0]
    assert emitted(0.5, 0.49, 0.6) == [1, 1]
    assert emitted(0.5, 0.5, 0.0) == [2]


def test_a_repeated_sibling_has_no_mass_the_second_time() -> None:
    target = np.tile([0.5, 0.5], (1, 3, 1))
    coins = np.array([[0.9, 0.0, 0.0]])
    verdict = reject_tree_one_hot(target, np.array([[0, 0]]), np.array([[-1, -1]]), [2], coins)
    assert verdict.row(0) == [1]


def test_drawn_siblings_are_judged_against_what_their_elders_left() -> None:
    # left = (0.2, 0.8); elder from (1, 0): kept below 0.2; else left = (0, 0.8) normalised: (0, 1).
    target = np.tile([0.2, 0.8], (1, 3, 1))
    laws = np.array([[[1.0, 0.0], [0.5, 0.5]]])

    def emitted(token: int, *coins: float) -> list[int]:
        tokens, parents = np.array([[0, token]]), np.array([[-1, -1]])
        return reject_tree_sampled(target, laws, tokens, parents, [2], np.array([coins])).row(0)

    assert emitted(1, 0.19, 0.0, 0.3) == [0, 1]
    assert emitted(1, 0.2, 0.99, 0.1) == [1, 0]
    assert emitted(0, 0.2, 0.0, 0.0) == [1]


def judged(
    module: ModuleType, function: str, *laws: list[list[float]], coins: list[float]
) -> list[int]:
    """What a kernel, or its twin, emits for node 0 and its children 1 and 2, all of them drafting 0, 0, 1."""
    emitted, path = np.full((1, 4), -1, np.int32), np.full((1, 3), -1, np.int32)
    drafts = np.array([[0, 0, 1]], np.int32), np.array([[-1, 0, 0]], np.int32)
    arrays = (np.array([law]) for law in laws)
    length, chances = np.array([3], np.int32), np.array([coins])
    getattr(module, function)(*arrays, *drafts, length, chances, emitted, path)
    return [token for token in emitted[0].tolist() if token >= 0]


#: A coin of 1 stands for a product that rounds up to the whole mass; the wrappers never let it in.
LATE = [0.0, 1.0, 1.0]
both = pytest.mark.parametrize("module", [kernels, reference])


@both
@pytest.mark.parametrize(("coin", "token"), [(0.1, 0), (0.9, 1)])
def test_no_mass_left_falls_back_to_the_target_at_that_node(
    module: ModuleType, coin: float, token: int
) -> None:
    # At the root and after the last node stand other laws: the fallback must look where the walk ended.
    target = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    emitted = judged(module, "accept_tree_one_hot", target, coins=[*LATE, coin])
    assert emitted == [0, token]


@both
@pytest.mark.parametrize(("coin", "token"), [(0.1, 0), (0.8, 2)])
def test_no_mass_left_by_drawn_siblings_falls_back_to_the_target(
    module: ModuleType, coin: float, token: int
) -> None:
    # Left after the elder child, (0, 0.5, 0.5) normalised, is the law of the younger: nothing remains of it.
    target = [[1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    laws = [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    emitted = judged(module, "accept_tree_sampled", target, laws, coins=[*LATE, coin])
    assert emitted == [0, token]


@both
def test_what_a_drawn_sibling_leaves_is_normalised(module: ModuleType) -> None:
    # Left after the elder child is (0, 0.2, 0.3) / 0.5; the younger, drawn from (0, 0.8, 0.2), is kept below 0.5.
    target = [[1.0, 0.0, 0.0], [0.5, 0.2, 0.3], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    laws = [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.8, 0.2]]
    for coin, emitted in [(0.49, [0, 1, 2]), (0.51, [0, 2])]:
        got = judged(module, "accept_tree_sampled", target, laws, coins=[0.0, 1.0, coin, 0.5])
        assert got == emitted


@pytest.mark.parametrize(("node", "parent"), [(0, 0), (1, 1), (1, 2), (2, -2)])
def test_parents_must_come_first(node: int, parent: int) -> None:
    parents = PARENTS.copy()
    parents[0, node] = parent
    message = rf"parents\[0, {node}\] is {parent}, expected -1 .* or a node before {node}"
    with pytest.raises(InvalidRequestError, match=message):
        greedy_tree(scores(0, 0, 0, 0, 0, 0), TOKENS, parents, FULL)
    with pytest.raises(InvalidRequestError, match=message):
        lay_out(parents, FULL)
    lay_out(parents, np.array([node]))


@pytest.mark.parametrize("parents", [PARENTS[0], PARENTS[:, :4], PARENTS.astype(float)])
def test_malformed_parents(parents: np.ndarray) -> None:
    with pytest.raises(InvalidRequestError, match="parents must"):
        greedy_tree(scores(0, 0, 0, 0, 0, 0), TOKENS, parents, FULL)


def test_layout_needs_rows() -> None:
    with pytest.raises(InvalidRequestError, match=r"shape \[rows, nodes\], got \(5,\)"):
        lay_out(PARENTS[0], FULL)


@pytest.mark.parametrize(
    ("laws", "message"),
    [
        (np.full((1, 5, 4), 0.25), "draft_probs has 4 tokens and target_probs 3"),
        (np.full((1, 4, 3), 1 / 3), r"draft_probs must have the shape \[1, 5, vocabulary\]"),
        (np.full((1, 5, 3), 0.5), r"draft_probs\[0, 0\] sums to 1.5"),
        (
            np.tile([0.5, 0.5, 0.0], (1, 5, 1)),
            r"draft_probs\[0, 2, 2\] is 0, but tokens\[0, 2\] is that very token",
        ),
    ],
)
def test_malformed_draft_laws(laws: Any, message: str) -> None:
    target, coins = np.full((1, 6, 3), 1 / 3), np.zeros((1, 6))
    with pytest.raises(InvalidDistributionError, match=message):
        reject_tree_sampled(target, laws, TOKENS, PARENTS, FULL, coins)


def test_what_lies_behind_the_last_node_is_not_looked_at() -> None:
    laws = np.full((1, 5, 3), 1 / 3)
    laws[0, 3:] = np.nan
    target, coins = np.full((1, 6, 3), 1 / 3), np.zeros((1, 6))
    verdict = reject_tree_sampled(target, laws, TOKENS, PARENTS, [3], coins)
    assert verdict.row(0)[:2] == [1, 0]
