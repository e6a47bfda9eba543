"""Rules that end a draft: what they see, what they learn, and that a hopeless drafter costs next to nothing."""

from __future__ import annotations

import numpy as np
import pytest

from specplug.errors import SkipPlanError
from specplug.layers.policy import Feedback, StopRule
from specplug.proposers.layerskip.stopping import Always, Paying, PayingOptions, Threshold


def serve(
    rule: StopRule,
    chance: float,
    steps: int,
    cost: float,
    seed: int = 0,
    claimed: float | None = None,
) -> tuple[float, float, float]:
    """Emitted tokens, plain steps of time, and drafts of a drafter that is right with ``chance`` and knows it."""
    confidence = chance if claimed is None else claimed
    coins = np.random.default_rng(seed)
    tokens = time = drafts = 0.0
    for _ in range(steps):
        rule.begin()
        confidences: list[float] = []
        time += 1.0
        while len(confidences) < 8 and rule.runs():
            time += cost
            if not rule.proposes(confidence):
                break
            confidences.append(confidence)
        kept = coins.random(len(confidences)) < chance
        accepted = len(kept) if kept.all() else int(kept.argmin())
        rule.observe(Feedback(tuple(confidences), accepted))
        tokens += 1 + accepted
        drafts += len(confidences)
    return tokens, time, drafts


def test_always_drafts_as_much_as_is_allowed() -> None:
    assert serve(Always(), 0.0, 5, 0.1)[2] == 40


def test_a_threshold_falls_while_drafts_are_accepted_and_rises_while_they_are_not() -> None:
    rule = Threshold(0.6, target=0.8)
    assert rule.runs()
    assert rule.proposes(0.6)
    assert not rule.proposes(0.59)
    for _ in range(50):
        rule.observe(Feedback((0.9, 0.9), 2))
    assert rule.threshold == 0.0
    for _ in range(60):
        rule.observe(Feedback((0.9, 0.9), 0))
    assert rule.threshold == 1.0


def test_a_threshold_that_nothing_reaches_comes_down_again() -> None:
    rule = Threshold(1.0)
    for _ in range(30):
        rule.observe(Feedback((), 0))
    assert rule.threshold == pytest.approx(0.4)


@pytest.mark.parametrize("name", ["threshold", "target", "step", "smoothing"])
def test_a_threshold_outside_of_0_to_1_is_refused(name: str) -> None:
    with pytest.raises(SkipPlanError, match=f"{name} must lie between 0 and 1, got 1.5"):
        Threshold(**{name: 1.5})


def test_a_good_drafter_is_used() -> None:
    tokens, time, drafts = serve(Paying(0.2, 0.0), 0.9, 400, 0.2)
    best = max(sum(0.9**i for i in range(n + 1)) / (1 + 0.2 * n) for n in range(1, 9))
    assert tokens / time > 0.95 * best
    assert drafts > 800


def test_a_dear_drafter_that_is_better_than_it_knows_is_kept() -> None:
    """It claims 0.2, is right 95 times of 100 and costs 0.6 steps: four trials must be enough to see that."""
    tokens, time, _ = serve(Paying(0.6, 0.03), 0.95, 60, 0.63, claimed=0.2)
    assert tokens / time > 1.15


def test_costs_are_measured_if_none_are_given() -> None:
    rule = Paying()
    for _ in range(200):
        rule.timed(0.004, 0.010)
    assert rule.draft_cost == pytest.approx(0.4)
    fixed = Paying(0.7)
    fixed.timed(0.004, 0.010)
    assert fixed.draft_cost == 0.7


def test_slow_passes_do_not_look_like_the_rule() -> None:
    """The first pass of a process, and now and then one that was held up."""
    rule = Paying()
    for step in range(100):
        rule.timed(1.0 if step % 10 == 0 else 0.004, 0.010)
        if step > 1:
            assert rule.draft_cost == pytest.approx(0.4)


def test_a_hopeless_drafter_costs_less_than_one_percent() -> None:
    """An early exit of an untrained model: half of the work, two per cent right."""
    rule = Paying(0.5, 0.03)
    tokens, time, _ = serve(rule, 0.02, 200, 0.5)
    assert tokens / time > 0.97
    before, late = time, serve(rule, 0.02, 2000, 0.5, seed=1)
    assert before < 206.0
    assert late[1] / 2000 < 1.01


def test_a_drafter_that_becomes_good_is_found_again() -> None:
    rule = Paying(0.3, 0.0, PayingOptions(first_pause=8, longest_pause=64))
    serve(rule, 0.05, 300, 0.3)
    serve(rule, 0.95, 300, 0.3, seed=1)
    tokens, time, _ = serve(rule, 0.95, 100, 0.3, seed=2)
    assert tokens / time > 1.5


