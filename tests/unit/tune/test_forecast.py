"""The cost file, and the model of a server against sums written out by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.errors import SettingsError
from specplug.replay.metrics import Tally
from specplug.tune.costs import costs_of, read_costs
from specplug.tune.forecast import break_even, counts, forecast, step_seconds

FILE: dict[str, Any] = {
    "version": 1,
    "machine": "m",
    "source": "a test",
    "tokens": [1, 4, 16, 64],
    "relative": [1.0, 1.0, 2.0, 8.0],
    "plain_seconds": 0.01,
}


def test_costs_between_and_beyond_the_knots() -> None:
    costs = costs_of(FILE)
    assert costs.seconds(np.array([1.0, 4, 10, 64, 128])) == pytest.approx(
        [0.01, 0.01, 0.015, 0.08, 0.16]
    )
    assert costs.token_cost(1, drafted=3.0) == 0.0, "the flat part is free"
    assert costs.token_cost(16, drafted=3.0) == pytest.approx((8 - 2) / 2 / 3)


def test_noise_does_not_make_longer_steps_cheaper() -> None:
    costs = costs_of({**FILE, "relative": [1.0, 1.2, 1.1, 8.0]})
    assert costs.relative.tolist() == [1.0, 1.2, 1.2, 8.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2, expected 1"),
        ({"plain_seconds": 0}, "'plain_seconds' must be positive, got 0.0"),
        ({"tokens": [2, 4, 16, 64]}, "must ascend from 1"),
        ({"tokens": [1, 4, 4, 64]}, "must ascend from 1"),
        ({"relative": [1.0, 2.0]}, "must have one length of at least 2, got 4 and 2"),
        ({"relative": [1.0, float("nan"), 1.0, 1.0]}, "'relative' must hold positive numbers"),
        ({"relative": None}, "is no cost file"),
        ({"plain_seconds": None}, "is no cost file"),
    ],
)
def test_what_is_no_cost_file_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({**FILE, **change}))
    with pytest.raises(SettingsError) as caught:
        read_costs(path)
    assert message in str(caught.value)
    assert "`specplug calibrate` writes one" in str(caught.value)


def test_a_missing_cost_file_and_a_missing_field(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        read_costs(tmp_path / "nowhere.json")
    (tmp_path / "cost.json").write_text("{}")
    with pytest.raises(SettingsError, match="no field 'version'"):
        read_costs(tmp_path / "cost.json")


@pytest.mark.parametrize("requests", [1, 2, 3])
def test_a_step_of_a_batch_is_the_mean_over_all_combinations(requests: int) -> None:
    costs, lengths = costs_of(FILE), np.array([5.0, 2.0, 0.0, 3.0])
    law = lengths / lengths.sum()
    expected = 0.0
    for drafts in itertools.product(range(4), repeat=requests):
        weight = np.prod(law[list(drafts)])
        expected += weight * float(costs.seconds(float(requests + sum(drafts))))
    assert step_seconds(lengths, costs, requests) == pytest.approx(expected, rel=1e-12)


def tally(steps: int, drafted: int, accepted: int, prompt: int = 0) -> Tally:
    found = Tally(requests=1, prompt_tokens=prompt, response_tokens=1 + steps * (1 + accepted))
    for _ in range(steps):
        found.step(1 + accepted, drafted, accepted, drafted)
    return found


def test_tokens_per_second_by_hand() -> None:
    """Three draft tokens are free here, two of them are accepted: three tokens per step of 10 ms."""
    found = forecast(counts([tally(10, 3, 2, prompt=4)]), costs_of(FILE), 1)
    assert found.ms_per_token == pytest.approx(10 / 3)
    assert found.plain_ms_per_token == pytest.approx(10)
    assert found.tokens_per_second == pytest.approx(31 / (0.01 + 10 * 0.01))
    assert found.plain_tokens_per_second == pytest.approx(31 / (0.01 + 30 * 0.01))


def test_drafting_nothing_is_plain_decoding() -> None:
    nothing = counts([tally(10, 0, 0)])
    for requests in (1, 7):
        assert forecast(nothing, costs_of(FILE), requests).speedup == pytest.approx(1.0)
    assert counts([]).speedup(0.1) == 1.0
    assert forecast(counts([]), costs_of(FILE), 2).speedup == 1.0


def test_our_host_time_counts_against_us() -> None:
    slow = tally(10, 3, 2)
    for _ in range(10):
        slow.host.step_cpu.add(20_000_000)
    assert forecast(counts([slow]), costs_of(FILE), 1).ms_per_token == pytest.approx(30 / 3)


def test_where_it_stops_to_pay() -> None:
    found = counts([tally(100, 3, 1)])
    speedups = [forecast(found, costs_of(FILE), b).speedup for b in (1, 2, 4, 8, 16)]
    assert speedups[0] > 1.9
    assert speedups[-1] < 1.0
    best = break_even(found, costs_of(FILE), (1, 2, 4, 8, 16))
    assert best == max(b for b, s in zip((1, 2, 4, 8, 16), speedups, strict=True) if s >= 1.0)
    assert break_even(counts([tally(10, 64, 0)]), costs_of(FILE), (1, 2)) is None


def test_the_doubt_is_large_where_the_log_changes() -> None:
    steady, changing = Tally(), Tally()
    for i in range(640):
        steady.step(2, 1, 1, 1)
        changing.step(4 if i < 320 else 1, 1, 1, 1)
    assert counts([steady]).doubt(0.1) == pytest.approx(0.0, abs=1e-9)
    assert counts([changing]).doubt(0.1) > 0.1
    assert counts([]).doubt(0.1) == float("inf")
