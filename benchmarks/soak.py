"""Does anything grow? Serves a million requests through the session and looks at memory now and then.

Requests of random length come in batches, some with a prompt template that recurs, every fifth under a namespace that
nobody has used before; they accept parts of their drafts, are preempted, rewound, aborted or dropped. Between two
batches nothing is live, so that every container and every array must have the size it had before, once the tables
of what is remembered (65,536 namespaces, 4,096 beginnings of prompts) are full. Exit code 1 if something has grown.

    python benchmarks/soak.py [--requests 1000000] [--store-mb 8] [--plot soak.png] [--json soak.json]

The memory is that of the whole process, so nothing else may run in it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specplug import registry
from specplug.index import templates
from specplug.proposers.suffix import SuffixProposer
from specplug.replay.provenance import provenance
from specplug.session import Session
from specplug.types import Context, Request

BATCH = 32
VOCABULARY = 32_000
MAX_LENGTH = 4096
#: Share of the run after which nothing may grow any more.
WARM = 0.45


class Sample(NamedTuple):
    """What was found after so many requests: bytes of the process and of all arrays, entries of all containers."""

    requests: int
    resident: int
    arrays: int
    entries: int
    stored: int
    drafted: int
    accepted: int


def resident_bytes() -> int:
    """Physical memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def sizes(root: object) -> tuple[int, int]:
    """Bytes of all arrays and entries of all containers that can be reached from ``root``."""
    seen: set[int] = set()
    waiting: list[Any] = [root]
    arrays = entries = 0
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, np.ndarray):
            arrays += item.nbytes
        elif isinstance(item, dict):
            entries += len(item)
            waiting.extend(v for v in item.values() if not isinstance(v, (str, int, bytes)))
        elif isinstance(item, (list, tuple, set, frozenset)):
            entries += len(item)
            waiting.extend(v for v in item if not isinstance(v, (str, int, bytes)))
        elif type(item).__module__.startswith("specplug"):
            waiting.append(vars(item) if hasattr(item, "__dict__") else None)
            waiting.extend(getattr(item, n, None) for n in getattr(type(item), "__slots__", ()))
    return arrays, entries


