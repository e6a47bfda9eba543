"""What the index drafts as a tree: the chain, and beside it what else followed the same words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specplug import registry
from specplug.errors import SettingsError
from specplug.index.suffix import SuffixIndex
from specplug.types import Capabilities, Context, DraftBuffers, Observed, allocate_drafts

WIDTH = 8
TREES = Capabilities(trees=True)
ROWS = np.zeros(1, np.int32)


def drafted(index: SuffixIndex, ceiling: int = WIDTH, trees: bool = True) -> DraftBuffers:
    out = allocate_drafts(1, WIDTH, 1, TREES if trees else None)
    index.draft(ROWS, np.array([ceiling], np.int32), out)
    return out


def paths(out: DraftBuffers) -> set[tuple[int, ...]]:
    """Every node as the tokens from the root to it."""
    assert out.parents is not None
    found: list[tuple[int, ...]] = []
    for node in range(int(out.lengths[0])):
        parent = int(out.parents[0, node])
        assert -1 <= parent < node
        found.append((*(found[parent] if parent >= 0 else ()), int(out.tokens[0, node])))
    assert len(set(found)) == len(found), "siblings repeat a token"
    return set(found)


def with_history(history: list[int], cost: float = 0.001) -> SuffixIndex:
    index = SuffixIndex(Context(1000, 4096, WIDTH, 2), 0, cost)
    index.start(0, "", len(history), np.array(history, np.int32))
    return index


#: After 1, 2 came 10, 11, 12 and, later, 20, 21, 22.
FORK = [1, 2, 10, 11, 12, 5, 1, 2, 20, 21, 22, 6, 1, 2]


def test_both_continuations_are_drafted() -> None:
    found = paths(drafted(with_history(FORK)))
    assert {(10, 11), (20, 21)} <= found
    assert len(found) == WIDTH


def test_nodes_stand_in_the_order_of_their_survival() -> None:
    out = drafted(with_history(FORK))
    worth = out.survival[0, : int(out.lengths[0])].tolist()
    assert worth == sorted(worth, reverse=True)
    assert 0 < worth[-1] <= worth[0] <= 1


@pytest.mark.parametrize("ceiling", [0, 1, 2, 5])
def test_no_more_nodes_than_allowed(ceiling: int) -> None:
    out = drafted(with_history(FORK), ceiling)
    assert int(out.lengths[0]) == ceiling == len(paths(out))


def test_the_dearer_a_node_the_smaller_the_tree() -> None:
    sizes = [int(drafted(with_history(FORK, cost)).lengths[0]) for cost in (0.001, 0.1, 0.3, 2.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == WIDTH
    assert sizes[-1] == 0


def test_where_one_thing_follows_the_tree_is_the_chain() -> None:
    text = list(range(100, 140))
    out = drafted(with_history(text + text[:6]))
    chain = drafted(with_history(text + text[:6]), trees=False)
    assert out.tokens.tolist() == chain.tokens.tolist()
    assert out.survival.tolist() == chain.survival.tolist()
    assert out.parents is not None
    assert out.parents[0].tolist() == list(range(-1, WIDTH - 1))


def test_trees_and_chains_may_be_asked_for_in_turn() -> None:
    """The parents of one call are not written by the next one."""
    index = with_history(FORK)
    tree = drafted(index)
    assert tree.parents is not None
    before = tree.parents.copy()
    chain = drafted(index, trees=False)
    assert chain.parents is None
    assert tree.parents.tolist() == before.tolist()
    assert paths(drafted(index)) == paths(tree)


def test_what_a_branch_said_is_not_learned_as_if_the_chain_had_said_it() -> None:
    """The chain's second token was ranked behind its first; after another first token it says nothing."""
    index = with_history(FORK)
    out = drafted(index)
    assert int(out.tokens[0, 0]) in (10, 20)
    other = [20, 21, 22] if int(out.tokens[0, 0]) == 10 else [10, 11, 12]
    before = index.state.model.numbers[0, 2]
    index.observe(Observed(ROWS, np.array([0, 3]), np.array(other, np.int32)))
    index.learn()
    assert index.state.model.numbers[0, 2] - before == 1


def test_parents_of_the_wrong_type_are_refused() -> None:
    out = allocate_drafts(1, WIDTH, 1, TREES)
    assert out.parents is not None
    wrong = out._replace(parents=out.parents.astype(np.int64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="draft buffer 'parents' must be a contiguous"):
        with_history(FORK).draft(ROWS, np.array([4], np.int32), wrong)


def test_the_option_makes_a_proposer_of_trees() -> None:
    context = Context(1000, 4096, WIDTH, 2)
    assert registry.build("suffix", context, {"tree": True}).capabilities.trees
    assert not registry.build("suffix", context, {}).capabilities.trees
    assert registry.build("hybrid", context, {"tree": True}).capabilities.trees


def test_trees_do_not_compete_with_datastores(tmp_path: Path) -> None:
    from specplug.datastore.writer import Writer

    with Writer(tmp_path, 1000) as writer:
        writer.add(np.arange(50, dtype=np.int32))
        writer.publish({})
    options = {"tree": True, "datastore": str(tmp_path)}
    with pytest.raises(SettingsError, match="'tree' goes without a datastore"):
        registry.build("hybrid", Context(1000, 4096, WIDTH, 2), options)
