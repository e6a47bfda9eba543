"""Plans refuse what cannot run, and know what they cost."""

from __future__ import annotations

import pytest

from specplug.errors import SkipPlanError
from specplug.layers.plan import Plan, worth


def test_an_early_exit_runs_the_first_layers_only() -> None:
    plan = Plan.early_exit(4, 3)
    assert plan.attention == plan.mlp == (True, True, True, False)
    assert (plan.layers, plan.skips, plan.exit_layer, plan.cost()) == (4, 2, 3, 0.75)


def test_sublayers_are_skipped_one_by_one() -> None:
    plan = Plan.skipping(4, attention=[1, 2], mlp=[2])
    assert plan.attention == (True, False, False, True)
    assert plan.mlp == (True, True, False, True)
    assert plan.cost(attention_share=0.25) == pytest.approx((0.25 * 2 + 0.75 * 3) / 4)
    assert Plan.full(4).cost() == 1.0


@pytest.mark.parametrize("exit_layer", [-1, 0, 4, 5])
def test_an_exit_outside_of_the_model_is_refused(exit_layer: int) -> None:
    with pytest.raises(SkipPlanError, match=rf"1 to 3 of 4 layers, got {exit_layer}"):
        Plan.early_exit(4, exit_layer)


def test_a_layer_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        SkipPlanError, match="mlp: there is no layer 4; the model has layers 0 to 3"
    ):
        Plan.skipping(4, mlp=[1, 4])


def test_the_first_attention_is_never_skipped() -> None:
    with pytest.raises(SkipPlanError, match="attention of layer 0"):
        Plan.skipping(4, attention=[0])


def test_flags_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(SkipPlanError, match="got 2 and 1"):
        Plan((True, True), (True,))
    with pytest.raises(SkipPlanError, match="exits at 1 runs layers after it"):
        Plan((True, True), (True, False), exit_layer=1)


def test_what_a_draft_is_worth() -> None:
    assert worth(0.0, 0.5) == worth(0.4, 0.5) == 1.0
    assert worth(0.5, 0.25) == pytest.approx(1.5 / 1.25)
    assert worth(1.0, 0.5) == pytest.approx(17 / 9)
    # By hand: lengths 1 to 3 at 0.9 and 0.3 give 1.4615, 1.6938, 1.8100, ...
    assert worth(0.9, 0.3) == pytest.approx(
        max(sum(0.9**i for i in range(n + 1)) / (1 + 0.3 * n) for n in range(1, 17))
    )
