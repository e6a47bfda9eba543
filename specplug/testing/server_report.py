"""What ``specplug check-engine`` shows: progress, the verdict table, JSON."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from types import TracebackType
from typing import Any

from specplug.testing.server_client import Client
from specplug.testing.server_comparison import MODES, Plan, Result, Row

SCHEMA = "specplug.check-engine/1"
_HEADER = ("prompt", "mode", "samples", "distance", "p", "p adjusted", "verdict", "")


class Progress:
    """One line on standard error: redrawn in a terminal, a new one every half minute elsewhere."""

    def __init__(self, total: int, quiet: bool = False) -> None:
        self._total, self._quiet = total, quiet
        self._terminal = sys.stderr.isatty()
        self._done = 0
        self._start = self._shown = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._terminal and not self._quiet:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def done(self, answers: int) -> None:
        """That many answers more have arrived."""
        self._done += answers
        now = time.monotonic()
        if self._quiet or now - self._shown < (0.2 if self._terminal else 30.0):
            return
        self._shown = now
        left = (now - self._start) * (self._total - self._done) / max(1, self._done)
        text = f"{self._done}/{self._total} answers, about {left:.0f} s left"
        sys.stderr.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
        sys.stderr.flush()


def as_text(tested: Client, baseline: Client, plan: Plan, result: Result) -> str:
    """The table and what follows from it."""
    table = [_HEADER, *(_cells(row) for row in result.rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_HEADER))]
    right = (2, 3, 4, 5)
    lines = [
        f"tested    {tested.url}  {tested.model}",
        f"baseline  {baseline.url}  {baseline.model}",
        f"compared  the first {plan.tokens} tokens of sampled answers and {plan.greedy_tokens} of greedy ones, "
        f"as {result.unit}",
        "",
    ]
    for cells in table:
        padded = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join([*lines, "", *_conclusion(plan, result)])


def as_json(tested: Client, baseline: Client, plan: Plan, result: Result) -> dict[str, Any]:
    """Everything that is shown, and the prompts."""
    settings = asdict(plan)
    settings["modes"] = {mode: MODES[mode] for mode in plan.modes}
    return {
        "schema": SCHEMA,
        "verdict": "different" if result.different else "same",
        "tested": {"url": tested.url, "model": tested.model, "drafted": result.drafted[0]},
        "baseline": {"url": baseline.url, "model": baseline.model, "drafted": result.drafted[1]},
        "unit": result.unit,
        "settings": settings,
        "rows": [asdict(row) for row in result.rows],
    }


def _cells(row: Row) -> tuple[str, ...]:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    return (
        row.prompt,
        row.mode,
        str(row.samples),
        # Of two equal laws it is all noise, and would only alarm.
        number(row.distance if row.verdict == "different" else None, ".3f"),
        number(row.p_value, ".2g"),
        number(row.adjusted, ".2g"),
        row.verdict,
        row.detail,
    )


def _conclusion(plan: Plan, result: Result) -> list[str]:
    lines = []
    drafted = result.drafted[0]
    if drafted == 0:
        lines.append(
            "WARNING: by its own count the tested server made no draft meanwhile, "
            "so nothing about speculation was tested."
        )
    elif drafted is not None:
        lines.append(f"The tested server counted {drafted:.0f} drafts meanwhile.")
    if result.drafted[1]:
        lines.append(
            f"WARNING: the baseline server counted {result.drafted[1]:.0f} drafts meanwhile."
        )
    bad = sum(row.verdict == "different" for row in result.rows)
    rate = f"false alarms over the sampled rows: at most {plan.alpha:.2%} of runs"
    if bad:
        lines.append(f"DIFFERENT in {bad} of {len(result.rows)} rows ({rate}).")
    else:
        lines.append(f"SAME: no difference found in {len(result.rows)} rows ({rate}).")
    return lines
