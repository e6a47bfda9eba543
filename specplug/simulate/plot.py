"""The grid as a picture: goodput to that without drafts, over the number of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specplug.figures import new_figure


def plot_grid(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One panel per machine; solid: the controller, dotted: the best constant length of each cell.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    machines = list(dict.fromkeys(row["hardware"] for row in rows))
    figure, axes = new_figure(1, len(machines), (4 * len(machines), 3.6))
    for axis, machine in zip(axes[0], machines, strict=True):
        here = [row for row in rows if row["hardware"] == machine]
        for number, workload in enumerate(dict.fromkeys(row["workload"] for row in here)):
            mine = [row for row in here if row["workload"] == workload]
            counts = [row["requests"] for row in mine]
            colour = f"C{number}"
            axis.plot(
                counts, [r["controller/none"] for r in mine], "o-", color=colour, label=workload
            )
            axis.plot(counts, [r["best/none"] for r in mine], ":", color=colour)
        axis.axhline(1.0, color="grey", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_title(f"{machine} ({here[0]['kind']})", fontsize=9)
        axis.set_xlabel("requests")
    axes[0][0].set_ylabel("goodput to no drafts\nsolid: controller, dotted: best constant length")
    axes[0][0].legend(fontsize=7)
    figure.savefig(path)
