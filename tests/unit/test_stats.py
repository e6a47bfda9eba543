"""Ratios of the counters: what each counts, and that none is invented before there is something to count."""

from __future__ import annotations

import pytest

from specplug.stats import SessionStats

RATIOS = ("acceptance_rate", "mean_acceptance_length_drafted", "mean_acceptance_length")


@pytest.mark.parametrize("name", RATIOS)
def test_no_ratio_before_the_first_step(name: str) -> None:
    assert getattr(SessionStats(), name) is None


def test_steps_without_a_draft_count_in_one_mean_and_not_in_the_other() -> None:
    # Ten request-steps, of which four had a draft: 12 tokens, of which 6 came true.
    stats = SessionStats(rows=10, drafted_rows=4, drafted=12, accepted=6)
    assert stats.acceptance_rate == 0.5
    assert stats.mean_acceptance_length_drafted == 2.5
    assert stats.mean_acceptance_length == 1.6


def test_plain_decoding_has_a_mean_length_of_one_and_no_acceptance_rate() -> None:
    stats = SessionStats(steps=3, rows=5)
    assert stats.mean_acceptance_length == 1.0
    assert stats.acceptance_rate is None
    assert stats.mean_acceptance_length_drafted is None


def test_nothing_accepted_is_zero_and_not_none() -> None:
    stats = SessionStats(rows=2, drafted_rows=2, drafted=8)
    assert stats.acceptance_rate == 0.0
    assert stats.mean_acceptance_length_drafted == 1.0


def test_the_dictionary_holds_every_counter_and_ratio() -> None:
    stats = SessionStats(steps=7, rows=10, drafted_rows=4, drafted=12, accepted=6, emitted=16)
    assert stats.as_dict() == {
        "steps": 7,
        "rows": 10,
        "drafted_rows": 4,
        "offered": 0,
        "drafted": 12,
        "accepted": 6,
        "emitted": 16,
        "started": 0,
        "finished": 0,
        "restarted": 0,
        "recycled": 0,
        "clipped": 0,
        "faults": 0,
        "acceptance_rate": 0.5,
        "mean_acceptance_length_drafted": 2.5,
        "mean_acceptance_length": 1.6,
    }
