"""The kernels of layer skipping equal their slow twins, and both know the edges."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from specplug.kernels import layers as got_layers
from specplug.reference import layers as ref_layers

BOTH = pytest.mark.parametrize("module", [got_layers, ref_layers], ids=["kernel", "reference"])


@BOTH
def test_the_cosine_of_known_vectors(module: ModuleType) -> None:
    one, other = np.array([1.0, 0.0]), np.array([1.0, 1.0])
    assert module.cosine(one, one) == 1.0
    assert module.cosine(one, -one) == -1.0
    assert module.cosine(one, other) == pytest.approx(np.sqrt(0.5))
    assert module.cosine(one, np.zeros(2)) == 0.0


@BOTH
def test_a_tie_runs_the_layer(module: ModuleType) -> None:
    ran, before = np.ones((2, 2)), np.ones((2, 2))
    after, skipped = np.zeros((2, 2)), np.full(2, 9, np.uint8)
    assert module.advance(ran, before, 2, np.ones(2), True, after, skipped) == 2
    assert skipped.tolist() == [0, 0]


@BOTH
def test_a_layer_that_may_not_be_skipped_is_not(module: ModuleType) -> None:
    target = np.array([0.0, 1.0])
    ran, before = np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([target, target])
    after, skipped = np.zeros((2, 2)), np.full(2, 9, np.uint8)
    assert module.advance(ran, before, 1, target, False, after, skipped) == 1
    assert skipped[0] == 0
    assert module.advance(ran, before, 1, target, True, after, skipped) == 2
    assert skipped.tolist() == [0, 1]
    assert after.tolist() == [[1.0, 0.0], [0.0, 1.0]]


@BOTH
def test_confidence_runs_from_flat_to_one_hot(module: ModuleType) -> None:
    flat, sharp = np.zeros((3, 8)), np.zeros((3, 8))
    sharp[:, 2] = 1000.0
    assert module.confidence(flat) == pytest.approx(0.0)
    assert module.confidence(sharp) == pytest.approx(1.0)
    assert module.confidence(np.concatenate([flat, sharp])) == pytest.approx(0.5)
    assert module.confidence(np.zeros((0, 8))) == module.confidence(np.zeros((4, 1))) == 0.0


@BOTH
def test_a_layer_is_compared_with_its_neighbours_only(module: ModuleType) -> None:
    mask = np.full(5, 7, np.uint8)
    values, reach = np.array([5.0, 5.0, 4.0, 1.0, 1.0]), np.ones(5, np.int64)
    assert module.below_neighbours(values, reach, 0.0, mask) == 1
    assert mask.tolist() == [0, 0, 0, 1, 0]
    assert module.below_neighbours(values, reach, 99.0, mask) == 0
    assert module.below_neighbours(values[:1], reach[:1], -99.0, mask[:1]) == 0


@pytest.mark.parametrize("seed", range(40))
def test_kernel_and_twin_agree(seed: int) -> None:
    generator = np.random.default_rng(seed)
    layers, width, size = (
        generator.integers(1, 7),
        generator.integers(1, 5),
        generator.integers(1, 6),
    )
    choices = []
    for module in (ref_layers, got_layers):
        coins = np.random.default_rng(seed)
        table, count = np.zeros((layers, width), np.uint8), 1
        states = np.zeros((width, size))
        states[0] = coins.integers(-2, 3, size)
        for layer in range(layers):
            # Small integers, so that exact ties happen.
            ran = coins.integers(-2, 3, (width, size)).astype(float)
            target = coins.integers(-2, 3, size).astype(float)
            after = np.zeros_like(states)
            may_skip = bool(coins.integers(0, 4))
            count = module.advance(ran, states, count, target, may_skip, after, table[layer])
            states = after
        mask = np.full(layers, 9, np.uint8)
        module.backtrack(table, count - 1, mask)
        values, reach = coins.integers(0, 4, layers).astype(float), coins.integers(0, 4, layers)
        marks = np.zeros(layers, np.uint8)
        number = module.below_neighbours(values, reach, float(coins.integers(-1, 2)), marks)
        choices.append((count, states.tolist(), mask.tolist(), number, marks.tolist()))
        assert mask.sum() == count - 1
    assert choices[0] == choices[1]
    outputs = generator.normal(size=(width, size)) * 10
    assert got_layers.confidence(outputs) == pytest.approx(
        ref_layers.confidence(outputs), abs=1e-12
    )
