"""Numbers travel from the worker to the front end through files; the scrape itself is tested on the real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug import registry
from specplug.adapters.common import published as published_names
from specplug.adapters.vllm_v1 import metrics
from specplug.control.goodput import GoodputController
from specplug.session import Session
from specplug.types import Context

CONTEXT = Context(1000, 400, 8, 4)


def served(store_mb: float = 0.002) -> Session:
    """A session that has served some requests, more than its store holds."""
    proposer = registry.build("suffix", CONTEXT, {"store_mb": store_mb, "verify_cost": 0.0})
    session = Session(proposer, CONTEXT, on_fault="raise")
    text = np.tile(np.arange(20, 50), 4)
    for number in range(6):
        for length in (60, 61, 65, 100):
            session.step([f"r{number}"], [text[:length]])
        session.finish(f"r{number}")
        session.begin(metrics_request(number), text[:3])
        session.step([f"q{number}"], [text[:90]])
        session.finish(f"q{number}")
    return session


def metrics_request(number: int) -> Any:
    from specplug.types import Request

    return Request(f"q{number}", 3)


def value(numbers: Any, name: str) -> float:
    return float(numbers[metrics._PLACE[name]])


def test_what_the_worker_writes_is_what_the_front_end_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(metrics.FOLDER_VARIABLE, str(tmp_path))
    session = served()
    published = metrics.Published.from_environment("suffix", 3, session)
    assert published is not None
    for nanoseconds in (1000, 60_000, 60_000, 10**9):
        published.step(nanoseconds)
    published.update(session, faults=2, unserved=5, ended=True)
    [(labels, found)] = metrics.Collector(tmp_path)._read().items()
    numbers = found.numbers
    assert labels == ("suffix", "3")
    stats = session.stats
    expected = {
        "steps": stats.steps,
        "rows": stats.rows,
        "drafted_rows": stats.drafted_rows,
        "offered_tokens": stats.offered,
        "withheld_tokens": stats.offered - stats.drafted,
        "unserved_rows": 5,
        "drafted_tokens": stats.drafted,
        "accepted_tokens": stats.accepted,
        "requests": stats.started,
        "fallbacks": 2,
        **session.proposer.memory(),  # type: ignore[attr-defined]
    }
    expected["store_evicted_tokens"] = expected.pop("store_evicted")
    assert {name: value(numbers, name) for name in expected} == expected
    assert min(stats.drafted, stats.accepted, expected["store_evicted_tokens"]) > 0
    assert set(expected) == {*published_names.COUNTERS, *published_names.GAUGES}
    counts = numbers[metrics._PLACE["bucket 5e-05"] :][: len(metrics.BUCKETS) + 1]
    assert counts.tolist() == [1, 2, *[0] * 8, 1]
    assert value(numbers, "sum") == pytest.approx(1.000121)
    assert found.sources == ["prompt", "output", "store"]
    assert found.by_source.tolist() == [
        session.sources.drafted.tolist(),
        session.sources.accepted.tolist(),
    ]
    assert found.by_source.sum(axis=(1, 2)).tolist() == [stats.drafted, stats.accepted]
    assert (found.by_source[0].sum(axis=1) > 0).sum() >= 2, "drafts of more than one source"


def test_steps_are_told_apart_by_what_the_controller_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(metrics.FOLDER_VARIABLE, str(tmp_path))
    proposer = registry.build("suffix", CONTEXT, {})
    session = Session(proposer, CONTEXT, controller=GoodputController(CONTEXT))
    published = metrics.Published.from_environment("suffix", 0, session)
    assert published is not None
    text = np.tile(np.arange(20, 30), 9)
    for length in range(60, 90):
        session.step(["r"], [text[:length]])
    published.update(session, faults=0, ended=True)
    [found] = metrics.Collector(tmp_path)._read().values()
    reasons = [value(found.numbers, f"reason {r}") for r in published_names.REASONS]
    assert sum(reasons) == session.controller.decisions.step == 30  # type: ignore[attr-defined]
    assert reasons[published_names.REASONS.index("plan")] > 0
    totals = session.controller.decisions.totals  # type: ignore[attr-defined]
    shown = {name: value(found.numbers, name) for name in published_names.CONTROLLED}
    assert shown == {name: totals[name.split("_")[1]] for name in shown}
    assert shown["controller_budget_tokens"] >= session.stats.drafted
    assert shown["controller_expected_tokens"] > 0
    # The last draft was not judged.
    assert shown["controller_wasted_tokens"] <= totals["drafted"] - totals["accepted"]


def test_each_replica_has_numbers_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(metrics.FOLDER_VARIABLE, str(tmp_path))
    for replica in (0, 1):
        assert metrics.Published.from_environment("my.module:Class", replica, served()) is not None
    (tmp_path / "0-1-short.f64").write_bytes(b"123")
    (tmp_path / "notes.f64").write_bytes(b"")
    (tmp_path / "notes.json").write_text("[]")
    (tmp_path / "0-2-short.f64").write_bytes(b"12345678")
    (tmp_path / "0-2-short.json").write_text("not JSON")
    read = metrics.Collector(tmp_path)._read()
    assert list(read) == [("my.module_Class", "0"), ("my.module_Class", "1")]


def test_without_a_front_end_nothing_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(metrics.FOLDER_VARIABLE, raising=False)
    session = served()
    assert metrics.Published.from_environment("suffix", 0, session) is None
    monkeypatch.setenv(metrics.FOLDER_VARIABLE, str(tmp_path / "gone"))
    assert metrics.Published.from_environment("suffix", 0, session) is None


def test_a_proposer_whose_memory_raises_costs_the_numbers_only(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(metrics.FOLDER_VARIABLE, str(tmp_path))
    host, adapter = make()
    assert adapter._published is not None

    def broken() -> dict[str, int]:
        raise RuntimeError("no memory of it")

    adapter.session.proposer.memory = broken
    host.add("a", [1, 2, 3, 1, 2, 3])
    host.step()
    host.step()
    assert adapter._published is None
    assert adapter.faults == 0
    assert host.running["a"].tokens
