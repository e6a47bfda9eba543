"""Tables, targets and reliability plots of benchmarks/peers.py, all made from its JSON document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from _comparison import ORACLE
from _drafters import ARCTIC_FACTORS, arctic_name
from _suffix_gpu import SETTINGS as SUFFIX_GPU

ARCTIC = [arctic_name(f) for f in ARCTIC_FACTORS]
NGRAM = "ngram 2-5"
SETTLED = "after_2000_steps"
#: Fewer draft tokens than this show an error of some 0.01 by chance alone, even if every estimate is right.
CALIBRATION_TOKENS = 5000
#: Settings whose host times are put side by side: Arctic's default, and the middle of our costs.
ARCTIC_TIMED = arctic_name(1.0)
LONG_PROMPTS = ("agent_react", "agent_sweagent", "agent_tau", "code_edit_swe")

Document = dict[str, Any]


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive values."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def our_names(document: Document) -> dict[float, str]:
    """The name of our drafter by cost."""
    proposer = document["settings"]["proposer"]
    return {c: f"{proposer} c={c:g}" for c in document["settings"]["costs"]}


def timed_name(document: Document) -> str:
    """The one of ours whose host time is shown."""
    names = list(our_names(document).values())
    return names[len(names) // 2]


def settled_error(figures: Document) -> float | None:
    """Expected calibration error after 2000 steps; None if there were too few draft tokens to say."""
    tokens = sum(row["tokens"] for row in figures[f"reliability_{SETTLED}"])
    error: float | None = figures[f"calibration_error_{SETTLED}"]
    return error if tokens >= CALIBRATION_TOKENS else None


def ratio(figures: Document, ours: str, cost: float) -> tuple[float, str]:
    """Our speedup over Arctic's best setting for this workload and cost, and which setting that is."""
    key = f"{cost:g}"
    best = max(ARCTIC, key=lambda name: figures[name]["speedup"][key])
    return figures[ours]["speedup"][key] / figures[best]["speedup"][key], best


def markdown(document: Document) -> str:
    """The whole report."""
    facts = document["provenance"]
    lines = ["# Suffix drafting beside its peers", ""]
    lines += [f"- {key}: {value}" for key, value in facts.items()]
    lines += [f"- load average at the end: {document['load_average_at_end']}", ""]
    for order, workloads in document["replay"].items():
        lines += [f"## Replay, order: {order}", ""]
        lines += _quality(document, workloads)
        lines += ["", "Both mean acceptance lengths: per step, then per step that had a draft.", ""]
        lines += _lengths(document, workloads)
        lines += ["", f"Host time: {timed_name(document)} beside {ARCTIC_TIMED}.", ""]
        lines += _host(document, workloads)
        lines.append("")
    if document.get("host"):
        lines += ["## Long prompts, large batches, long histories", "", *_micro(document), ""]
    if document.get("batches"):
        lines += ["## Several requests at a time", "", *_batches(document), ""]
    if targets(document):
        lines += ["## Targets", "", *_targets(document)]
    return "\n".join(lines) + "\n"


def _others(document: Document) -> list[str]:
    """Peers that were asked for by an option."""
    return list(SUFFIX_GPU) if document["settings"].get("suffix_gpu") else []


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return lines + ["| " + " | ".join(_cell(v) for v in row) + " |" for row in rows]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _quality(document: Document, workloads: Document) -> list[str]:
    ours = our_names(document)
    head = ["workload"]
    for cost in ours:
        head += [f"s({cost:g})", "Arctic's best", "ratio", NGRAM, *_others(document), ORACLE]
    rows: list[list[object]] = []
    ratios: dict[float, list[float]] = {cost: [] for cost in ours}
    for workload, figures in workloads.items():
        row: list[object] = [workload]
        for cost, name in ours.items():
            key = f"{cost:g}"
            value, best = ratio(figures, name, cost)
            ratios[cost].append(value)
            row += [figures[name]["speedup"][key]]
            row += [f"{figures[best]['speedup'][key]:.3f} ({best[7:]})", value]
            names = [NGRAM, *_others(document), ORACLE]
            row += [figures[name]["speedup"][key] for name in names]
        rows.append(row)
    last: list[object] = ["geometric mean"]
    for cost in ours:
        rest = [None] * (2 + len(_others(document)))
        last += [None, None, geometric_mean(ratios[cost]), *rest]
    return _table(head, [*rows, last])


def _lengths(document: Document, workloads: Document) -> list[str]:
    names = [*our_names(document).values(), *ARCTIC, NGRAM, *_others(document), ORACLE]
    rows = []
    for workload, figures in workloads.items():
        cells = []
        for name in names:
            f = figures[name]
            drafted = f["mean_acceptance_length_drafted"]
            cells.append(f"{f['mean_acceptance_length']:.3f} {drafted or 0:.3f}")
        known = [e for n in our_names(document).values() if (e := settled_error(figures[n]))]
        rows.append([workload, *cells, max(known) if known else None])
    return _table(["workload", *names, "worst calib. error after 2000 steps"], rows)