class Traffic:
    """Requests, from a seed."""

    def __init__(self, session: Session, seed: int) -> None:
        self.session = session
        self._rng = np.random.default_rng(seed)
        self._templates = self._rng.integers(0, VOCABULARY, (60, 24)).astype(np.int32)
        self._phrases = self._rng.integers(0, VOCABULARY, (400, 12)).astype(np.int32)
        self._serial = 0

    def batch(self) -> None:
        """Serve :data:`BATCH` requests from their beginning to their end."""
        rng, session = self._rng, self.session
        texts: dict[str, Any] = {}
        for _ in range(BATCH):
            name = f"r{self._serial}"
            texts[name] = self._prompt()
            fresh = self._serial % 5 == 0
            namespace = f"user {self._serial}" if fresh else f"team {self._serial % 3}"
            request = Request(name, len(texts[name]), frozenset({7}), namespace=namespace)
            session.begin(request, texts[name])
            self._serial += 1
        for step in range(3):
            # The others are preempted.
            names = [n for n in texts if rng.random() < 0.9]
            if step == 2 and names and rng.random() < 0.1:
                texts[names[0]] = texts[names[0]][:5]  # rewound
            out = session.step(names, [texts[n] for n in names])
            for row, name in enumerate(names):
                draft = out.tokens[row, : out.lengths[row]]
                accepted = draft[: rng.integers(0, len(draft) + 1)]
                said = self._phrases[rng.integers(0, len(self._phrases))]
                grown = [texts[name], accepted, said[: rng.integers(1, 12)]]
                texts[name] = np.concatenate(grown)[:MAX_LENGTH]
        session.finish_all(list(texts)[: BATCH // 2])
        for name in list(texts)[BATCH // 2 :]:
            session.finish(name, keep=bool(rng.random() < 0.9))

    def _prompt(self) -> Any:
        rng = self._rng
        length = 2000 if rng.random() < 0.01 else int(rng.integers(1, 120))
        rest = rng.integers(-1, VOCABULARY, length).astype(np.int32)
        if rng.random() < 0.5:
            return np.concatenate([self._templates[rng.integers(0, 60)], rest])
        return rest


def soak(
    requests: int, store_mb: float, seed: int, points: int, remembered: int | None
) -> Iterator[Sample]:
    """Serve ``requests`` and yield about ``points`` samples; ``remembered`` namespaces and beginnings, if given."""
    context = Context(VOCABULARY, MAX_LENGTH, 8, BATCH)
    proposer = registry.build("suffix", context, {"store_mb": store_mb})
    assert isinstance(proposer, SuffixProposer)
    if remembered is not None:
        proposer.index.namespaces = templates.Namespaces(remembered)
        templates.REMEMBERED = remembered
    session = Session(proposer, context, on_fault="raise")
    # Once now, so that its code is the one that began the run: a checkout may be edited while it goes on.
    assert proposer.check_invariants() == ""
    traffic = Traffic(session, seed)
    batches = -(-requests // BATCH)
    every = max(1, batches // points)
    for number in range(1, batches + 1):
        traffic.batch()
        if number % every == 0 or number == batches:
            arrays, entries = sizes(session)
            stats = session.stats
            yield Sample(
                number * BATCH,
                resident_bytes(),
                arrays,
                entries,
                proposer.index.stored_tokens,
                stats.drafted,
                stats.accepted,
            )
    problem = proposer.check_invariants()
    if problem:
        raise SystemExit(f"an invariant is broken: {problem}")


def growth(samples: list[Sample], warm: float = WARM) -> list[str]:
    """One sentence per thing of which there is more in the last quarter of the run than after the warm-up.

    Arrays and containers hold what the last step left in them (as many numbers as it had rows), hence a small slack.
    """
    total = samples[-1].requests
    late = [s for s in samples if s.requests >= warm * total]
    before = [s for s in late if s.requests < 0.75 * total]
    after = [s for s in late if s.requests >= 0.75 * total]
    found = []
    for name, slack in (("arrays", 1 << 14), ("entries", 64), ("resident", 2 << 20)):
        most, now = (max(getattr(s, name) for s in part) for part in (before, after))
        if now > most + slack:
            found.append(f"{name} grew from {most} to {now}")
    return found


def table(samples: list[Sample]) -> str:
    """Aligned, about a dozen lines."""
    lines = [
        f"{'requests':>10} {'resident MB':>12} {'arrays MB':>10} {'entries':>9} {'stored':>9} {'drafted':>11}"
    ]
    step = max(1, len(samples) // 12)
    shown = samples[::step]
    if shown[-1] is not samples[-1]:
        shown.append(samples[-1])
    lines += [
        f"{s.requests:>10} {s.resident / 2**20:>12.1f} {s.arrays / 2**20:>10.1f} {s.entries:>9} {s.stored:>9} "
        f"{s.drafted:>11}"
        for s in shown
    ]
    return "\n".join(lines)


def plot(samples: list[Sample], path: Path) -> None:
    """Memory over requests."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(layout="constrained", figsize=(7, 3.5))
    x = [s.requests for s in samples]
    axes.plot(x, [s.resident / 2**20 for s in samples], label="resident memory of the process")
    axes.plot(x, [s.arrays / 2**20 for s in samples], label="all arrays")
    axes.axvline(WARM * x[-1], color="grey", linestyle=":", label="nothing may grow from here on")
    axes.set(xlabel="requests served", ylabel="MB", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> int:
    """Soak and report; 1 if something grew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--store-mb", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument(
        "--remembered", type=int, help="fewer namespaces and beginnings: full in a shorter run"
    )
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    chosen = parser.parse_args()
    from tqdm import tqdm

    started = time.perf_counter()
    samples = []
    with tqdm(total=chosen.requests, unit=" requests", disable=chosen.quiet, mininterval=5) as bar:
        for sample in soak(
            chosen.requests, chosen.store_mb, chosen.seed, chosen.points, chosen.remembered
        ):
            samples.append(sample)
            bar.update(sample.requests - bar.n)
    problems = growth(samples)
    print(table(samples))
    print(f"{samples[-1].requests} requests in {time.perf_counter() - started:.0f} s; ", end="")
    print("; ".join(problems) or f"nothing has grown since {WARM:.0%} of them")
    facts = provenance(("specplug", "numpy", "numba"))
    if chosen.json:
        document = {"provenance": facts, "samples": [s._asdict() for s in samples]}
        chosen.json.write_text(json.dumps(document, indent=1) + "\n")
    if chosen.plot:
        plot(samples, chosen.plot)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
