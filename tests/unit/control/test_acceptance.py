"""The acceptance model: what it learns, how fast, and that lies and nonsense do it no harm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from specplug.control.acceptance import HIGHEST, LOWEST, AcceptanceModel
from specplug.types import LENGTH_DTYPE, Request


def array(*values: int) -> np.ndarray:
    return np.array(values, LENGTH_DTYPE)


def corrected(model: AcceptanceModel, slots: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """The chances of drafts after correction, float64 ``[B, K]``."""
    model.chances[slots] = chances
    width = chances.shape[1]
    survival = model.forecast(slots, np.full(len(slots), width, LENGTH_DTYPE), width)
    return survival / np.hstack([np.ones((len(slots), 1)), survival[:, :-1]])


def learn(
    model: AcceptanceModel,
    slots: np.ndarray,
    chances: np.ndarray,
    tested: np.ndarray,
    agreed: np.ndarray,
) -> None:
    """Drafts of these chances had these outcomes."""
    model.chances[slots] = chances
    model.learn(slots, tested, agreed)


def serve(model: AcceptanceModel, claimed: float, true: float, steps: int, seed: int = 0) -> None:
    """Drafts of eight tokens, each claimed to be accepted with one chance, and accepted with another."""
    coins = np.random.default_rng(seed)
    chances = np.full((1, 8), claimed)
    for _ in range(steps):
        agreed = int(np.argmax(np.append(coins.random(8) >= true, True)))
        learn(model, array(0), chances, array(min(agreed + 1, 8)), array(agreed))


@pytest.mark.parametrize(
    ("claimed", "true"), [(0.9, 0.1), (0.2, 0.8), (0.99, 0.5), (0.5, 0.5), (0.95, 0.95)]
)
def test_the_corrected_chance_comes_near_the_true_one(claimed: float, true: float) -> None:
    model = AcceptanceModel(1, 8)
    serve(model, claimed, true, 100)
    found = []
    for seed in range(
        1, 300
    ):  # it goes on following the coins, so it is the mean that can be right
        serve(model, claimed, true, 1, seed)
        found.append(corrected(model, array(0), np.full((1, 8), claimed))[0, 0])
    assert np.mean(found) == pytest.approx(true, abs=0.08)
    assert np.std(found) < 0.12


def test_a_liar_is_found_out_in_a_few_steps() -> None:
    model = AcceptanceModel(1, 8)
    serve(model, 0.99, 0.0, 12)
    assert corrected(model, array(0), np.full((1, 8), 0.99))[0, 0] < 0.3


def test_after_a_thousand_failures_ten_successes_are_enough() -> None:
    model = AcceptanceModel(1, 8)
    serve(model, 0.9, 0.0, 1000)
    assert corrected(model, array(0), np.full((1, 8), 0.9))[0, 0] < 0.2
    serve(model, 0.9, 1.0, 10)
    assert corrected(model, array(0), np.full((1, 8), 0.9))[0, 0] > 0.7


def test_behind_the_first_rejection_nothing_is_learned() -> None:
    """Two models see the same first rejection, with one draft longer than the other."""
    short, long = AcceptanceModel(1, 8), AcceptanceModel(1, 8)
    chances = np.full((1, 8), 0.7)
    learn(short, array(0), chances, array(1), array(0))
    learn(long, array(0), chances, array(1), array(0))
    assert short.request_bias == long.request_bias
    assert (short.depth_bias == long.depth_bias).all()


def test_a_new_request_starts_from_its_group_not_from_the_last_one_in_the_slot() -> None:
    model = AcceptanceModel(2, 8)
    model.begin(0, Request("a", 1, namespace="x"))
    serve(model, 0.9, 0.0, 200)
    model.begin(0, Request("b", 1, namespace="y"))
    fresh = corrected(model, array(0), np.full((1, 8), 0.9))[0, 0]
    model.begin(1, Request("c", 1, namespace="x"))
    same = corrected(model, array(1), np.full((1, 8), 0.9))[0, 0]
    assert model.request_bias.tolist() == [0.0, 0.0]
    assert same < fresh


def test_requests_at_another_temperature_are_another_group() -> None:
    model = AcceptanceModel(2, 8)
    model.begin(0, Request("hot", 1, temperature=1.5))
    serve(model, 0.9, 0.1, 100)
    model.begin(0, Request("hot", 1, temperature=1.5))
    model.begin(1, Request("cold", 1))
    hot, cold = corrected(model, array(0, 1), np.full((2, 8), 0.9))[:, 0]
    assert hot < cold


def test_without_estimates_the_rates_of_the_positions_are_learned() -> None:
    model = AcceptanceModel(1, 8, informed=False)
    coins = np.random.default_rng(0)
    rates = np.array([0.9, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])
    for _ in range(500):
        agreed = int(np.argmax(np.append(coins.random(8) >= rates, True)))
        model.learn(array(0), array(min(agreed + 1, 8)), array(agreed))
    found = corrected(model, array(0), model.chances)[0]
    assert found[0] == pytest.approx(0.9, abs=0.1)
    assert found[1] == pytest.approx(0.5, abs=0.15)


@given(survival=arrays(np.float64, (3, 5), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_whatever_a_proposer_writes_becomes_a_chance(survival: np.ndarray) -> None:
    model = AcceptanceModel(3, 5)
    assert model.read(array(0, 1, 2), survival, array(5, 4, 5)) == (14, 5)
    assert ((model.chances >= LOWEST) & (model.chances <= HIGHEST)).all()
    model.learn(array(0, 1, 2), array(1, 4, 0), array(0, 4, 0))
    found = corrected(model, array(0, 1, 2), model.chances)
    assert ((found > 0) & (found < 1)).all()


def test_a_slot_that_does_not_exist_is_an_error_and_changes_nothing() -> None:
    model = AcceptanceModel(3, 5)
    before = model.chances.copy()
    for call in (
        lambda slots: model.read(slots, np.full((2, 5), 0.9), array(5, 5)),
        lambda slots: model.forecast(slots, array(5, 5), 5),
        lambda slots: model.learn(slots, array(5, 5), array(5, 5)),
    ):
        for slot in (3, -1):
            with pytest.raises(
                IndexError, match=f"position 1: got slot {slot}, expected one below 3"
            ):
                call(array(0, slot))
    with pytest.raises(IndexError, match="at most 5 tokens"):
        model.learn(array(0, 1), array(5, 6), array(5, 5))
    assert (model.chances == before).all()
    assert not model.request_bias.any()


def test_many_namespaces_do_not_fill_the_memory() -> None:
    model = AcceptanceModel(1, 4)
    for number in range(5000):
        model.begin(0, Request("r", 1, namespace=str(number)))
    assert len(model._groups) <= 1025
    assert len(model.group_bias) == 256


def test_a_group_beside_it_that_was_not_tested_changes_nothing() -> None:
    """Rows of one group, and the same rows beside one of another group that was never tested."""
    coins = np.random.default_rng(0)
    short, long = AcceptanceModel(4, 8), AcceptanceModel(4, 8)
    for model in (short, long):
        for slot in range(3):
            model.begin(slot, Request("r", 1))
        model.begin(3, Request("other", 1, namespace="other"))
    for _ in range(50):
        chances = coins.uniform(0.1, 0.9, (4, 8))
        agreed = coins.integers(0, 8, 4).astype(LENGTH_DTYPE)
        tested = (agreed + 1).astype(LENGTH_DTYPE)
        learn(short, array(0, 1, 2), chances[:3], tested[:3], agreed[:3])
        tested[3] = 0
        learn(long, array(0, 1, 2, 3), chances, tested, agreed)
    assert short.group_bias[0] == pytest.approx(long.group_bias[0], abs=1e-12)
    assert short.request_bias[:3] == pytest.approx(long.request_bias[:3], abs=1e-12)


def test_each_source_has_a_reliability_of_its_own() -> None:
    model = AcceptanceModel(2, 8)
    sources = np.zeros((2, 8), np.uint8)
    sources[:, ::2] = 1  # a draft may take its tokens from several
    model.know_sources(3, sources)
    coins = np.random.default_rng(0)
    true = np.where(sources == 1, 0.95, 0.4)
    slots, chances = array(0, 1), np.full((2, 8), 0.7)
    for _ in range(300):
        hits = coins.random((2, 8)) < true
        agreed = np.where(hits.all(axis=1), 8, hits.argmin(axis=1)).astype(LENGTH_DTYPE)
        learn(model, slots, chances, np.minimum(agreed + 1, 8).astype(LENGTH_DTYPE), agreed)
    found = corrected(model, slots, chances)
    assert found[:, ::2] == pytest.approx(0.95, abs=0.06)
    assert found[:, 1::2] == pytest.approx(0.4, abs=0.12)
    assert model.source_bias[2] == 0.0
    # A new request starts from what is known of its sources.
    model.begin(0, Request("new", 1))
    again = corrected(model, slots, chances)[0]
    assert again[0] > again[1] + 0.15


def test_a_new_tenant_starts_from_what_requests_of_its_temperature_did() -> None:
    model = AcceptanceModel(1, 8)
    for temperature, true in ((0.0, 0.95), (1.0, 0.3)):
        for number in range(30):
            model.begin(0, Request(str(number), 1, namespace="old", temperature=temperature))
            serve(model, 0.7, true, 10, number)
    found = []
    for temperature in (0.0, 1.0):
        model.begin(0, Request("x", 1, namespace=f"new {temperature}", temperature=temperature))
        found.append(corrected(model, array(0), np.full((1, 8), 0.7))[0, 0])
    assert found[0] > found[1] + 0.15
