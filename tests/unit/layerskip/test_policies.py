"""Each policy on models whose best answer is known, by construction or by trying everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specplug.errors import SkipPlanError
from specplug.kernels.layers import cosine
from specplug.layers.plan import Plan, worth
from specplug.layers.policy import Feedback, LayerPolicy
from specplug.proposers.layerskip.clasp import Clasp
from specplug.proposers.layerskip.conflayers import ConfLayers, ConfLayersOptions, half_windows
from specplug.proposers.layerskip.early_exit import EarlyExit, Fixed
from specplug.proposers.layerskip.swift import SIMILARITY, Swift, SwiftOptions
from specplug.reference.skip_sets import best_skip_set

NOTHING = Feedback((), 0)
Toy = Callable[..., Any]


def skipped_layers(plan: Plan) -> set[int]:
    return {i for i in range(plan.layers) if not plan.attention[i] and not plan.mlp[i]}


def learn(policy: LayerPolicy, model: Any, steps: int) -> Plan:
    for _ in range(steps):
        policy.observe(NOTHING, model)
    return policy.plan()


def test_an_early_exit_stays_where_it_is(toy: Toy) -> None:
    policy = EarlyExit(5, 2)
    assert learn(policy, toy(np.ones(5)), 3) == Plan.early_exit(5, 2)
    assert learn(Fixed(Plan.full(5)), toy(np.ones(5)), 3) == Plan.full(5)


# --- SWIFT ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_swift_finds_the_best_of_all_sets(toy: Toy, seed: int) -> None:
    """Six sublayers lie between the first and the last layer: all 15 pairs are tried for comparison."""
    strengths = np.random.default_rng(seed).uniform(0.1, 1.0, (5, 2))
    model = toy(strengths, seed)
    policy = Swift(5, SwiftOptions(ratio=1 / 3, random_trials=4, good_enough=9.0, seed=seed))
    sublayers = [(kind, layer) for layer in (1, 2, 3) for kind in (0, 1)]

    def score(chosen: frozenset[int]) -> float:
        pairs = [sublayers[i] for i in chosen]
        trial = model.try_plan(
            Plan.skipping(
                5, [i for kind, i in pairs if kind == 0], [i for kind, i in pairs if kind]
            )
        )
        return (trial.matched + SIMILARITY * trial.similarity) / trial.tested

    _, best = best_skip_set(score, range(6), 2)
    plan = learn(policy, model, 60)
    assert plan.skips == 2
    assert policy.best_score == pytest.approx(best)


def test_swift_finds_better_sets_than_chance_does(toy: Toy) -> None:
    """18 of 36 sublayers do next to nothing: 9 billion sets, 100 trials of the same text, five models."""
    scores = np.zeros((5, 2))
    for seed in range(5):
        strengths = np.full((20, 2), 0.3)
        idle = np.random.default_rng(seed).permutation(36)[:18]
        strengths[1 + idle // 2, idle % 2] = 0.01
        for column, random_trials in enumerate((8, 1000)):
            options = SwiftOptions(ratio=0.5, good_enough=0.999, random_trials=random_trials)
            policy = Swift(20, options)
            plan = learn(policy, toy(strengths, seed), 100)
            assert plan.skips == 18
            assert plan.attention[0]
            assert plan.attention[-1]
            scores[seed, column] = policy.best_score
    found, chance = scores.mean(axis=0)
    assert found > chance + 0.05, scores


def test_swift_stops_when_a_set_is_good_enough_and_when_it_finds_no_better(toy: Toy) -> None:
    idle = toy(np.full(6, 1e-9))
    policy = Swift(6, SwiftOptions(good_enough=0.95))
    learn(policy, idle, 20)
    assert policy.trials == len(idle.tried) == 1
    assert not policy.searching
    model = toy(np.ones(6))
    policy = Swift(6, SwiftOptions(patience=5, good_enough=9.0, most_trials=30))
    learn(policy, model, 200)
    assert policy.trials == len(model.tried) <= 30


def test_swift_waits_for_text_and_for_its_turn(toy: Toy) -> None:
    model = toy(np.ones(6))
    model.answers = False
    policy = Swift(6, SwiftOptions(interval=3, good_enough=9.0))
    first = policy.plan()
    learn(policy, model, 9)
    assert policy.trials == 0
    assert policy.plan() == first
    model.answers = True
    learn(policy, model, 9)
    assert policy.trials == 3
    assert model.tried[0] == first


@pytest.mark.parametrize(("layers", "ratio"), [(2, 0.5), (3, 0.1), (10, 0.0), (10, 1.0), (10, 1.5)])
def test_swift_refuses_a_ratio_that_skips_nothing_or_everything(layers: int, ratio: float) -> None:
    with pytest.raises(SkipPlanError, match=rf"of {layers} layers: ratio {ratio} leaves"):
        Swift(layers, SwiftOptions(ratio=ratio))


# --- CLaSp ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("skips", [1, 2, 3])
def test_clasp_skips_exactly_the_layers_that_do_nothing(toy: Toy, skips: int) -> None:
    strengths = np.ones(8)
    idle = np.random.default_rng(skips).permutation(np.arange(1, 8))[:skips]
    strengths[idle] = 0.0
    plan = learn(Clasp(8, skips, interval=1), toy(strengths), 1)
    assert skipped_layers(plan) == set(idle.tolist())


@pytest.mark.parametrize("seed", range(4))
def test_clasp_is_near_the_best_of_all_sets(toy: Toy, seed: int) -> None:
    """The programme is approximate: it loses at most 0.02 of the cosine to the best of all 35 triples here."""
    model = toy(np.random.default_rng(seed).uniform(0.05, 0.6, 8), seed)
    full = model.states()[-1]

    def similarity(chosen: frozenset[int]) -> float:
        plan = Plan.skipping(8, chosen, chosen)
        return cosine(model.after(plan)[-1], full)

    _, best = best_skip_set(similarity, range(1, 8), 3)
    plan = learn(Clasp(8, 3), model, 1)
    assert len(skipped_layers(plan)) == 3
    assert similarity(frozenset(skipped_layers(plan))) >= best - 0.02


def test_clasp_follows_the_text_but_not_at_every_step(toy: Toy) -> None:
    one, other = np.ones(6), np.ones(6)
    one[2] = other[4] = 0.0
    policy = Clasp(6, 1, interval=3)
    assert policy.plan() == Plan.full(6)
    assert skipped_layers(learn(policy, toy(one), 1)) == {2}
    assert skipped_layers(learn(policy, toy(other), 2)) == {2}
    assert skipped_layers(learn(policy, toy(other), 1)) == {4}


def test_clasp_refuses_what_it_cannot_skip() -> None:
    with pytest.raises(SkipPlanError, match=r"1 to 5 of 6 layers .* got 6"):
        Clasp(6, 6)
    with pytest.raises(SkipPlanError, match="interval must be at least 1"):
        Clasp(6, 2, interval=0)


# --- ConfLayers -----------------------------------------------------------------------------------


def test_conflayers_skips_the_layers_that_say_little(toy: Toy) -> None:
    """Outputs near zero have a flat softmax: the least confidence there can be."""
    strengths = np.full(12, 3.0)
    strengths[[3, 6, 9]] = 0.01
    policy = ConfLayers(12, ConfLayersOptions(interval=1))
    plan = learn(policy, toy(strengths, 1), 20)
    assert skipped_layers(plan) == {3, 6, 9}


def test_conflayers_never_ends_with_a_plan_that_it_has_seen_beaten(toy: Toy) -> None:
    for seed in range(4):
        model = toy(np.random.default_rng(seed).uniform(0.0, 1.0, 10), seed)
        policy = ConfLayers(10, ConfLayersOptions(interval=1, again=0))
        plan = learn(policy, model, 40)
        assert not policy.searching
        trials = [(model.try_plan(tried), tried) for tried in list(model.tried)]
        values = [
            worth((t.matched + 0.5 * (1.0 + t.similarity)) / (t.tested + 1.0), tried.cost())
            for t, tried in trials
        ]
        assert plan == trials[int(np.argmax(values))][1]


def test_conflayers_searches_again_after_a_while(toy: Toy) -> None:
    model = toy(np.ones(6))
    policy = ConfLayers(6, ConfLayersOptions(interval=1, again=10))
    learn(policy, model, 20)
    assert not policy.searching
    tried = len(model.tried)
    learn(policy, model, 15)
    assert len(model.tried) > tried


def test_conflayers_without_text_runs_the_whole_model(toy: Toy) -> None:
    model = toy(np.ones(6))
    model.answers = False
    assert learn(ConfLayers(6, ConfLayersOptions(interval=1)), model, 5) == Plan.full(6)
    with pytest.raises(SkipPlanError, match="there are 2 in all"):
        ConfLayers(2)


def test_windows_widen_where_the_confidence_bends_and_with_depth() -> None:
    flat = half_windows(np.zeros(6), 4, 8)
    assert flat.tolist() == [2] * 6
    bent = half_windows(np.array([0, 0, 0, 0, 1.0, 0, 0, 0, 0, 0]), 2, 8)
    assert bent.min() >= 1
    assert bent[6] > bent[4]
    assert half_windows(np.zeros(2), 4, 8).tolist() == [1, 1]
