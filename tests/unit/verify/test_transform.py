"""From logits to laws: numbers worked out by hand, the orders of the engines, refusals, float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from specplug.errors import InvalidDistributionError, InvalidRequestError
from specplug.verify.params import ORDERS, SGLANG, STEPS, VLLM, Order, SamplingParams
from specplug.verify.transform import Past, target_probs

NONE = np.zeros((1, 0), np.int32)


def plain(logits: list[float], params: SamplingParams, past: Past, **options: Any) -> np.ndarray:
    """The law without drafts."""
    return target_probs(np.array([[logits]]), [params], [past], NONE, [0], **options)[0, 0]


def softmax(*scores: float) -> list[float]:
    weights = [math.exp(s) for s in scores]
    return [w / sum(weights) for w in weights]


EMPTY = Past((), ())


@pytest.mark.parametrize(
    ("params", "past", "expected"),
    [
        (SamplingParams(), EMPTY, (2.0, 1.0, -1.0)),
        (SamplingParams(temperature=0.5), EMPTY, (4.0, 2.0, -2.0)),
        (SamplingParams(temperature=0.0), EMPTY, (0.0, -math.inf, -math.inf)),
        (SamplingParams(top_k=2), EMPTY, (2.0, 1.0, -math.inf)),
        (SamplingParams(top_p=0.5), EMPTY, (2.0, -math.inf, -math.inf)),
        (SamplingParams(min_p=0.3), EMPTY, (2.0, 1.0, -math.inf)),
        (SamplingParams(logit_bias={1: 3.0}), EMPTY, (2.0, 4.0, -1.0)),
        (SamplingParams(logit_bias={0: -math.inf}), EMPTY, (-math.inf, 1.0, -1.0)),
        (SamplingParams(repetition_penalty=2.0), Past((0,), (2,)), (1.0, 1.0, -2.0)),
        (SamplingParams(repetition_penalty=0.5), Past((0,), (2,)), (4.0, 1.0, -0.5)),
        (SamplingParams(frequency_penalty=1.0), Past((), (0,)), (1.0, 1.0, -1.0)),
        (SamplingParams(presence_penalty=1.0), Past((), (0,)), (1.0, 1.0, -1.0)),
        (SamplingParams(frequency_penalty=0.5), Past((1,), (0, 0, 2)), (1.0, 1.0, -1.5)),
        (SamplingParams(presence_penalty=0.5), Past((1,), (0, 0, 2)), (1.5, 1.0, -1.5)),
        (SamplingParams(bad_words=((0, 1),)), Past((), (2, 0)), (2.0, -math.inf, -1.0)),
        (SamplingParams(bad_words=((0, 1),)), Past((0,), ()), (2.0, 1.0, -1.0)),
        (SamplingParams(bad_words=((0, 1),)), Past((), (0, 2)), (2.0, 1.0, -1.0)),
        (SamplingParams(bad_words=((2,), (3,), (9,))), EMPTY, (2.0, 1.0, -math.inf)),
        (
            SamplingParams(min_tokens=2, stop_token_ids=frozenset({0, 3, 9, -3})),
            Past((1, 1), (1,)),
            (-math.inf, 1.0, -1.0),
        ),
        (
            SamplingParams(min_tokens=2, stop_token_ids=frozenset({0})),
            Past((), (1, 1)),
            (2.0, 1.0, -1.0),
        ),
    ],
)
def test_one_step(params: SamplingParams, past: Past, expected: tuple[float, ...]) -> None:
    law = plain([2.0, 1.0, -1.0], params, past)
    np.testing.assert_allclose(law, softmax(*expected), atol=1e-15)


def test_a_grammar_forbids() -> None:
    mask = np.array([[[False, True, True]]])
    law = plain([2.0, 1.0, -1.0], SamplingParams(), EMPTY, grammar=mask)
    np.testing.assert_allclose(law, softmax(-math.inf, 1.0, -1.0), atol=1e-15)


def test_sglang_does_not_count_the_prompt_for_repetition() -> None:
    params, past = SamplingParams(repetition_penalty=2.0), Past((0,), (1,))
    logits = [2.0, 1.0, -1.0]
    np.testing.assert_allclose(plain(logits, params, past), softmax(1.0, 0.5, -1.0))
    sglang = plain(logits, params, past, order=SGLANG)
    np.testing.assert_allclose(sglang, softmax(2.0, 0.5, -1.0))


def test_the_order_of_penalties_matters() -> None:
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0)
    logits, past = [3.0, 1.0], Past((), (0,))
    np.testing.assert_allclose(plain(logits, params, past), softmax(1.5 - 1.0, 1.0))
    sglang = plain(logits, params, past, order=SGLANG)
    np.testing.assert_allclose(sglang, softmax((3.0 - 1.0) / 2.0, 1.0))


def test_the_order_of_top_k_and_top_p_matters() -> None:
    # Law (0.4, 0.3, 0.2, 0.1), top-k 2, top-p 0.5. After top-k the first token alone has 0.57; before, it takes two.
    logits = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    params = SamplingParams(top_k=2, top_p=0.5)
    assert (plain(logits, params, EMPTY) > 0).tolist() == [True, False, False, False]
    assert (plain(logits, params, EMPTY, order=SGLANG) > 0).tolist() == [True, True, False, False]
    flashinfer = plain(logits, params, EMPTY, order=ORDERS["sglang_flashinfer"])
    assert (flashinfer > 0).tolist() == [True, False, False, False]


def test_ties_at_top_k_all_stay_and_ties_at_top_p_are_cut_at_an_id() -> None:
    tied = [1.0, 1.0, 1.0, 0.0]
    assert (plain(tied, SamplingParams(top_k=2), EMPTY) > 0).tolist() == [True, True, True, False]
    equal = [0.0, 0.0, 0.0, 0.0]
    assert (plain(equal, SamplingParams(top_p=0.5), EMPTY) > 0).tolist() == [
        True,
        True,
        False,
        False,
    ]
    kept = plain(equal, SamplingParams(top_p=0.51), EMPTY) > 0
    assert kept.tolist() == [True, True, True, False]


def test_top_p_over_a_large_vocabulary_takes_the_same_tokens_as_a_full_sort() -> None:
    rng = np.random.default_rng(1)
    for spread in (0.01, 1.0, 8.0):
        logits = np.round(rng.normal(size=4000) * spread, 2)
        weights = np.exp(logits - logits.max())
        ranked = np.lexsort((np.arange(4000), -weights))
        before = np.concatenate(([0.0], np.cumsum(weights[ranked])[:-1]))
        expected = np.zeros(4000, np.bool_)
        expected[ranked[before < 0.9 * weights.sum()]] = True
        law = plain(logits.tolist(), SamplingParams(top_p=0.9), EMPTY)
        np.testing.assert_array_equal(law > 0.0, expected)


def test_each_row_has_its_own_parameters_and_positions_behind_a_draft_are_zero() -> None:
    logits = np.tile([1.0, 0.0], (2, 2, 1))
    logits[0, 1] = np.nan
    rows = [SamplingParams(), SamplingParams(temperature=0.0)]
    probs = target_probs(logits, rows, [EMPTY, EMPTY], [[1], [1]], [0, 1])
    np.testing.assert_allclose(probs[0, 0], softmax(1.0, 0.0))
    assert probs[0, 1].tolist() == [0.0, 0.0]
    assert probs[1].tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert np.isnan(logits[0, 1]).all(), "the argument was changed"


@pytest.mark.parametrize("name", ["repetition_penalty", "frequency_penalty", "presence_penalty"])
def test_a_penalty_of_one_row_is_applied_beside_a_row_without(name: str) -> None:
    rows = [SamplingParams(), SamplingParams(**{name: 0.5})]
    logits, past = np.tile([2.0, 1.0], (2, 1, 1)), Past((), (0,))
    probs = target_probs(logits, rows, [past, past], np.zeros((2, 0), np.int32), [0, 0])
    for row, params in enumerate(rows):
        np.testing.assert_array_equal(probs[row, 0], plain([2.0, 1.0], params, past))
    assert not np.array_equal(probs[0], probs[1])


@pytest.mark.parametrize("order", list(ORDERS.values()), ids=lambda o: o.name)
def test_float32_stays_within_its_error_of_float64(order: Order) -> None:
    # Scores of at most 40 in size go through at most four roundings, each of a relative error of 2 ** -24, and through
    # one exponential: a probability is off by a factor of at most exp(2 * 4 * 40 * 2 ** -24), about 2e-5.
    rng = np.random.default_rng(7)
    params = SamplingParams(
        0.7, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.1
    )
    past = Past(tuple(range(50)), tuple(range(25, 75)))
    single = rng.uniform(-20.0, 20.0, (4, 3, 200)).astype(np.float32)
    tokens = rng.integers(0, 200, (4, 2))
    slow, fast = (
        target_probs(logits, [params] * 4, [past] * 4, tokens, [2, 1, 0, 2], order=order)
        for logits in (single.astype(np.float64), single)
    )
    assert (slow.dtype, fast.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(fast, slow, rtol=2e-5, atol=1e-30)
    assert not np.array_equal(fast, slow)


def test_float32_keeps_the_same_tokens_where_no_two_are_close() -> None:
    logits = np.linspace(-6.0, 6.0, 97)[np.random.default_rng(3).permutation(97)]
    for params in (
        SamplingParams(0.8, top_k=20),
        SamplingParams(top_p=0.83),
        SamplingParams(min_p=0.21),
    ):
        support = [
            target_probs(logits.astype(dtype)[None, None], [params], [EMPTY], NONE, [0]) > 0
            for dtype in (np.float64, np.float32)
        ]
        np.testing.assert_array_equal(*support)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature must be at least 0 .*, got -0.1"),
        ({"temperature": math.inf}, "temperature must be a finite number, got inf"),
        ({"temperature": math.nan}, "temperature must be at least 0 .*, got nan"),
        ({"top_k": -1}, "top_k must be at least 0 .*, got -1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1 .*, got 0.0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1 .*, got 1.1"),
        ({"min_p": -0.1}, "min_p must be between 0 and 1 .*, got -0.1"),
        ({"min_p": 1.1}, "min_p must be between 0 and 1 .*, got 1.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0 .*, got 0.0"),
        ({"repetition_penalty": math.inf}, "repetition_penalty must be a finite number"),
        ({"frequency_penalty": math.nan}, "frequency_penalty must be a finite number"),
        ({"presence_penalty": -math.inf}, "presence_penalty must be a finite number"),
        ({"min_tokens": -1}, "min_tokens must be at least 0 .*, got -1"),
        ({"logit_bias": {3: math.nan}}, r"logit_bias\[3\] must be a number or -inf, got nan"),
        ({"logit_bias": {3: math.inf}}, r"logit_bias\[3\] must be a number or -inf, got inf"),
        ({"bad_words": ((1,), ())}, "bad_words must not hold an empty sequence"),
    ],
)
def test_parameters_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        SamplingParams(**options)


def test_the_ends_of_the_ranges_are_allowed() -> None:
    SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, min_tokens=0)
    SamplingParams(min_p=1.0, top_p=1e-9, repetition_penalty=1e-3)


def test_an_order_names_every_step_once() -> None:
    with pytest.raises(InvalidRequestError, match="unknown step 'topk'; did you mean 'top_k'"):
        Order("mine", ("topk",), True)
    with pytest.raises(InvalidRequestError, match=r"missing: \['top_p'\]"):
        Order("mine", STEPS[:-1], True)
    with pytest.raises(InvalidRequestError, match="every step once"):
        Order("mine", (*STEPS, "bias"), True)
    assert set(VLLM.steps) == set(STEPS)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"params": []}, InvalidRequestError, r"params must have one entry per row \(1\), got 0"),
        (
            {"pasts": [EMPTY] * 2},
            InvalidRequestError,
            r"pasts must have one entry per row \(1\), got 2",
        ),
        (
            {"grammar": np.ones((1, 2, 2))},
            InvalidRequestError,
            r"grammar must be a bool array of the shape of the logits \(1, 2, 2\), got float64",
        ),
        ({"grammar": np.ones((1, 1, 2), bool)}, InvalidRequestError, r"got bool \(1, 1, 2\)"),
        ({"parents": [[1]]}, InvalidRequestError, r"parents\[0, 0\] is 1"),
        (
            {"params": [SamplingParams(logit_bias={2: 1.0})]},
            InvalidRequestError,
            "logit_bias of row 0 names the token 2, but the target has the ids 0 to 1",
        ),
        (
            {"params": [SamplingParams(logit_bias={-1: 1.0})]},
            InvalidRequestError,
            "logit_bias of row 0 names the token -1",
        ),
        (
            {"grammar": np.array([[[True, True], [False, False]]])},
            InvalidDistributionError,
            "no token is left at position 1 of row 0",
        ),
        (
            {"logits": np.array([[[0.0, 1.0], [np.nan, 0.0]]])},
            InvalidDistributionError,
            r"logits\[0, 1, 0\] is nan",
        ),
        ({"logits": np.zeros((1, 2, 2), int)}, InvalidDistributionError, "got int64"),
    ],
)
def test_malformed_input(options: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {
        "logits": np.zeros((1, 2, 2)),
        "params": [SamplingParams()],
        "pasts": [EMPTY],
        "tokens": [[0]],
        "lengths": [1],
    }
    with pytest.raises(error, match=message):
        target_probs(**{**arguments, **options})
