"""Kernels and their slow twins agree to the last bit, edges included."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specplug.kernels import accept as accept_kernels
from specplug.kernels import accept_sampled as sampled_kernels
from specplug.kernels import draw as draw_kernels
from specplug.kernels import sampling as sampling_kernels
from specplug.reference import accept as accept_reference
from specplug.reference import accept_sampled as sampled_reference
from specplug.reference import draw as draw_reference
from specplug.reference import sampling as sampling_reference
from specplug.testing.strategies import laws

#: Coins: any, and those that fall on an edge of the small distributions of `laws`.
COINS = st.one_of(
    st.floats(0.0, 1.0, exclude_max=True),
    st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 2 / 3, 0.75, 1.0 - 2.0**-53]),
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Any, ...]:
    """Target, tokens, lengths and coins of one to three rows."""
    rows, width = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    vocab_size = draw(st.integers(1, 4))
    shape = (rows, width + 1)
    probs = np.array([draw(laws(vocab_size)) for _ in range(rows * (width + 1))])
    tokens = [draw(st.integers(0, vocab_size - 1)) for _ in range(rows * width)]
    coins = [draw(COINS) for _ in range(rows * (width + 1))]
    return (
        probs.reshape(*shape, vocab_size),
        np.array(tokens, np.int32).reshape(rows, width),
        np.array([draw(st.integers(0, width)) for _ in range(rows)], np.int32),
        np.array(coins).reshape(shape),
    )


def verdict(module: ModuleType, function: str, *inputs: Any) -> tuple[list[int], list[list[int]]]:
    tokens, lengths = next((a, b) for a, b in pairwise(inputs) if a.dtype == np.int32)
    accepted = np.full(len(lengths), 99, np.int32)
    emitted = np.full((len(lengths), tokens.shape[1] + 1), 99, np.int32)
    getattr(module, function)(*inputs, accepted, emitted)
    return accepted.tolist(), emitted.tolist()


@given(batch=batches())
def test_acceptance(batch: tuple[Any, ...]) -> None:
    for function, inputs in [
        ("accept_greedy", batch[:3]),
        ("accept_by_comparison", batch),
        ("accept_one_hot", batch),
    ]:
        ref = verdict(accept_reference, function, *inputs)
        got = verdict(accept_kernels, function, *inputs)
        assert got == ref, function


@given(data=st.data())
def test_acceptance_of_drawn_drafts(data: st.DataObject) -> None:
    target, tokens, lengths, coins = data.draw(batches())
    laws_of_drafts = np.empty((*tokens.shape, target.shape[2]))
    for place in np.ndindex(*tokens.shape):
        # Equal laws, but for their last bits, are the case in which no residual mass is left.
        same = target[place[0], place[1]] * data.draw(st.sampled_from([1.0, 1.0 - 2.0**-50]))
        law = data.draw(st.one_of(laws(target.shape[2]), st.just(same)))
        if law[tokens[place]] == 0.0:
            tokens[place] = int(law.argmax())
        laws_of_drafts[place] = law
    for function in ("accept_sampled", "accept_block"):
        inputs = (target, laws_of_drafts, tokens, lengths, coins)
        ref = verdict(sampled_reference, function, *inputs)
        got = verdict(sampled_kernels, function, *inputs)
        assert got == ref, function


@given(data=st.data(), coin=COINS, banned=st.integers(0, 3))
def test_draws(data: st.DataObject, coin: float, banned: int) -> None:
    target, draft = data.draw(laws(4)), data.draw(laws(4))
    scales = data.draw(st.tuples(COINS, COINS))
    for function, inputs in [
        ("total", (target,)),
        ("draw", (target, coin)),
        ("draw_without", (target, banned, coin)),
        ("residual_mass", (target, draft, *scales)),
        ("draw_residual", (target, draft, *scales, coin)),
    ]:
        ref, got = (
            getattr(draw_reference, function)(*inputs),
            getattr(draw_kernels, function)(*inputs),
        )
        assert got == ref, function


SCORES = st.one_of(
    st.sampled_from([0.0, 1.0, 0.5, -2.0, -np.inf, 30.0]), st.floats(-40.0, 40.0, width=32)
)
PARAMETERS = {
    "apply_temperature": (st.sampled_from([0.0, 0.5, 1.0, 1.7]), np.float64),
    "keep_top_k": (st.integers(0, 6), np.int32),
    "keep_top_p": (st.sampled_from([1e-9, 0.25, 0.5, 0.75, 0.9, 1.0]), np.float64),
    "keep_min_p": (st.sampled_from([0.0, 1e-3, 0.5, 1.0]), np.float64),
}


@given(data=st.data())
def test_sampling_transformations(data: st.DataObject) -> None:
    row = st.lists(SCORES, min_size=5, max_size=5).filter(lambda s: max(s) > -np.inf)
    scores = np.array(data.draw(st.lists(row, min_size=1, max_size=3), label="scores"))
    order = data.draw(st.permutations(sorted(PARAMETERS)), label="order")
    ref, got = scores.copy(), scores.copy()
    for function in order:
        values, dtype = PARAMETERS[function]
        chosen = np.array([data.draw(values, label=function) for _ in scores], dtype)
        getattr(sampling_reference, function)(ref, chosen)
        getattr(sampling_kernels, function)(got, chosen)
        np.testing.assert_array_equal(got, ref, err_msg=function)
        assert (ref.max(axis=1) > -np.inf).all(), f"{function} left no token"
    ref_probs, got_probs = np.empty_like(ref), np.empty_like(got)
    sampling_reference.softmax(ref, ref_probs)
    sampling_kernels.softmax(got, got_probs)
    np.testing.assert_array_equal(got_probs, ref_probs)