def _host(document: Document, workloads: Document) -> list[str]:
    name = timed_name(document)
    head = ["workload", "us/step", "Arctic", "ratio", "CPU us/step", "Arctic", "CPU ratio"]
    head += ["step p50", "step p99", "longest ms", "CPU ms", "Arctic longest ms", "bytes/token"]
    rows = []
    for workload, figures in workloads.items():
        ours, arctic = figures[name]["host"], figures[ARCTIC_TIMED]["host"]
        row: list[object] = [workload]
        for key in ("total_us_per_step", "total_cpu_us_per_step"):
            row += [f"{ours[key]:.1f}", f"{arctic[key]:.1f}", ours[key] / arctic[key]]
        row += [f"{ours['step_p50_us']:.1f}", f"{ours['step_p99_us']:.1f}"]
        row += [ours["longest_call_ms"], ours["longest_call_cpu_ms"], arctic["longest_call_ms"]]
        row += [figures[name]["memory"]["request_bytes_per_token"]]
        rows.append(row)
    return _table(head, rows)


def _micro(document: Document) -> list[str]:
    host = document["host"]
    index, batch, histories = host["indexing"], host["batch"], host["histories"]
    ours, arctic = batch["ours"], batch["arctic"]
    rows: list[list[object]] = []
    prompt = f"prompt of {index['tokens']} tokens"
    for label, key in (
        (f"{prompt} and {index['steps']} steps, ms", "wall_ms"),
        (f"{prompt} and {index['steps']} steps, CPU ms", "cpu_ms"),
        (f"{prompt} to its first draft, ms", "first_draft_wall_ms"),
        ("longest of these calls, ms", "longest_call_ms"),
    ):
        a, b = index[f"ours_{key}"], index[f"arctic_{key}"]
        rows.append([label, a, b, a / b])
    name = f"{batch['rows']} requests of {batch['history']} tokens"
    for key, label in (("ms", "ms"), ("cpu_ms", "CPU ms")):
        total = arctic[f"update_and_draft_{key}"]
        rows.append(
            [
                f"{name}: drafting, {label}",
                ours[f"draft_{key}"],
                total,
                ours[f"draft_{key}"] / total,
            ]
        )
        both = ours[f"draft_{key}"] + ours[f"observe_{key}"]
        rows.append([f"{name}: learning and drafting, {label}", both, total, both / total])
    rows.append(
        ["bytes per token of a request", ours["bytes_per_token"], arctic["bytes_per_token"], None]
    )
    rows.append(
        [
            "bytes per token of the store",
            host["store_bytes_per_token"],
            arctic["store_bytes_per_token"],
            None,
        ]
    )
    short, long = histories["lengths"]
    for key in ("wall_us", "cpu_us"):
        a, b = histories[key]
        rows.append([f"step at {short} and {long} tokens of history, {key}", a, b, b / a])
    return _table(["", "ours (or short)", "Arctic (or long)", "ratio"], rows)


def _batches(document: Document) -> list[str]:
    head = ["workload", "at a time", "us per request and step", "Arctic", "ratio"]
    head += ["CPU us", "Arctic", "CPU ratio", "longest call, ms", "Arctic"]
    head += ["mean acceptance length", "Arctic"]
    rows = []
    for workload, sizes in document["batches"].items():
        for size, sides in sizes.items():
            ours, arctic = sides["ours"], sides["arctic"]
            row: list[object] = [workload, f"{size} ({ours['mean_batch']:.1f})"]
            for key in ("wall_us", "cpu_us"):
                row += [f"{ours[key]:.1f}", f"{arctic[key]:.1f}", ours[key] / arctic[key]]
            row += [ours["longest_call_ms"], arctic["longest_call_ms"]]
            lengths = [side["mean_acceptance_length"] for side in (ours, arctic)]
            rows.append([*row, *lengths])
    return _table(head, rows)


def targets(document: Document) -> list[tuple[str, str, bool]]:
    """What was aimed at, what was measured, whether it was reached."""
    found: list[tuple[str, str, bool]] = []
    bounds = {"file": (1.09, 1.03), "interleaved": (1.08, 1.0)}
    for order, workloads in document["replay"].items():
        mean_bound, worst_bound = bounds[order]
        for cost, name in our_names(document).items():
            ratios = {w: ratio(f, name, cost)[0] for w, f in workloads.items()}
            mean, worst = geometric_mean(ratios.values()), min(ratios, key=ratios.__getitem__)
            found.append(
                (
                    f"{order}, c={cost:g}: mean ratio >= {mean_bound}",
                    f"{mean:.3f}",
                    mean >= mean_bound,
                )
            )
            found.append(
                (
                    f"{order}, c={cost:g}: worst ratio >= {worst_bound}",
                    f"{ratios[worst]:.3f} ({worst})",
                    ratios[worst] >= worst_bound,
                )
            )
        found += _calibration_targets(document, order, workloads)
        found += _time_targets(document, order, workloads)
    return found + _host_targets(document.get("host"))


