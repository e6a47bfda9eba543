"""Figures, table and provenance of the demo."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specplug import __version__
from specplug.machine import usable_cores
from specplug.replay.provenance import commit, cpu
from specplug.testing.engine_protocol import Batch, Counters

Tokens = list[tuple[int, ...]]


@dataclass
class Served:
    """What one method did for one workload: per round the tokens and seconds, and counters over all rounds."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    answers: Tokens = field(default_factory=list)
    decode_steps: int = 0
    drafted_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    def begin_round(self) -> None:
        """The next prompts belong to a new round."""
        self.tokens.append(0)
        self.seconds.append(0.0)

    def add(self, batch: Batch, gained: Counters) -> None:
        """Count one served prompt to the current round."""
        self.tokens[-1] += batch.generated_tokens
        self.seconds[-1] += batch.seconds
        self.answers += batch.tokens
        # The first step of a request is its prefill.
        steps = [len(c.steps) for r in batch.results for c in r.completions]
        self.decode_steps += sum(steps) - len(steps)
        self.drafted_steps += gained.drafted_steps
        self.draft_tokens += gained.draft_tokens
        self.accepted_tokens += gained.accepted_tokens

    def speeds(self) -> list[float]:
        """Tokens per second of each round, prefill included."""
        return [t / s for t, s in zip(self.tokens, self.seconds, strict=True)]

    @property
    def mal_per_drafted_step(self) -> float | None:
        """Tokens per step that had a draft; None where there was none."""
        return 1 + self.accepted_tokens / self.drafted_steps if self.drafted_steps else None

    @property
    def mal_per_step(self) -> float:
        """Tokens per decode step, steps without a draft counted; the token of the prefill is not."""
        return (sum(self.tokens) - len(self.answers)) / max(1, self.decode_steps)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    workload: str
    method: str
    tokens_per_second: float
    ratio: float
    ratio_lowest: float
    ratio_highest: float
    mal_per_drafted_step: float | None
    mal_per_step: float
    draft_tokens: int
    accepted_tokens: int
    identical: int
    prompts: int


def rows(served: Mapping[str, Mapping[str, Served]], baseline: str) -> list[Row]:
    """The table: ratios are medians over rounds of the ratio within a round, where both served the same prompts."""
    found = []
    for workload, methods in served.items():
        plain = methods[baseline]
        for method, one in methods.items():
            ratios = [a / b for a, b in zip(one.speeds(), plain.speeds(), strict=True)]
            found.append(
                Row(
                    workload,
                    method,
                    statistics.median(one.speeds()),
                    statistics.median(ratios),
                    min(ratios),
                    max(ratios),
                    one.mal_per_drafted_step,
                    one.mal_per_step,
                    one.draft_tokens,
                    one.accepted_tokens,
                    sum(a == b for a, b in zip(one.answers, plain.answers, strict=True)),
                    len(plain.answers),
                )
            )
    return found


_HEADER = (
    "workload", "method", "tokens/s", "ratio", "(lowest to highest)", "MAL drafted", "MAL step",
    "drafted", "accepted", "identical",
)  # fmt: skip


def table(found: Sequence[Row]) -> str:
    """The rows as aligned text."""
    lines = [_HEADER]
    for r in found:
        drafted = "-" if r.mal_per_drafted_step is None else f"{r.mal_per_drafted_step:.2f}"
        lines.append(
            (
                r.workload,
                r.method,
                f"{r.tokens_per_second:.1f}",
                f"{r.ratio:.2f}x",
                f"({r.ratio_lowest:.2f} to {r.ratio_highest:.2f})",
                drafted,
                f"{r.mal_per_step:.2f}",
                str(r.draft_tokens),
                str(r.accepted_tokens),
                f"{r.identical} of {r.prompts}",
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADER))]
    text = [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def provenance(info: Mapping[str, Any], dtype: str, seed: int) -> dict[str, Any]:
    """What is needed to repeat the figures, or to distrust them."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "versions": {
            "specplug": __version__,
            "python": platform.python_version(),
            **info["versions"],
        },
        "cpu": cpu(),
        "cores": usable_cores(),
        "load_average": round(os.getloadavg()[0], 2),
        "threads": info["threads"],
        "dtype": dtype,
        "seed": seed,
    }


def as_json(found: Sequence[Row], facts: Mapping[str, Any], settings: Any) -> dict[str, Any]:
    """Everything that the demo found, for a file."""
    return {"provenance": dict(facts), "settings": settings, "rows": [asdict(r) for r in found]}
