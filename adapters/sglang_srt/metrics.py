"""Counters of one worker, as plain values and, where the server publishes metrics, for Prometheus.

SGLang's own ``spec_accept_rate`` assumes that every step drafts the full width, and so reads too low with drafts of
varying length; ``spec_accept_length`` (tokens per verification) is right, steps without a draft counted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.adapters.common.published import (
    BUCKETS,
    BY_SOURCE,
    CONTROLLED,
    COUNTERS,
    DECISIONS,
    DECISIONS_TEXT,
    EVERY,
    GAUGES,
    HISTOGRAM,
    HISTOGRAM_TEXT,
    REASONS,
    controlled,
    decisions,
    memory,
    position_labels,
)
from specplug.session import Session

#: What SGLang's worker counts by itself; the others come from the session.
OWN = (
    *("steps", "rows", "drafted_rows", "unserved_rows"),
    *("drafted_tokens", "accepted_tokens", "fallbacks"),
)


class Metrics:
    """Counts per worker; :meth:`publish` hands what is new to Prometheus.

    Attributes:
        counts: by the worker, see :data:`OWN`, and what :meth:`look` found.
    """

    def __init__(self) -> None:
        self.counts: defaultdict[str, float] = defaultdict(float)
        self._published: defaultdict[str, float] = defaultdict(float)
        self._counters: dict[str, Any] = {}
        self._gauges: dict[str, Any] = {}
        self._histogram: Any = None
        self._families: dict[str, Any] = {}
        self._cells: dict[tuple[str, str, int], Any] = {}
        self._labels: dict[str, str] = {}
        # Of the session that was looked at last: a flush of the cache starts another, which counts from 0.
        self._session: Session | None = None
        self._before: dict[str, float] = {}
        self._tables: NDArray[np.float64] | None = None
        self._looks = self._faults = 0

    def start(self, labels: dict[str, str]) -> None:
        """Register everything with ``prometheus_client``, which SGLang uses for its own."""
        import prometheus_client as prometheus

        names = list(labels)
        for name, text in {**COUNTERS, **CONTROLLED}.items():
            made = prometheus.Counter(f"specplug_{name}", f"specplug: {text}.", names)
            self._counters[name] = made.labels(**labels)
        for name, text in GAUGES.items():
            # Of several processes, the one that writes is the one that drafts.
            gauge = prometheus.Gauge(
                f"specplug_{name}", f"specplug: {text}.", names, multiprocess_mode="mostrecent"
            )
            self._gauges[name] = gauge.labels(**labels)
        histogram = prometheus.Histogram(
            f"specplug_{HISTOGRAM}", f"specplug: {HISTOGRAM_TEXT}.", names, buckets=BUCKETS
        )
        self._histogram = histogram.labels(**labels)
        made = prometheus.Counter(
            f"specplug_{DECISIONS}", f"specplug: {DECISIONS_TEXT}.", [*names, "reason"]
        )
        for reason in REASONS:
            self._counters[f"reason {reason}"] = made.labels(**labels, reason=reason)
        for name, text in BY_SOURCE.items():
            self._families[name] = prometheus.Counter(
                f"specplug_{name}", f"specplug: {text}.", [*names, "source", "position"]
            )
        self._labels = labels

    def step(self, nanoseconds: int) -> None:
        """A step waited so long for specplug."""
        if self._histogram is not None:
            self._histogram.observe(nanoseconds / 1e9)

    def look(self, session: Session | None, faults: int = 0, ended: bool = False) -> None:
        """Take in what a session has counted; the slower part when a request ``ended``, and now and then.

        ``faults`` are those of the adapter so far.
        """
        self.counts["fallbacks"] += faults - self._faults
        self._faults = faults
        if session is None:
            return
        if session is not self._session:
            self._session, self._before, self._tables = session, {}, None
        stats = session.stats
        self._add("offered_tokens", stats.offered)
        self._add("withheld_tokens", stats.offered - stats.drafted)
        self._add("requests", stats.started)
        self._add("fallbacks", stats.faults)
        due = ended or self._looks % EVERY == 0
        self._looks += 1
        if self._counters and due:
            for reason, count in zip(REASONS, decisions(session), strict=False):
                self._add(f"reason {reason}", count)
            for name, total in controlled(session).items():
                self._add(name, total)
            self._look_at_sources(session)
            # Last: of a foreign proposer it may raise, and all the rest is known by then.
            found = memory(session)
            self._add("store_evicted_tokens", found.pop("store_evicted_tokens"))
            for name, value in found.items():
                self._gauges[name].set(value)

    def publish(self) -> None:
        """Add what was counted since the last call."""
        for name, counter in self._counters.items():
            new = self.counts[name] - self._published[name]
            if new:
                counter.inc(new)
                self._published[name] = self.counts[name]

    def as_dict(self) -> dict[str, int]:
        """All counters, zeros included."""
        return {name: int(self.counts[name]) for name in COUNTERS}

    def _add(self, name: str, value: float) -> None:
        self.counts[name] += value - self._before.get(name, 0.0)
        self._before[name] = value

    def _look_at_sources(self, session: Session) -> None:
        sources = session.sources
        tables = np.stack([sources.drafted, sources.accepted])
        new = tables if self._tables is None else tables - self._tables
        self._tables = tables
        positions = position_labels(tables.shape[2])
        names = list(BY_SOURCE)
        for table, source, place in np.argwhere(new > 0).tolist():
            key = (names[table], sources.names[source], place)
            cell = self._cells.get(key)
            if cell is None:
                labels = {"source": key[1], "position": positions[place]}
                cell = self._families[key[0]].labels(**self._labels, **labels)
                self._cells[key] = cell
            cell.inc(float(new[table, source, place]))
