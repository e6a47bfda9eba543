"""The outcome of a replay as a table for a terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specplug.errors import LogError
from specplug.files import replace_file
from specplug.replay.concurrent import Load
from specplug.replay.metrics import Tally, geometric_mean
from specplug.replay.runs import Outcome, Plan, Variant

SCHEMA = "specplug.replay/2"
Cell = str | float | int | None
#: Header, decimals.
Column = tuple[str, int]


def as_json(
    plan: Plan, outcome: Outcome, costs: Sequence[float], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that was counted. Only ``provenance`` and what stands under keys ``host`` differs between runs."""
    shown = list(costs)
    return {
        "schema": SCHEMA,
        "provenance": dict(facts),
        "settings": {
            "width": plan.width,
            "costs": list(costs),
            "order": plan.order,
            "through_session": plan.through_session,
            "max_length": plan.max_length,
            "concurrency": plan.traffic.running if plan.traffic else None,
            "step_seconds": plan.traffic.step_seconds if plan.traffic else None,
            "tokenizer": {"sha256": plan.tokenizer.digest, "vocab_size": plan.tokenizer.vocab_size},
        },
        "logs": [
            {
                "name": log.name,
                "records": log.records,
                "malformed": log.malformed,
                "problems": log.problems,
                "models": dict(log.models),
                "too_long": outcome.too_long.get(log.name, 0),
            }
            for log in plan.logs
        ],
        "proposers": [
            {
                "name": variant.name,
                "label": variant.label,
                "options": dict(variant.options),
                "cost": variant.cost,
                **_workloads(tallies, shown if variant.cost is None else [variant.cost]),
                "load": outcome.loads[i].figures() if outcome.loads else None,
            }
            for i, (variant, tallies) in enumerate(zip(plan.variants, outcome.tallies, strict=True))
        ],
        "oracle": _workloads(outcome.oracle, shown) if plan.oracle else None,
    }


def _workloads(tallies: Mapping[str, Tally], costs: Sequence[float]) -> dict[str, Any]:
    figures = {name: tally.figures(costs) for name, tally in tallies.items()}
    rows = figures.values()
    return {
        "workloads": figures,
        "geometric_mean": {
            "mean_acceptance_length": geometric_mean(r["mean_acceptance_length"] for r in rows),
            "speedup": {
                f"{cost:g}": geometric_mean(r["speedup"][f"{cost:g}"] for r in rows)
                for cost in costs
            },
        },
    }