def test_confidence_that_means_nothing_is_unlearned() -> None:
    """Tokens that claim 0.95 and are right half of the time: drafts get short."""
    rule = Paying(0.05, 0.05)
    coins = np.random.default_rng(0)
    lengths = []
    for _ in range(400):
        rule.begin()
        count = 0
        while count < 8 and rule.runs() and rule.proposes(0.95):
            count += 1
        kept = coins.random(count) < 0.5
        accepted = count if kept.all() else int(kept.argmin())
        rule.observe(Feedback((0.95,) * count, accepted))
        lengths.append(count)
    assert lengths[0] == 8
    assert 1 <= np.mean(lengths[-50:]) < 4


def test_nothing_is_learned_about_what_was_never_judged() -> None:
    """A draft behind the first rejection may have been right or wrong: nobody knows."""
    one, other = Paying(0.2), Paying(0.2)
    for rule, confidences in ((one, (0.9, 0.1)), (other, (0.9, 0.1, 0.4, 0.4))):
        rule.begin()
        assert rule.runs()
        unlearned = rule._rates().tolist()
        rule.observe(Feedback(confidences, 1))
        assert rule._rates().tolist() != unlearned
    assert one._rates().tolist() == other._rates().tolist()


def step(rule: Paying, right: bool, rows: int = 1, most: int = 3) -> int:
    """One step of a batch; how many tokens it drafted, all of them right or none."""
    rule.begin()
    count = 0
    while count < most and rule.runs() and rule.proposes(0.8):
        count += 1
    for _ in range(rows):
        rule.observe(Feedback((0.8,) * count, count if right else 0))
    rule.begin()
    return count


def test_steps_without_room_for_a_draft_neither_pause_nor_shorten_a_pause() -> None:
    """One step in eight, with blocks of 16 tokens; a request that wants no drafts in every step."""
    rule = Paying(0.1)
    for _ in range(50):
        assert step(rule, True) == 3
        for _ in range(3):
            rule.observe(Feedback((), 0))
            rule.begin()
    while rule.paused == 0:
        step(rule, False)
    left = rule.paused
    for _ in range(left):
        rule.observe(Feedback((), 0))
        rule.begin()
    assert rule.paused == left


@pytest.mark.parametrize("rows", [1, 7, 64, 300])
def test_a_batch_is_one_trial_and_shortens_a_pause_by_one_step(rows: int) -> None:
    """Two bad steps of a large batch must not end drafting, nor a pause be over, or longer, by one step."""
    rule = Paying(0.1)
    for number in range(40):
        assert step(rule, number > 1, rows) > 0
    while rule.paused == 0:
        step(rule, False, rows)
    for left in range(rule.options.first_pause - 1, -1, -1):
        assert step(rule, False, rows) == 0
        assert rule.paused == left


def test_one_bad_step_of_a_large_batch_weighs_as_much_as_one_of_a_small_batch() -> None:
    rule = Paying(0.1)
    for _ in range(20):
        assert step(rule, True) > 0
    assert step(rule, False, 300) > 0
    assert rule.paused == 0


def test_rows_that_gain_pay_for_those_that_do_not() -> None:
    """A pass delays all rows of the batch, so their mean decides."""
    rule = Paying(0.2, 0.0)
    for _ in range(100):
        rule.begin()
        count = 0
        while count < 3 and rule.runs() and rule.proposes(0.8):
            count += 1
        assert count > 0
        for accepted in (count, count, count, 0):
            rule.observe(Feedback((0.8,) * count, accepted))


def test_a_drafter_that_becomes_good_at_the_same_confidence_is_found_again() -> None:
    """A trial whose tokens are never verified could not find out."""
    rule = Paying(0.1)
    for _ in range(1000):
        step(rule, False, 32)
    steps = 0
    while sum(step(rule, True, 32) for _ in range(50)) < 100:
        steps += 50
        assert steps < 5000


def test_tokens_that_were_never_verified_gain_nothing_but_teach() -> None:
    """A controller cut every draft to nothing; that the target said the same shows that they were right."""
    rule = Paying(0.5)
    before = rule._average()
    for _ in range(5):
        rule.begin()
        assert rule.runs()
        assert rule.proposes(0.8)
        rule.observe(Feedback((0.8,), 1, verified=0))
    rule.begin()
    assert rule.paused > 0
    assert rule._average() > before
    assert Feedback((0.8, 0.8), 2, verified=1).gained == 1
    assert Feedback((0.8, 0.8), 2).gained == 2


@pytest.mark.parametrize(
    ("draft", "verify", "bins"), [(-0.1, 0.0, 4), (0.1, -1.0, 4), (0.1, 0.0, 0)]
)
def test_costs_below_zero_are_refused(draft: float, verify: float, bins: int) -> None:
    with pytest.raises(
        SkipPlanError,
        match="costs must be at least 0 plain steps, bins at least 1",
    ):
        Paying(draft, verify, PayingOptions(bins=bins))
