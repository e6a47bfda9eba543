"""The two-sample test: exact false-alarm rate, sensible power, right descriptions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency, norm

from specplug.testing.statistics import (
    SampleError,
    Tokens,
    combine,
    compare_samples,
    holm,
    permutations_for,
)

LAW = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.03, 0.01, 0.01])


def draw(generator: np.random.Generator, size: int, law: np.ndarray = LAW) -> list[Tokens]:
    """Answers of two tokens, the second depends on the first."""
    tokens = generator.choice(len(law), (size, 2), p=law)
    tokens[:, 1] = (tokens[:, 0] + tokens[:, 1]) % len(law)
    return [tuple(row) for row in tokens.tolist()]


def biased(law: np.ndarray, distance: float) -> np.ndarray:
    """The law at that total variation distance: mass moved from the likeliest token to the second."""
    other = law.copy()
    other[0] -= distance
    other[1] += distance
    return other


def test_p_values_of_equal_laws_are_uniform() -> None:
    """400 trials: at each level the number of p-values below it lies within 4 standard deviations."""
    generator = np.random.default_rng(1)
    values = np.array(
        [
            compare_samples(
                draw(generator, 300), draw(generator, 200), seed=i, permutations=199
            ).p_value
            for i in range(400)
        ]
    )
    for level in (0.05, 0.25, 0.5, 0.75):
        spread = 4 * np.sqrt(level * (1 - level) * 400)
        assert abs((values <= level).sum() - 400 * level) < spread, level


def test_two_cells_agree_with_the_chi_square_law() -> None:
    """With two large cells there is one table, and the permutation p-value is the textbook one."""
    generator = np.random.default_rng(2)
    first, second = generator.binomial(1, 0.5, 2000), generator.binomial(1, 0.46, 1500)
    table = [np.bincount(first), np.bincount(second)]
    found = compare_samples(
        [(t,) for t in first.tolist()], [(t,) for t in second.tolist()], seed=3, permutations=20_000
    )
    want = chi2_contingency(table, correction=False)
    assert 0.001 < want.pvalue < 0.2
    assert found.p_value == pytest.approx(want.pvalue, rel=0.3)
    assert found.statistics == pytest.approx((norm.isf(want.pvalue),), abs=0.1)


def test_statistics_of_different_tables_are_on_one_scale() -> None:
    """Under permutation each exceeds the normal law's upper hundredth about that often, so none drowns the others."""
    generator = np.random.default_rng(13)
    found = compare_samples(draw(generator, 800), draw(generator, 800), seed=0, permutations=1)
    assert found.tables == ((1, 0), (1, 2), (2, 0), (2, 2))
    values = found.draw(10_000, np.random.default_rng(14))
    shares = (values > norm.isf(0.01)).mean(axis=0)
    assert (shares > 0.006).all(), shares
    assert (shares < 0.016).all(), shares


def test_a_bias_of_a_tenth_is_found_and_described() -> None:
    generator = np.random.default_rng(4)
    first, second = (
        [(t,) for t in generator.choice(10, 2000, p=law).tolist()]
        for law in (LAW, biased(LAW, 0.1))
    )
    found = compare_samples(first, second, seed=5)
    assert found.p_value == 1e-4
    assert found.length == 1
    assert found.prefix in {(0,), (1,)}
    assert found.distance == pytest.approx(0.1, abs=0.04)
    assert abs(found.shares[0] - found.shares[1]) == pytest.approx(0.1, abs=0.04)


def test_a_wrong_dependence_between_tokens_is_found() -> None:
    """Each token alone has the right law, only together they have not."""
    generator = np.random.default_rng(6)
    first = [tuple(row) for row in generator.integers(0, 2, (600, 2)).tolist()]
    second = [(t, t) for t in generator.integers(0, 2, 600).tolist()]
    found = compare_samples(first, second, seed=7)
    assert found.length == 2
    assert found.p_value == 1e-4


def test_answers_that_end_early_are_cells_of_their_own() -> None:
    first: list[Tokens] = [(1,)] * 50 + [(1, 2)] * 50
    second: list[Tokens] = [(1, 2)] * 100
    found = compare_samples(first, second, seed=8)
    assert (found.length, found.cells, found.p_value) == (2, (1, 2), 1e-4)


def test_rare_cells_are_pooled_by_both_samples_together() -> None:
    common = [(0,)] * 90
    found = compare_samples(
        [*common, *((i,) for i in range(1, 11))],
        [*common, *((i,) for i in range(11, 21))],
        seed=9,
    )
    # Twenty tokens, each once: seen in one sample only, and no evidence of anything.
    assert found.cells == (2,)
    assert found.p_value == 1.0


def test_one_single_answer_is_no_evidence() -> None:
    found = compare_samples([("a",)] * 10, [("a",)] * 20, seed=0)
    assert (found.p_value, found.length, found.distance) == (1.0, 0, 0.0)


def test_the_result_is_a_function_of_the_seed() -> None:
    generator = np.random.default_rng(10)
    first, second = draw(generator, 400), draw(generator, 400)
    values = [compare_samples(first, second, seed=s).p_value for s in ([1, 2], [1, 2], [1, 3])]
    assert values[0] == values[1]
    assert values[2] == pytest.approx(values[0], rel=0.4)


def test_a_difference_spread_over_many_comparisons_adds_up() -> None:
    generator = np.random.default_rng(11)
    found = [
        compare_samples(draw(generator, 1000), draw(generator, 1000, biased(LAW, 0.05)), seed=i)
        for i in range(6)
    ]
    together = combine(found, seed=12)
    assert together <= 1e-3
    assert together < min(c.p_value for c in found)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_enough_permutations_for_the_smallest_threshold() -> None:
    assert permutations_for(1, 0.01) == 9999
    assert 10 / (permutations_for(100, 0.01) + 1) <= 0.01 / 100


@pytest.mark.parametrize(
    ("first", "permutations", "message"),
    [([], 10, "got 0 and 1"), ([("a",)], 0, "permutations must be at least 1, got 0")],
)
def test_nothing_to_compare(first: list[Tokens], permutations: int, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        compare_samples(first, [("a",)], seed=0, permutations=permutations)


def test_no_comparisons_to_combine() -> None:
    with pytest.raises(SampleError, match="at least 1 comparison"):
        combine([], seed=0)
