"""Plots of a replay, drawn by matplotlib as SVG that stands inside a page."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Points with fewer steps than this are left out: they are mostly noise.
FEWEST_STEPS = 20
#: Lines that can be told apart; of more workloads the first are drawn.
MOST_LINES = 10


def speedup_by_cost(document: Mapping[str, Any]) -> str:
    """Per proposer, the geometric mean over workloads at each cost."""
    figure, axes = _axes("cost of one more draft token, in plain steps", "speedup")
    lines: dict[str, dict[float, float]] = {}
    for proposer in document["proposers"]:
        known = lines.setdefault(proposer["label"], {})
        for cost, value in proposer["geometric_mean"]["speedup"].items():
            if value is not None:
                known[float(cost)] = value
    for label, points in lines.items():
        costs = sorted(points)
        axes.plot(costs, [points[c] for c in costs], marker="o", label=label)
    axes.axhline(1.0, color="#999", linestyle=":")
    return _svg(figure, axes)


def reliability(proposers: Sequence[Mapping[str, Any]]) -> str:
    """Per proposer, acceptance against its estimate, all workloads together."""
    figure, axes = _axes("estimated probability of acceptance", "accepted")
    axes.plot([0, 1], [0, 1], color="#999", linestyle=":")
    for proposer in proposers:
        bins: dict[float, list[float]] = {}
        for workload in proposer["workloads"].values():
            for row in workload["reliability"]:
                known = bins.setdefault(row["from"], [0.0, 0.0, 0.0])
                known[0] += row["tokens"]
                known[1] += row["tokens"] * row["estimate"]
                known[2] += row["tokens"] * row["acceptance_rate"]
        points = [(e / n, a / n) for _, (n, e, a) in sorted(bins.items()) if n >= FEWEST_STEPS]
        axes.plot(*_columns(points), marker="o", label=proposer["label"])
    return _svg(figure, axes)


def by_position(proposer: Mapping[str, Any]) -> str:
    """Per workload, how many of the drafts that reach a position are accepted up to it."""
    figure, axes = _axes("position in the draft", "accepted so far")
    for name, workload in _first(proposer):
        points = [
            (i + 1, row["accepted"] / row["drafted"])
            for i, row in enumerate(workload["by_position"])
            if row["drafted"] >= FEWEST_STEPS
        ]
        axes.plot(*_columns(points), marker=".", label=name)
    axes.set_ylim(0, 1.02)
    return _svg(figure, axes)


def by_match_length(proposer: Mapping[str, Any]) -> str:
    """Per workload, tokens per step by how long a stretch before the step stood earlier."""
    figure, axes = _axes("tokens before the step that stood earlier (at least)", "tokens per step")
    starts = sorted({r["from"] for _, w in _first(proposer) for r in w["by_match_length"]})
    for name, workload in _first(proposer):
        points = [
            (starts.index(row["from"]), row["emitted"] / row["steps"])
            for row in workload["by_match_length"]
            if row["steps"] >= FEWEST_STEPS
        ]
        axes.plot(*_columns(points), marker="o", label=name)
    axes.set_xticks(range(len(starts)), [str(s) for s in starts])
    return _svg(figure, axes)


def over_time(proposer: Mapping[str, Any]) -> str:
    """Per workload, tokens per step as the log goes on."""
    figure, axes = _axes("share of the steps", "tokens per step")
    for name, workload in _first(proposer):
        total, done, points = sum(r["steps"] for r in workload["over_time"]), 0, []
        for row in workload["over_time"]:
            points.append(((done + row["steps"] / 2) / total, row["emitted"] / row["steps"]))
            done += row["steps"]
        axes.plot(*_columns(points), label=name)
    axes.set_ylim(bottom=0)
    return _svg(figure, axes)


def _first(proposer: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return list(proposer["workloads"].items())[:MOST_LINES]


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _axes(across: str, up: str) -> tuple[Any, Any]:
    # The object interface: nothing global, no display, and no figure that is kept.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any, axes: Any) -> str:
    import matplotlib

    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small", frameon=False)
    out = io.StringIO()
    # Text stays text, and neither ids nor a date change from run to run.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "specplug"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    # The names of the formats look like addresses, but nothing is fetched from them; HTML needs none of them.
    return re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