def _calibration_targets(
    document: Document, order: str, workloads: Document
) -> list[tuple[str, str, bool]]:
    errors = {
        f"{w}, {name}": error
        for w, f in workloads.items()
        for name in our_names(document).values()
        if (error := settled_error(f[name])) is not None
    }
    if not errors:
        return []
    worst = max(errors, key=errors.__getitem__)
    text = f"{order}: calibration error after 2000 steps <= 0.03"
    return [(text, f"{errors[worst]:.4f} ({worst})", errors[worst] <= 0.03)]


def _time_targets(
    document: Document, order: str, workloads: Document
) -> list[tuple[str, str, bool]]:
    name, found = timed_name(document), []
    for workload, figures in workloads.items():
        bound = 1 / 10 if workload in LONG_PROMPTS else 1 / 4
        ours, arctic = figures[name]["host"], figures[ARCTIC_TIMED]["host"]
        value = ours["total_us_per_step"] / arctic["total_us_per_step"]
        text = f"{order}, {workload}: host time <= {bound:g} of Arctic's"
        found.append((text, f"{value:.3f}", value <= bound))
    longest = {w: f[name]["host"]["longest_call_ms"] for w, f in workloads.items()}
    worst = max(longest, key=longest.__getitem__)
    found.append(
        (f"{order}: longest call <= 2 ms", f"{longest[worst]:.2f} ({worst})", longest[worst] <= 2)
    )
    return found


def _host_targets(host: Document | None) -> list[tuple[str, str, bool]]:
    if not host:
        return []
    index, batch = host["indexing"], host["batch"]
    ours, total = batch["ours"], batch["arctic"]["update_and_draft_ms"]
    a, b = host["histories"]["wall_us"]
    values = [
        (
            "long prompt <= 1/50 of Arctic's time",
            index["ours_wall_ms"] / index["arctic_wall_ms"],
            1 / 50,
        ),
        ("batch: drafting <= 1/2 of Arctic's", ours["draft_ms"] / total, 0.5),
        (
            "batch: learning and drafting <= Arctic's",
            (ours["draft_ms"] + ours["observe_ms"]) / total,
            1.0,
        ),
        ("step at long over short history <= 1.3", b / a, 1.3),
        ("bytes per token of a request <= 24", ours["bytes_per_token"], 24.0),
        ("bytes per token of the store <= 24", host["store_bytes_per_token"], 24.0),
    ]
    if "long_drafts" in host:
        drafts = host["long_drafts"]
        gain = drafts["mean_acceptance_length"][1] / drafts["mean_acceptance_length"][0]
        values.append(("limit 64 against 8: tokens per step >= 2x", -gain, -2.0))
    return [(text, f"{abs(value):.3f}", value <= bound) for text, value, bound in values]


def _targets(document: Document) -> list[str]:
    rows = [[text, value, "yes" if met else "NO"] for text, value, met in targets(document)]
    return _table(["target", "measured", "reached"], rows)


def plot_reliability(document: Document, folder: Path) -> list[Path]:
    """One PNG per order: estimate against acceptance of every workload, dot area by number of draft tokens."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    for order, workloads in document["replay"].items():
        columns = min(4, len(workloads))
        rows = -(-len(workloads) // columns)
        figure, axes = pyplot.subplots(
            rows,
            columns,
            figsize=(3.2 * columns, 3.2 * rows),
            squeeze=False,
            sharex=True,
            sharey=True,
            layout="constrained",
        )
        for axis, (workload, figures) in zip(axes.flat, workloads.items(), strict=False):
            axis.plot([0, 1], [0, 1], color="0.7", linewidth=1)
            for cost, name in our_names(document).items():
                bins = figures[name]["reliability"]
                total = sum(b["tokens"] for b in bins) or 1
                axis.scatter(
                    [b["estimate"] for b in bins],
                    [b["acceptance_rate"] for b in bins],
                    [4 + 200 * b["tokens"] / total for b in bins],
                    label=f"c={cost:g}",
                    alpha=0.7,
                )
            axis.set_title(workload, fontsize=9)
        for axis in axes.flat[len(workloads) :]:
            axis.axis("off")
        axes.flat[0].legend(fontsize=7)
        figure.supxlabel("estimated probability of acceptance")
        figure.supylabel("accepted share")
        path = folder / f"reliability-{order}.png"
        figure.savefig(path, dpi=110)
        pyplot.close(figure)
        written.append(path)
    return written
