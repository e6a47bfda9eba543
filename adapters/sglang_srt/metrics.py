"""Counters of one worker, as plain values and, where the server publishes metrics, for Prometheus.

SGLang's own ``spec_accept_rate`` assumes that every step drafts the full width, and so reads too low with drafts of
varying length; ``spec_accept_length`` (tokens per verification) is right, steps without a draft counted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

#: What is published, with its help text. Names end up as ``specplug_<name>_total``.
COUNTERS = {
    "steps": "verification steps",
    "rows": "requests, summed over steps",
    "drafted_rows": "requests that had a draft, summed over steps",
    "drafted_tokens": "draft tokens verified",
    "accepted_tokens": "draft tokens accepted",
    "withheld_rows": "requests without a draft because of their kind, summed over steps",
    "fallbacks": "steps decoded plainly after a failure of specplug",
}


class Metrics:
    """Counts per worker; :meth:`publish` hands what is new to Prometheus."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._published: Counter[str] = Counter()
        self._counters: dict[str, Any] = {}

    def start(self, labels: dict[str, str]) -> None:
        """Register the counters with ``prometheus_client``, which SGLang uses for its own."""
        from prometheus_client import Counter as PrometheusCounter

        for name, text in COUNTERS.items():
            made = PrometheusCounter(f"specplug_{name}", f"specplug: {text}.", list(labels))
            self._counters[name] = made.labels(**labels)

    def publish(self) -> None:
        """Add what was counted since the last call."""
        for name, counter in self._counters.items():
            new = self.counts[name] - self._published[name]
            if new:
                counter.inc(new)
                self._published[name] = self.counts[name]

    def as_dict(self) -> dict[str, int]:
        """All counters, zeros included."""
        return {name: self.counts[name] for name in COUNTERS}