def as_text(plan: Plan, outcome: Outcome, costs: Sequence[float]) -> str:
    """Per proposer a table of what it guessed and one of what it cost the host, then what is to be said of the logs."""
    groups: dict[str, list[tuple[Variant, dict[str, Tally]]]] = {}
    for variant, tallies in zip(plan.variants, outcome.tallies, strict=True):
        groups.setdefault(variant.label, []).append((variant, tallies))
    parts = []
    if len(groups) > 1:
        parts += ["side by side", _side_by_side(groups, costs)]
    for label, members in groups.items():
        shown, tallies = members[len(members) // 2]
        setting = "" if shown.cost is None else f", figures without a cost at {shown.cost:g}"
        parts.append(f"{label}: at most {plan.width} draft tokens per step{setting}")
        parts.append(_quality(members, tallies, outcome.oracle if plan.oracle else {}, costs))
        parts.append("host time and memory")
        parts.append(_host(tallies))
    for i, load in enumerate(outcome.loads):
        parts.append(_load(plan.variants[i], load))
    return "\n\n".join([*parts, *remarks(plan, outcome)])


def _side_by_side(
    groups: Mapping[str, list[tuple[Variant, dict[str, Tally]]]], costs: Sequence[float]
) -> str:
    """Per workload and proposer the two figures that decide, at the middle cost."""
    cost = costs[len(costs) // 2]
    columns: list[Column] = [("workload", 0)]
    chosen: list[dict[str, Tally]] = []
    for label, members in groups.items():
        columns += [(f"{label} MAL", 3), (f"speedup@{cost:g}", 3)]
        by_cost = {variant.cost: tallies for variant, tallies in members}
        chosen.append(by_cost.get(cost, members[0][1]))
    rows: list[list[Cell]] = []
    for name in chosen[0]:
        row: list[Cell] = [name]
        for tallies in chosen:
            row += [tallies[name].mean_acceptance_length, tallies[name].speedup(cost)]
        rows.append(row)
    return table(columns, rows, {head for head, _ in columns[1:]})


def _load(variant: Variant, load: Load) -> str:
    found = load.figures()
    mean = found["mean_batch"] or 0.0
    cost = "" if variant.cost is None else f" at cost {variant.cost:g}"
    return (
        f"batches of {variant.label}{cost}: {found['steps']} engine steps, {mean:.2f} requests each (at most "
        f"{found['largest_batch']}); host time per engine step p50 {found['host']['step_p50_us']:.0f} us, "
        f"p99 {found['host']['step_p99_us']:.0f} us"
    )


def remarks(plan: Plan, outcome: Outcome) -> list[str]:
    """What was left out of the figures, one paragraph per log that has something."""
    found = []
    for log in plan.logs:
        if log.malformed:
            found.append(
                f"{log.path}: {log.malformed} malformed lines were left out, {log.records} read; the first:\n"
                + "\n".join(f"  {problem}" for problem in log.problems)
            )
        if len(log.models) > 1:
            counts = ", ".join(f"{name} {n}" for name, n in log.models.most_common())
            found.append(
                f"{log.path}: several models answered ({counts}), but one tokenizer counted; --model NAME keeps one"
            )
        if outcome.too_long.get(log.name):
            found.append(
                f"{log.path}: {outcome.too_long[log.name]} records of more than {plan.max_length} tokens were left "
                "out; --max-length takes more"
            )
    return found


def _quality(
    members: Sequence[tuple[Variant, Mapping[str, Tally]]],
    shown: Mapping[str, Tally],
    oracle: Mapping[str, Tally],
    costs: Sequence[float],
) -> str:
    by_cost = {variant.cost: tallies for variant, tallies in members}
    columns: list[Column] = [("workload", 0), ("requests", 0), ("steps", 0), ("tokens", 0)]
    columns += [("MAL", 3), ("MAL drafted", 3), ("drafted/step", 2), ("accepted", 3)]
    columns += [(f"speedup@{cost:g}", 3) for cost in costs] + [("calib. error", 4)]
    columns += [("oracle MAL", 3)] if oracle else []
    rows: list[list[Cell]] = []
    for name, tally in shown.items():
        row: list[Cell] = [name, tally.requests, tally.steps, tally.emitted]
        row += [tally.mean_acceptance_length, tally.mean_acceptance_length_drafted]
        row += [tally.drafted / max(1, tally.steps), tally.acceptance_rate]
        row += [by_cost.get(cost, shown)[name].speedup(cost) for cost in costs]
        row += [tally.reliability.error]
        row += [oracle[name].mean_acceptance_length] if oracle else []
        rows.append(row)
    means = {"MAL", "MAL drafted", "oracle MAL", *(f"speedup@{cost:g}" for cost in costs)}
    return table(columns, rows, means)


def _host(shown: Mapping[str, Tally]) -> str:
    figures = (
        ("us/step", "total_us_per_step", 1),
        ("CPU us/step", "total_cpu_us_per_step", 1),
        ("step p50", "step_p50_us", 1),
        ("step p99", "step_p99_us", 1),
        ("longest ms", "longest_call_ms", 2),
        ("(CPU ms)", "longest_call_cpu_ms", 2),
        ("prompt ns/token", "prompt_ns_per_token", 1),
    )
    columns: list[Column] = [("workload", 0), *((head, digits) for head, _, digits in figures)]
    columns += [("bytes/token", 1), ("store MB", 1), ("store tokens", 0)]
    rows: list[list[Cell]] = []
    for name, tally in shown.items():
        host = tally.host.figures(tally.prompt_tokens)
        per_token = tally.request_bytes / tally.request_tokens if tally.request_tokens else None
        store = tally.store
        megabytes = store["store_bytes"] / 2**20 if store else None
        row: list[Cell] = [name, *(host[key] for _, key, _ in figures)]
        rows.append([*row, per_token, megabytes, store.get("store_tokens")])
    return table(columns, rows, {"us/step", "CPU us/step", "step p50", "step p99"})


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], means: set[str]) -> str:
    """Aligned text: a header, the rows, and a last line with the geometric means of the columns named in ``means``."""
    last: list[Cell] = ["geometric mean"]
    for i, (head, _) in enumerate(columns[1:], 1):
        values = [row[i] for row in rows]
        numbers = [v for v in values if isinstance(v, (int, float))]
        last.append(geometric_mean(numbers) if head in means else None)
    lines = [[head for head, _ in columns]]
    for row in [*rows, last]:
        lines.append([_cell(v, d) for v, (_, d) in zip(row, columns, strict=True)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cell(value: Cell, digits: int) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.{digits}f}"


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """See :func:`write_text`."""
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` in one step: readers see the old content or the whole new one.

    Raises:
        LogError: it cannot be written.
    """
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise LogError(f"{path}: cannot be written: {error}") from error
