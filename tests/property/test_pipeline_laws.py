"""The sampling pipeline at draft positions gives the law of decoding token by token, exactly."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, event, example, given
from hypothesis import strategies as st

from specplug.errors import InvalidDistributionError
from specplug.kernels import penalties as penalty_kernels
from specplug.reference import penalties as penalty_reference
from specplug.session import Session
from specplug.testing import strategies
from specplug.testing.law import Arrival, Scenario, check_law
from specplug.testing.paths import Oracle
from specplug.testing.pipeline_target import PipelineTarget
from specplug.testing.targets import MarkovTarget
from specplug.testing.toys import ConstantProposer
from specplug.testing.toys_sampled import TreeProposer
from specplug.testing.tree_verifiers import ONE_HOT_TREE
from specplug.testing.verifiers import COMPARE, ONE_HOT
from specplug.types import Context
from specplug.verify.params import ORDERS, SamplingParams

VOCABULARY = 3


@st.composite
def parameters(draw: st.DrawFn) -> SamplingParams:
    ids = st.integers(0, VOCABULARY - 1)
    return SamplingParams(
        temperature=draw(st.sampled_from([1.0, 0.6])),
        top_k=draw(st.sampled_from([0, 2])),
        top_p=draw(st.sampled_from([1.0, 0.8])),
        min_p=draw(st.sampled_from([0.0, 0.3])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.5, 0.8])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.9, -0.5])),
        presence_penalty=draw(st.sampled_from([0.0, 0.7])),
        logit_bias=draw(st.dictionaries(ids, st.sampled_from([1.0, -2.0]), max_size=1)),
        bad_words=draw(st.sampled_from([(), ((1, 2),), ((0,),), ((0, 0), (2, 1, 0))])),
        min_tokens=draw(st.sampled_from([0, 2])),
        stop_token_ids=draw(st.sampled_from([frozenset(), frozenset({2})])),
    )


def no_repeats_after_one(output: tuple[int, ...]) -> np.ndarray:
    """A small grammar: token 1 must be followed by 0 or 2."""
    return np.array([True, not output or output[-1] != 1, True])


@pytest.mark.parametrize("order", list(ORDERS.values()), ids=lambda o: o.name)
@given(data=st.data())
def test_every_position_sees_the_drafts_before_it(order: Any, data: st.DataObject) -> None:
    prompt = data.draw(strategies.histories(VOCABULARY, 4, separators=False), label="prompt")
    params = data.draw(parameters(), label="parameters")
    target = PipelineTarget(
        data.draw(strategies.markov_targets(VOCABULARY, max_order=1), label="target"),
        params=params,
        prompt_length=len(prompt),
        order=order,
        grammar=data.draw(
            st.sampled_from([lambda output: None, no_repeats_after_one]), label="grammar"
        ),
    )
    draft = data.draw(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3), label="draft"
    )
    parents = data.draw(st.sampled_from([None, (-1, 0, 0), (-1, -1, 1)]), label="parents")
    context = Context(VOCABULARY, max_length=32, max_draft=3)
    verifier = data.draw(st.sampled_from([ONE_HOT, COMPARE])) if parents is None else ONE_HOT_TREE

    def sessions(oracle: Oracle) -> Session:
        built = (
            ConstantProposer(context, tuple(draft))
            if parents is None
            else TreeProposer(context, parents[: len(draft)], draft)
        )
        return Session(built, context, on_fault="raise")

    arrival = Arrival(prompt, 3, params.stop_token_ids)
    try:
        check_law(sessions, Scenario((arrival,)), target, verifier)
    except InvalidDistributionError:
        # Parameters that forbid every token: refused with and without drafts.
        event("no token left")
        assume(False)


PENALTIES = ("apply_repetition", "apply_frequency", "apply_presence")


@given(data=st.data())
def test_penalty_twins(data: st.DataObject) -> None:
    rows, width, vocab_size = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3)), 4
    foreign = st.integers(-1, vocab_size)
    lengths = np.array([data.draw(st.integers(0, width)) for _ in range(rows)], np.int32)
    tokens = np.array(
        [data.draw(st.integers(0, vocab_size - 1)) for _ in range(rows * width)], np.int32
    ).reshape(rows, width)
    parents = np.array(
        [[data.draw(st.integers(-1, node - 1)) for node in range(width)] for _ in range(rows)],
        np.int32,
    ).reshape(rows, width)
    pasts = [data.draw(st.lists(foreign, max_size=6)) for _ in range(rows)]
    offsets = np.cumsum([0, *map(len, pasts)])
    flat = np.array([token for past in pasts for token in past], np.int32)
    seed = data.draw(st.integers(0, 2**32), label="seed")
    scores = np.random.default_rng(seed).normal(size=(rows, width + 1, vocab_size)) * 3
    scores[0, 0, 0] = -np.inf
    penalty = np.array([data.draw(st.sampled_from([1.0, 1.3, 0.5])) for _ in range(rows)])

    def penalised(module: ModuleType, function: str) -> np.ndarray:
        changed = scores.copy()
        getattr(module, function)(changed, flat, offsets, tokens, parents, lengths, penalty)
        return changed

    for function in PENALTIES:
        ref, got = penalised(penalty_reference, function), penalised(penalty_kernels, function)
        np.testing.assert_array_equal(got, ref, err_msg=function)
        assert (
            got[:, 1:][np.arange(1, width + 1) > lengths[:, None]]
            == scores[:, 1:][np.arange(1, width + 1) > lengths[:, None]]
        ).all()


@given(table=strategies.laws(VOCABULARY))
@example(table=np.array([0.5, 0.5, 0.0]))
def test_minimum_length_holds_inside_a_draft(table: np.ndarray) -> None:
    # An engine that masks the stop token at the first position of a burst only emits outputs that are too short.
    assume(table[0] > 0.0)
    params = SamplingParams(min_tokens=3, stop_token_ids=frozenset({1}))
    target = PipelineTarget(MarkovTarget(table), params=params)
    context = Context(VOCABULARY, max_length=32, max_draft=3)

    def sessions(oracle: Oracle) -> Session:
        return Session(ConstantProposer(context, (0, 1, 0)), context, on_fault="raise")

    check_law(sessions, Scenario((Arrival((), 4, frozenset({1})),)), target, ONE_HOT)
