"""Counters of the SGLang adapter in the registry that SGLang publishes. Needs prometheus_client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specplug import registry
from specplug.adapters.common.published import COUNTERS, REASONS
from specplug.adapters.sglang_srt.metrics import Metrics
from specplug.control.goodput import GoodputController
from specplug.session import Session
from specplug.types import Context

prometheus = pytest.importorskip("prometheus_client")

pytestmark = pytest.mark.sglang

LABELS = {"proposer": "suffix", "tp_rank": "0"}
CONTEXT = Context(1000, 400, 8, 4)


def published(name: str, **more: str) -> float | None:
    value: float | None = prometheus.REGISTRY.get_sample_value(
        f"specplug_{name}", {**LABELS, **more}
    )
    return value


def served(requests: int) -> Session:
    """A session that has served some requests."""
    proposer = registry.build("suffix", CONTEXT, {"verify_cost": 0.0})
    session = Session(proposer, CONTEXT, controller=GoodputController(CONTEXT))
    text = np.tile(np.arange(20, 50), 4)
    for number in range(requests):
        for length in (60, 61, 65, 100):
            session.step([f"r{number}"], [text[:length]])
        session.finish(f"r{number}")
    return session


@pytest.fixture(scope="module")
def started() -> Metrics:
    metrics = Metrics()
    metrics.counts["steps"] = 3
    metrics.publish()  # nobody listens yet
    metrics.start(LABELS)
    return metrics


def test_what_is_counted_is_published_once(started: Metrics) -> None:
    started.publish()
    assert published("steps_total") == 3
    started.counts["steps"] += 2
    started.counts["drafted_tokens"] += 7
    started.publish()
    started.publish()
    assert (published("steps_total"), published("drafted_tokens_total")) == (5, 7)
    assert published("accepted_tokens_total") == 0
    started.step(60_000)
    assert published("host_seconds_count") == 1
    assert published("host_seconds_bucket", le="0.0001") == 1
    assert published("host_seconds_bucket", le="5e-05") == 0
    assert set(started.as_dict()) == set(COUNTERS)


def test_a_flushed_session_adds_to_what_was_published(started: Metrics) -> None:
    first, second = served(3), served(2)
    for session, faults in ((first, 0), (second, 2), (second, 2)):
        started.look(session, faults, ended=True)
        started.publish()
    sessions = (first, second)
    assert published("requests_total") == 5
    assert published("fallbacks_total") == 2
    assert published("offered_tokens_total") == sum(s.stats.offered for s in sessions) > 0
    cut = sum(s.stats.offered - s.stats.drafted for s in sessions)
    assert published("withheld_tokens_total") == cut
    for table, name in enumerate(("source_drafted_tokens", "source_accepted_tokens")):
        want: Any = sum((s.sources.drafted, s.sources.accepted)[table] for s in sessions)
        for place, source in enumerate(first.sources.names):
            shown = [
                published(f"{name}_total", source=source, position=str(p + 1)) or 0
                for p in range(8)
            ]
            assert shown == want[place].tolist()
    reasons = [published("controller_steps_total", reason=reason) or 0 for reason in REASONS]
    assert sum(reasons) == sum(s.controller.decisions.step for s in sessions) > 0  # type: ignore[attr-defined]
    assert published("store_tokens") == second.proposer.memory()["store_tokens"] > 0  # type: ignore[attr-defined]


def test_a_proposer_whose_memory_raises_costs_no_other_number(
    started: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look after another began with the same error, and nothing was ever published."""
    session = served(1)

    def broken() -> dict[str, int]:
        raise RuntimeError("no idea how much")

    monkeypatch.setattr(session.proposer, "memory", broken)
    before = started.counts["requests"]
    with pytest.raises(RuntimeError, match="no idea"):
        started.look(session, faults=2, ended=True)  # as many as before
    started.publish()
    assert published("requests_total") == started.counts["requests"] == before + 1
    for _ in range(3):
        started.look(session, faults=2)
