"""Counters of the worker, shown by vLLM's own Prometheus endpoint.

Drafts are made in the worker, ``/metrics`` is served by the front end, and nothing of vLLM carries foreign numbers from
one to the other. So each worker keeps its numbers in a small memory-mapped file, and a collector in the front end reads
the files whenever it is asked. vLLM's plugin group for stat loggers is not used: a single plugin in it turns
statistics on for everybody who has set ``--disable-log-stats``.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

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
    quick,
)

if TYPE_CHECKING:
    from specplug.session import Session

#: Set by the front end for the processes that it starts: the folder of the files.
FOLDER_VARIABLE = "SPECPLUG_METRICS_DIR"

_REST = [*(f"bucket {b}" for b in BUCKETS), "bucket +Inf", "sum", *(f"reason {r}" for r in REASONS)]
#: Rows of a file; behind them stand the two tables of :class:`specplug.sources.DraftSources`.
_ROWS = [*COUNTERS, *CONTROLLED, *GAUGES, *_REST]
_PLACE = {name: place for place, name in enumerate(_ROWS)}
_REASONS = _PLACE[f"reason {REASONS[0]}"]
_FILE = re.compile(r"(\d+)-(\d+)-(.+)\.f64")


class Published:
    """The numbers of one worker. Writing them costs some microseconds per step.

    Args:
        sources: names of the sources of drafts.
        width: positions that are told apart.
    """

    def __init__(
        self, folder: Path, proposer: str, engine: int, sources: Sequence[str], width: int
    ) -> None:
        safe = re.sub(r"[^\w.]", "_", proposer)
        path = folder / f"{engine}-{os.getpid()}-{safe}.f64"
        # The names first: a file of numbers without them is not read.
        path.with_suffix(".json").write_text(json.dumps(list(sources)), encoding="utf-8")
        size = len(_ROWS) + len(BY_SOURCE) * len(sources) * width
        self._numbers: Any = np.memmap(path, np.float64, "w+", shape=(size,))
        self._calls = 0

    @classmethod
    def from_environment(cls, proposer: str, engine: int, session: Session) -> Published | None:
        """None where no front end has asked for numbers, or where the folder cannot be written."""
        folder = os.environ.get(FOLDER_VARIABLE)
        if not folder:
            return None
        sources = session.sources
        try:
            return cls(Path(folder), proposer, engine, sources.names, sources.drafted.shape[1])
        except OSError:
            return None

    def step(self, nanoseconds: int) -> None:
        """A step took so long."""
        seconds = nanoseconds / 1e9
        self._numbers[_PLACE["bucket 5e-05"] + bisect_left(BUCKETS, seconds)] += 1
        self._numbers[_PLACE["sum"]] += seconds

    def update(
        self, session: Session, faults: int, unserved: int = 0, *, ended: bool = False
    ) -> None:
        """Publish the counters of a session and its adapter; the others when requests ``ended``, and now and then."""
        numbers = self._numbers
        counts = quick(session)
        counts["fallbacks"] += faults
        counts["unserved_rows"] = unserved
        numbers[[_PLACE[name] for name in counts]] = list(counts.values())
        if ended or self._calls % EVERY == 0:
            tables = session.sources
            numbers[len(_ROWS) :] = np.concatenate(
                [tables.drafted.ravel(), tables.accepted.ravel()]
            )
            made = decisions(session)
            numbers[_REASONS : _REASONS + len(made)] = made
            found = {**memory(session), **controlled(session)}
            numbers[[_PLACE[name] for name in found]] = list(found.values())
        self._calls += 1


class Found(NamedTuple):
    """The numbers of one worker: those of :data:`_ROWS`, and by table, source and position."""

    numbers: Any
    sources: list[str]
    by_source: Any


class Collector:
    """What ``prometheus_client`` asks in the front end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def describe(self) -> list[Any]:
        """Nothing is known before there is a worker."""
        return []

    def collect(self) -> Iterator[Any]:
        """All families, with the labels ``proposer`` and ``engine`` (the data-parallel replica)."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = self._read()
        if not found:
            return
        labels = ["proposer", "engine"]
        counters = {**COUNTERS, **CONTROLLED}
        for kind, texts in ((CounterMetricFamily, counters), (GaugeMetricFamily, GAUGES)):
            for name, text in texts.items():
                family = kind(f"specplug_{name}", f"specplug: {text}.", labels=labels)
                for key, worker in found.items():
                    family.add_metric(list(key), float(worker.numbers[_PLACE[name]]))
                yield family
        yield _histogram(found, labels)
        family = CounterMetricFamily(
            f"specplug_{DECISIONS}", f"specplug: {DECISIONS_TEXT}.", labels=[*labels, "reason"]
        )
        for key, worker in found.items():
            for reason in REASONS:
                family.add_metric([*key, reason], float(worker.numbers[_PLACE[f"reason {reason}"]]))
        yield family
        for table, (name, text) in enumerate(BY_SOURCE.items()):
            more = [*labels, "source", "position"]
            family = CounterMetricFamily(f"specplug_{name}", f"specplug: {text}.", labels=more)
            for key, worker in found.items():
                for source, row in zip(worker.sources, worker.by_source[table], strict=True):
                    for position, value in zip(position_labels(len(row)), row, strict=True):
                        family.add_metric([*key, source, position], float(value))
            yield family

    def _read(self) -> dict[tuple[str, str], Found]:
        """The numbers of each worker by its labels; of two in the same place, those of the newer one."""
        found: dict[tuple[str, str], tuple[int, Found]] = {}
        for path in self.folder.glob("*.f64"):
            match = _FILE.fullmatch(path.name)
            try:
                numbers = np.fromfile(path, np.float64)
                sources = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
                born = path.stat().st_ctime_ns
            except (OSError, ValueError):  # ended meanwhile, or no file of ours
                continue
            more = len(numbers) - len(_ROWS)
            rows = len(BY_SOURCE) * len(sources)
            if match is None or more <= 0 or not rows or more % rows:
                continue
            key = (match.group(3), match.group(1))
            if key not in found or born > found[key][0]:
                tables = numbers[len(_ROWS) :].reshape(len(BY_SOURCE), len(sources), -1)
                found[key] = (born, Found(numbers[: len(_ROWS)], sources, tables))
        return {key: worker for key, (_, worker) in sorted(found.items())}


def _histogram(found: Mapping[tuple[str, str], Found], labels: list[str]) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    histogram = HistogramMetricFamily(
        f"specplug_{HISTOGRAM}", f"specplug: {HISTOGRAM_TEXT}.", labels=labels
    )
    first = _PLACE["bucket 5e-05"]
    for key, worker in found.items():
        counts = np.cumsum(worker.numbers[first : first + len(BUCKETS) + 1])
        bounds = [*map(str, BUCKETS), "+Inf"]
        pairs = list(zip(bounds, map(float, counts), strict=True))
        histogram.add_metric(list(key), pairs, float(worker.numbers[_PLACE["sum"]]))
    return histogram


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
