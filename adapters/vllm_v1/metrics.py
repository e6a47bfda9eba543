"""Counters of the worker, shown by vLLM's own Prometheus endpoint.

Drafts are made in the worker, ``/metrics`` is served by the front end, and nothing of vLLM carries foreign numbers from
one to the other. So each worker keeps its numbers in a small memory-mapped file, and a collector in the front end reads
the files whenever it is asked. vLLM's plugin group for stat loggers is not used: a single plugin in it turns
statistics on for everybody who has set ``--disable-log-stats``.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from specplug.session import Session

#: Set by the front end for the processes that it starts: the folder of the files.
FOLDER_VARIABLE = "SPECPLUG_METRICS_DIR"

#: Published as ``specplug_<name>_total``, with the help text.
COUNTERS = {
    "steps": "steps in which drafts were asked for",
    "rows": "requests, summed over steps",
    "drafted_rows": "requests that had a draft, summed over steps",
    "offered_tokens": "draft tokens that the proposer wrote, before the controller cut them",
    "drafted_tokens": "draft tokens handed to vLLM",
    "accepted_tokens": "draft tokens that the target confirmed",
    "requests": "requests begun",
    "fallbacks": "failures of specplug, after each of which decoding was plain",
    "store_evicted_tokens": "tokens of finished outputs that newer ones have replaced",
}
#: Published as ``specplug_<name>``.
GAUGES = {
    "request_bytes": "memory of the running requests",
    "request_tokens": "tokens of the running requests",
    "store_bytes": "memory of the store of finished outputs",
    "store_tokens": "tokens in the store",
    "store_capacity": "the most tokens that the store can hold",
}
#: Upper bounds of the histogram ``specplug_host_seconds``, what a step waits for specplug.
BUCKETS = (50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 100e-3)
_HISTOGRAM = "host_seconds"
_ROWS = [*COUNTERS, *GAUGES, *(f"bucket {b}" for b in BUCKETS), "bucket +Inf", "sum"]
_PLACE = {name: place for place, name in enumerate(_ROWS)}
_FILE = re.compile(r"(\d+)-(\d+)-(.+)\.f64")
#: Steps between two looks at memory, which take longer than counting.
EVERY = 16


class Published:
    """The numbers of one worker. Writing them costs some microseconds per step."""

    def __init__(self, folder: Path, proposer: str, engine: int) -> None:
        safe = re.sub(r"[^\w.]", "_", proposer)
        path = folder / f"{engine}-{os.getpid()}-{safe}.f64"
        self._numbers: Any = np.memmap(path, np.float64, "w+", shape=(len(_ROWS),))
        self._calls = 0

    @classmethod
    def from_environment(cls, proposer: str, engine: int) -> Published | None:
        """None where no front end has asked for numbers, or where the folder cannot be written."""
        folder = os.environ.get(FOLDER_VARIABLE)
        if not folder:
            return None
        try:
            return cls(Path(folder), proposer, engine)
        except OSError:
            return None

    def step(self, nanoseconds: int) -> None:
        """A step took so long."""
        seconds = nanoseconds / 1e9
        self._numbers[_PLACE["bucket 5e-05"] + bisect_left(BUCKETS, seconds)] += 1
        self._numbers[_PLACE["sum"]] += seconds

    def update(self, session: Session, faults: int, *, ended: bool = False) -> None:
        """Publish the counters of a session and its adapter; the memory when requests ``ended``, and now and then."""
        stats = session.stats
        self._numbers[: len(COUNTERS) - 1] = (
            *(stats.steps, stats.rows, stats.drafted_rows, stats.offered, stats.drafted),
            *(stats.accepted, stats.started, stats.faults + faults),
        )
        memory = getattr(session.proposer, "memory", None)
        if memory is not None and (ended or self._calls % EVERY == 0):
            found: Mapping[str, int] = memory()
            for name in GAUGES:
                self._numbers[_PLACE[name]] = found.get(name, 0)
            self._numbers[_PLACE["store_evicted_tokens"]] = found.get("store_evicted", 0)
        self._calls += 1


class Collector:
    """What ``prometheus_client`` asks in the front end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def describe(self) -> list[Any]:
        """Nothing is known before there is a worker."""
        return []

    def collect(self) -> Iterator[Any]:
        """All families, with the labels ``proposer`` and ``engine`` (the data-parallel replica)."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        found = self._read()
        if not found:
            return
        labels = ["proposer", "engine"]
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"specplug_{name}", f"specplug: {text}.", labels=labels)
            for key, numbers in found.items():
                counter.add_metric(list(key), float(numbers[_PLACE[name]]))
            yield counter
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"specplug_{name}", f"specplug: {text}.", labels=labels)
            for key, numbers in found.items():
                gauge.add_metric(list(key), float(numbers[_PLACE[name]]))
            yield gauge
        text = "specplug: seconds per step that the engine waits for specplug."
        histogram = HistogramMetricFamily(f"specplug_{_HISTOGRAM}", text, labels=labels)
        first = _PLACE["bucket 5e-05"]
        for key, numbers in found.items():
            counts = np.cumsum(numbers[first : first + len(BUCKETS) + 1])
            bounds = [*map(str, BUCKETS), "+Inf"]
            pairs = list(zip(bounds, map(float, counts), strict=True))
            histogram.add_metric(list(key), pairs, float(numbers[_PLACE["sum"]]))
        yield histogram

    def _read(self) -> dict[tuple[str, str], Any]:
        """The numbers of each worker by its labels; of two in the same place, those of the newer one."""
        found: dict[tuple[str, str], tuple[int, Any]] = {}
        for path in self.folder.glob("*.f64"):
            match = _FILE.fullmatch(path.name)
            try:
                numbers = np.fromfile(path, np.float64)
                born = path.stat().st_ctime_ns
            except OSError:  # ended meanwhile
                continue
            if match is None or len(numbers) != len(_ROWS):
                continue
            key = (match.group(3), match.group(1))
            if key not in found or born > found[key][0]:
                found[key] = (born, numbers)
        return {key: numbers for key, (_, numbers) in sorted(found.items())}


def offer() -> None:
    """In the front end, before it starts its workers: make the folder, and show what will lie in it. Idempotent."""
    if os.environ.get(FOLDER_VARIABLE):
        return
    try:
        from prometheus_client import REGISTRY

        folder = tempfile.mkdtemp(prefix="specplug-metrics-")
    except (ImportError, OSError):  # numbers are never worth a server
        return
    os.environ[FOLDER_VARIABLE] = folder
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    REGISTRY.register(Collector(Path(folder)))  # type: ignore[arg-type, unused-ignore]
