"""The command ``specplug simulate``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specplug.simulate.acceptance import Trace
    from specplug.simulate.hardware import Hardware

DESCRIPTION = """\
A serving engine in simulated time: what the controller of draft lengths would do on other hardware and under other
load. Acceptance is made up (default) or comes from recorded requests (--log); step times of the CPU classes were
measured, those of GPUs follow from published peak figures by the roofline model and were NOT measured.
"""
ARRIVALS = ("closed", "poisson", "bursts")
EXPERIMENTS = ("grid", "mixed", "recovery", "day", "load", "regret")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add(
        "experiment",
        choices=EXPERIMENTS,
        help="what is simulated; docs/controller.md explains each",
    )
    add(
        "--log",
        action="append",
        default=[],
        metavar="KIND=FILE",
        help="recorded requests of a kind (chat, 'code edit', agent), JSONL; others are made up",
    )
    add("--tokenizer", metavar="PATH", help="tokenizer.json of the logs, or a folder with one")
    add("--limit", type=int, default=40, metavar="N", help="records of each log (40)")
    add("--hardware", nargs="+", metavar="NAME", help="h100-8b 4090-8b-int4 cpu-f32 cpu-bf16")
    add(
        "--requests",
        nargs="+",
        type=int,
        default=[1, 4, 16, 64, 256],
        metavar="N",
        help="requests at a time, one cell of the grid each (1 4 16 64 256)",
    )
    add("--tokens", type=int, default=2000, metavar="N", help="per cell of the grid, at least")
    add("--seconds", type=float, default=60.0, help="simulated, per hour of the day or per method")
    add(
        "--arrivals",
        choices=ARRIVALS,
        default="poisson",
        help="of the experiment load: independent requests (default), bursts, or one when another is done",
    )
    add(
        "--load",
        type=float,
        default=0.8,
        metavar="X",
        help="requests per second of the experiment load, as a fraction of what can be served without drafts (0.8)",
    )
    add("--seed", type=int, default=0, help="of arrivals and of made-up acceptance (0)")
    add("--json", type=Path, metavar="FILE", help="write everything")
    add(
        "--plot",
        type=Path,
        metavar="FILE",
        help="the grid as a picture (.svg, .png); needs matplotlib",
    )


def run(chosen: argparse.Namespace) -> int:
    """Run one experiment; prints a table."""
    from specplug.errors import SpecplugError

    try:
        return _run(chosen)
    except SpecplugError as error:
        print(f"specplug simulate: {error}", file=sys.stderr)
        return 1


def _run(chosen: argparse.Namespace) -> int:
    from specplug.errors import SettingsError, did_you_mean
    from specplug.simulate import experiments, load, plot, server
    from specplug.simulate.hardware import HARDWARE

    names = chosen.hardware or ["h100-8b", "4090-8b-int4", "cpu-f32"]
    for name in names:
        if name not in HARDWARE:
            raise SettingsError(f"unknown hardware {name!r}; {did_you_mean(name, HARDWARE)}")
    machines = [HARDWARE[name] for name in names]
    traces = load_traces(chosen)
    for machine in machines:
        print(f"{machine.name}: {machine.kind}; {machine.source}")
    for kind, trace in traces.items():
        share = float((trace.offered > 0).mean())
        print(
            f"{kind}: {len(trace.right)} positions, {share:.0%} with an offer, "
            f"{trace.right.mean():.2f} right on average; {trace.source}"
        )
    begin = time.perf_counter()
    found: dict[str, list[dict[str, Any]]]
    if chosen.experiment == "grid":
        cells = experiments.grid(traces, machines, chosen.requests, chosen.tokens)
        found = {"grid": list(_shown(cells))}
    elif chosen.experiment == "mixed":
        found = {m.name: experiments.mixed_batch(traces, m) for m in machines}
    elif chosen.experiment == "recovery":
        found = {m.name: experiments.recovery(m) for m in machines}
        found |= {f"{m.name}, change of load": load.change_of_load(m) for m in machines}
    elif chosen.experiment == "load":
        found = _under_load(chosen, traces, machines)
    elif chosen.experiment == "day":
        found = {}
        for machine in machines:
            totals, hours = experiments.day(traces, machine, chosen.seconds)
            found |= {machine.name: totals, f"{machine.name}, by the hour": hours}
    else:
        found = {"regret": experiments.regret(traces["mixed"], machines, chosen.requests)}
    for title, rows in found.items():
        print(f"\n{title}\n{as_table(rows)}")
    if chosen.experiment == "load" and not all(r["finished"] for t in found.values() for r in t):
        print(f"\nin {chosen.seconds:g} s some finished no request; --seconds serves longer")
    if chosen.experiment == "grid":
        print(summary(found["grid"]))
        if chosen.plot:
            plot.plot_grid(found["grid"], chosen.plot)
    spent, simulated = time.perf_counter() - begin, server.simulated_seconds()
    speed = (
        f"{simulated:.0f} s simulated in {spent:.0f} s ({simulated / spent:.0f} times real time)"
    )
    print(f"\n{speed}, seed {chosen.seed}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _under_load(
    chosen: argparse.Namespace, traces: Mapping[str, Trace], machines: Sequence[Hardware]
) -> dict[str, list[dict[str, Any]]]:
    from specplug.simulate.load import under_load

    rows = max(chosen.requests)
    return {
        f"{machine.name}, {chosen.arrivals}, at most {rows} requests at a time": [
            row
            for trace in traces.values()
            for row in under_load(
                trace, machine, chosen.arrivals, chosen.load, rows, chosen.seconds, chosen.seed
            )
        ]
        for machine in machines
    }


def load_traces(chosen: argparse.Namespace) -> dict[str, Trace]:
    """Traces by kind, ``mixed`` last."""
    from specplug.errors import SettingsError
    from specplug.simulate.acceptance import KINDS, mixed, recorded, synthetic

    logs = dict(entry.partition("=")[::2] for entry in chosen.log)
    unknown = [kind for kind in logs if kind not in KINDS]
    if unknown:
        raise SettingsError(
            f"--log {unknown[0]!r}: expected KIND=FILE with a kind of {list(KINDS)}"
        )
    if logs and not chosen.tokenizer:
        raise SettingsError("--log needs --tokenizer")
    traces = {}
    for kind in KINDS:
        if kind not in logs:
            traces[kind] = synthetic(kind, 200, chosen.seed)
            continue
        from specplug.replay import tokenizers
        from specplug.replay.traces import Choice, LogFile

        tokenizer = tokenizers.load_tokenizer(chosen.tokenizer)
        log = LogFile(Path(logs[kind]), choice=Choice(limit=chosen.limit))
        records = _tokenised(log, tokenizer)
        traces[kind] = recorded(
            kind, records, "suffix", tokenizer.vocab_size, Path(logs[kind]).name
        )
    traces["mixed"] = mixed(list(traces.values()))
    return traces


def _tokenised(log: Any, tokenizer: Any) -> Iterable[tuple[Any, Any]]:
    import numpy as np

    for record in log:
        texts = [record.prompt, record.response]
        if all(isinstance(text, str) for text in texts):
            prompt, response = tokenizer.encode(texts)
        else:
            prompt, response = (np.asarray(text, np.int32) for text in texts)
        yield prompt, response


def _shown(cells: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for number, cell in enumerate(cells, start=1):
        line = f"\r{number} cells, last {cell['hardware']}, {cell['requests']} requests, {cell['workload']}   "
        print(line, end="", file=sys.stderr, flush=True)
        yield cell
    print(file=sys.stderr)


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Aligned columns."""
    if not rows:
        return "(nothing)"
    names = list(rows[0])
    texts = [[_text(row[name]) for name in names] for row in rows]
    widths = [max(len(n), *(len(t[i]) for t in texts)) for i, n in enumerate(names)]
    head = "  ".join(n.rjust(w) for n, w in zip(names, widths, strict=True))
    body = ["  ".join(t.rjust(w) for t, w in zip(row, widths, strict=True)) for row in texts]
    return "\n".join([head, "-" * len(head), *body])


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """In how many cells the controller is where it should be."""
    near = sum(row["controller/best"] >= 0.97 for row in rows)
    safe = sum(row["controller/none"] >= 0.99 for row in rows)
    worst = min(rows, key=lambda row: row["controller/best"])
    slowest = min(row["controller/none"] for row in rows)
    return (
        f"\nat least 0.97 of the best constant length of the cell: {near} of {len(rows)} "
        f"(worst {worst['controller/best']:.3f}: {worst['hardware']}, {worst['requests']} requests, "
        f"{worst['workload']})"
        f"\nat least 0.99 of no drafts: {safe} of {len(rows)} (worst {slowest:.3f})"
    )
