"""Draft trees keep the law, exactly: deterministic nodes, nodes drawn with and without replacement, greedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from specplug.session import Session
from specplug.testing import strategies
from specplug.testing.law import Arrival, Scenario, check_law
from specplug.testing.paths import Oracle
from specplug.testing.targets import MarkovTarget, SampledTarget
from specplug.testing.toys_sampled import SampledTreeProposer, TreeProposer
from specplug.testing.tree_verifiers import GREEDY_TREE, ONE_HOT_TREE, SAMPLED_TREE
from specplug.types import Context


@st.composite
def shapes(draw: st.DrawFn, nodes: int) -> tuple[int, ...]:
    """Parents of a forest of up to ``nodes`` nodes, each before its children."""
    count = draw(st.sampled_from([2, 3, nodes, nodes - 1, 1, 0]))
    return tuple(draw(st.integers(-1, node - 1)) for node in range(count))


def drawn_target(data: st.DataObject, vocab_size: int, greedy: bool) -> SampledTarget:
    target = data.draw(strategies.markov_targets(vocab_size), label="target")
    kinds = [s for s in strategies.SAMPLING if (s[0] == 0.0) == greedy]
    return SampledTarget(
        target, *data.draw(st.sampled_from(kinds), label="temperature, top_k, top_p")
    )


def scenario_of(data: st.DataObject, vocab_size: int, limit: int) -> Scenario:
    stops = data.draw(st.frozensets(st.integers(0, vocab_size - 1), max_size=1), label="stops")
    return Scenario((Arrival((1, 0), limit, stops, tell_limit=False),))


@pytest.mark.parametrize("verifier", [GREEDY_TREE, ONE_HOT_TREE], ids=lambda v: v.name)
@given(data=st.data())
def test_deterministic_trees(verifier: Any, data: st.DataObject) -> None:
    vocab_size = data.draw(st.sampled_from([2, 3]), label="vocabulary")
    target = drawn_target(data, vocab_size, verifier.greedy)
    parents = data.draw(shapes(6), label="parents")
    tokens = [data.draw(st.integers(0, vocab_size - 1), label="token") for _ in parents]
    context = Context(vocab_size, max_length=32, max_draft=6)

    def sessions(oracle: Oracle) -> Session:
        return Session(TreeProposer(context, parents, tokens), context, on_fault="raise")

    check_law(sessions, scenario_of(data, vocab_size, 3), target, verifier)
    event(f"{len(parents)} nodes")


@pytest.mark.parametrize("replacement", [False, True])
@given(data=st.data())
def test_drawn_trees(replacement: bool, data: st.DataObject) -> None:
    vocab_size = data.draw(st.sampled_from([2, 3]), label="vocabulary")
    target = drawn_target(data, vocab_size, greedy=False)
    parents = data.draw(shapes(4 if vocab_size == 2 else 3), label="parents")
    model = data.draw(strategies.markov_targets(vocab_size, max_order=1), label="draft model")
    context = Context(vocab_size, max_length=32, max_draft=4)

    def sessions(oracle: Oracle) -> Session:
        proposer = SampledTreeProposer(context, model, oracle.choose, parents, replacement)
        return Session(proposer, context, on_fault="raise")

    check_law(sessions, scenario_of(data, vocab_size, 2), target, SAMPLED_TREE)
    event(f"{len(parents)} nodes")


@given(data=st.data())
def test_a_tree_that_is_a_chain_is_judged_like_one(data: st.DataObject) -> None:
    from specplug.verify.chain import greedy, reject_one_hot
    from specplug.verify.sampled import reject_sampled
    from specplug.verify.tree import greedy_tree, reject_tree_one_hot, reject_tree_sampled

    rows, width, vocab_size = 2, 3, 3
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
    target = rng.dirichlet(np.ones(vocab_size), (rows, width + 1))
    laws = rng.dirichlet(np.ones(vocab_size), (rows, width))
    tokens = rng.integers(0, vocab_size, (rows, width))
    lengths = rng.integers(0, width + 1, rows)
    coins = rng.random((rows, width + 1))
    parents = np.tile(np.arange(-1, width - 1), (rows, 1))
    pairs: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (
            lambda: greedy(target, tokens, lengths),
            lambda: greedy_tree(target, tokens, parents, lengths),
        ),
        (
            lambda: reject_one_hot(target, tokens, lengths, coins),
            lambda: reject_tree_one_hot(target, tokens, parents, lengths, coins),
        ),
        (
            lambda: reject_sampled(target, laws, tokens, lengths, coins),
            lambda: reject_tree_sampled(target, laws, tokens, parents, lengths, coins),
        ),
    ]
    for chain, tree in pairs:
        ref, got = chain(), tree()
        np.testing.assert_array_equal(got.tokens, ref.tokens)
        np.testing.assert_array_equal(got.accepted, ref.accepted)


def test_markov_models_of_drafts_may_forbid_tokens() -> None:
    # Only one token can be drawn, so its sibling cannot exist without replacement.
    model = MarkovTarget(np.array([0.0, 1.0]))
    context = Context(2, max_length=32, max_draft=4)
    target = SampledTarget(MarkovTarget(np.array([0.25, 0.75])))

    def sessions(oracle: Oracle) -> Session:
        proposer = SampledTreeProposer(context, model, oracle.choose, (-1, -1))
        return Session(proposer, context, on_fault="raise")

    check_law(sessions, Scenario((Arrival((), 3),)), target, SAMPLED_TREE)
