"""Counters of the SGLang adapter in the registry that SGLang publishes. Needs prometheus_client."""

from __future__ import annotations

import pytest

from specplug.adapters.sglang_srt.metrics import COUNTERS, Metrics

prometheus = pytest.importorskip("prometheus_client")

pytestmark = pytest.mark.sglang


def published(name: str) -> float | None:
    value: float | None = prometheus.REGISTRY.get_sample_value(
        f"specplug_{name}_total", {"tp_rank": "0"}
    )
    return value


def test_what_is_counted_is_published_once() -> None:
    metrics = Metrics()
    metrics.counts["steps"] = 3
    metrics.publish()  # nobody listens yet
    metrics.start({"tp_rank": "0"})
    metrics.publish()
    assert published("steps") == 3
    metrics.counts["steps"] += 2
    metrics.counts["drafted_tokens"] += 7
    metrics.publish()
    metrics.publish()
    assert (published("steps"), published("drafted_tokens")) == (5, 7)
    assert published("accepted_tokens") == 0
    assert set(metrics.as_dict()) == set(COUNTERS)
