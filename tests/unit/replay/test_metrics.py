"""Counters and the figures made of them, on numbers small enough to check by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specplug.replay.metrics import Durations, HostTime, Reliability, Tally, geometric_mean


def test_calibration_error_by_hand() -> None:
    """Bin 0.9: two tokens estimated 0.95, one accepted. Bin 0.2: two estimated 0.25, none accepted."""
    reliability = Reliability()
    reliability.add(np.array([0.95, 0.95, 0.25]), np.array([True, False, False]))
    reliability.add(np.array([0.25]), np.array([False]))
    assert reliability.error == pytest.approx((abs(1.9 - 1) + abs(0.5 - 0)) / 4)
    assert reliability.rows() == [
        {"from": 0.2, "tokens": 2, "estimate": 0.25, "acceptance_rate": 0.0},
        {"from": 0.9, "tokens": 2, "estimate": 0.95, "acceptance_rate": 0.5},
    ]


def test_perfect_estimates_have_no_error() -> None:
    rng = np.random.default_rng(3)
    survival = rng.random(200_000)
    reliability = Reliability()
    reliability.add(survival, rng.random(200_000) < survival)
    assert reliability.error is not None
    # Ten bins of 20,000 tokens: the error of each is about 0.003, three times that never happens by chance.
    assert reliability.error < 0.009


def test_an_estimate_of_one_falls_into_the_last_bin() -> None:
    reliability = Reliability()
    reliability.add(np.array([1.0]), np.array([True]))
    assert reliability.rows()[0]["from"] == 0.9
    assert Reliability().error is None


def test_quantiles_are_within_a_bin_of_the_exact_ones() -> None:
    rng = np.random.default_rng(4)
    times = np.exp(rng.normal(9, 1.5, 5000)).astype(int)
    durations = Durations()
    for ns in times.tolist():
        durations.add(ns)
    for share in (0.5, 0.9, 0.99):
        exact = float(np.quantile(times, share))
        assert durations.quantile(share) == pytest.approx(exact, rel=0.03)
    assert durations.quantile(1.0) <= durations.longest == times.max()
    assert durations.total == times.sum()
    assert Durations().quantile(0.5) == 0.0


def test_host_time_counts_starting_and_finishing() -> None:
    host = HostTime()
    for durations, ns in (
        (host.start_wall, 10_000),
        (host.step_wall, 2_000),
        (host.step_wall, 4_000),
        (host.finish_wall, 4_000),
    ):
        durations.add(ns)
    figures = host.figures(prompt_tokens=100)
    assert figures["total_us_per_step"] == pytest.approx(10.0)
    assert figures["step_mean_us"] == pytest.approx(3.0)
    assert figures["prompt_ns_per_token"] == pytest.approx(100.0)
    assert figures["longest_call_ms"] == pytest.approx(0.01)


def test_both_mean_acceptance_lengths_and_the_speedup() -> None:
    tally = Tally(steps=10, emitted=25, drafted_steps=4, drafted=30, accepted=15)
    assert tally.mean_acceptance_length == 2.5
    assert tally.mean_acceptance_length_drafted == 1 + 15 / 4
    assert tally.acceptance_rate == 0.5
    assert tally.speedup(0.1) == pytest.approx(25 / (10 + 3))
    assert tally.figures([0.1])["speedup"] == {"0.1": tally.speedup(0.1)}


def test_nothing_replayed_gives_no_figures() -> None:
    tally = Tally()
    assert tally.mean_acceptance_length is None
    assert tally.mean_acceptance_length_drafted is None
    assert tally.acceptance_rate is None
    assert tally.speedup(0.1) is None


def test_geometric_mean() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([2.0, None]) == pytest.approx(2.0)
    assert geometric_mean([]) is None
    assert math.isclose(geometric_mean([1e-5, 1e5]) or 0, 1.0)
