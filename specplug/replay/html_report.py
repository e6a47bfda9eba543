"""The outcome of a replay as one HTML file: tables, and plots as inline SVG. Nothing is fetched when it is opened."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from specplug.errors import MissingExtraError

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222; }
h1 { font-size: 1.6em; } h2 { font-size: 1.2em; margin-top: 2em; } code { background: #f3f3f3; padding: 0 .2em; }
table { border-collapse: collapse; margin: 1em 0; display: block; overflow-x: auto; }
th, td { padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } caption { text-align: left; color: #555; padding: .3em 0; }
figure { display: inline-block; margin: .5em 0; width: 48%; min-width: 24em; vertical-align: top; }
figure svg { width: 100%; height: auto; } figcaption { color: #555; font-size: .9em; padding: 0 1em; }
footer { color: #777; font-size: .85em; margin-top: 3em; white-space: pre-wrap; }
"""
Row = Sequence[object]


def load_library() -> None:
    """Fail early where the plots could not be drawn.

    Raises:
        MissingExtraError: matplotlib is missing.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the HTML report", "matplotlib", "report") from error


def page(document: Mapping[str, Any]) -> str:
    """The whole page for what :func:`specplug.replay.report.as_json` returns. The same document gives the same page."""
    from specplug.replay import plots

    shown = _middle(document["proposers"])
    parts = [f"<h1>What speculation would have brought</h1>{_summary(document, shown)}"]
    parts.append(
        _figure(plots.speedup_by_cost(document), "Tokens per unit of work, plain decoding = 1")
    )
    parts.append(_figure(plots.reliability(shown), "Estimated against actual acceptance"))
    for proposer in shown:
        parts.append(f"<h2>{html.escape(proposer['label'])}</h2>")
        parts.append(_quality(proposer, document["oracle"]))
        parts.append(
            _figure(
                plots.by_position(proposer),
                "Of the drafts that are so long, the share that was accepted up to here",
            )
        )
        if any(w["by_match_length"] for w in proposer["workloads"].values()):
            parts.append(
                _figure(
                    plots.by_match_length(proposer),
                    "Tokens per step by how much of the text before it stood earlier",
                )
            )
        parts.append(_figure(plots.over_time(proposer), "Tokens per step from first to last"))
        parts.append(_host(proposer))
    parts.append(_logs(document["logs"]))
    facts = document["provenance"]
    lines = [f"{key}: {value}" for key, value in facts.items()]
    parts.append(f"<footer>{html.escape(chr(10).join(lines))}</footer>")
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>specplug replay</title><style>{STYLE}</style></head>\n<body>{body}</body></html>\n"
    )


def _middle(proposers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of each proposer the run at the middle cost."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for proposer in proposers:
        groups.setdefault(proposer["label"], []).append(proposer)
    return [members[len(members) // 2] for members in groups.values()]


def _summary(document: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> str:
    settings = document["settings"]
    requests = sum(w["requests"] for w in shown[0]["workloads"].values())
    tokens = sum(w["response_tokens"] for w in shown[0]["workloads"].values())
    best = ", ".join(
        f"<b>{html.escape(p['label'])}</b> {_number(p['geometric_mean']['mean_acceptance_length'])} tokens per step"
        for p in shown
    )
    return (
        f"<p>{requests} requests with {tokens} response tokens, at most {settings['width']} draft tokens per step. "
        f"{best} (geometric mean over workloads; plain decoding gives 1).</p>"
    )


def _quality(proposer: Mapping[str, Any], oracle: Mapping[str, Any] | None) -> str:
    costs = sorted({c for w in proposer["workloads"].values() for c in w["speedup"]}, key=float)
    head = ["workload", "requests", "steps", "MAL", "MAL drafted", "drafted/step", "accepted"]
    head += [f"speedup@{c}" for c in costs] + ["calib. error"] + (["oracle MAL"] if oracle else [])
    rows: list[Row] = []
    for name, w in proposer["workloads"].items():
        row: list[object] = [name, w["requests"], w["steps"], w["mean_acceptance_length"]]
        row += [w["mean_acceptance_length_drafted"], w["drafted"] / max(1, w["steps"])]
        row += [w["acceptance_rate"], *(w["speedup"].get(c) for c in costs), w["calibration_error"]]
        row += [oracle["workloads"][name]["mean_acceptance_length"]] if oracle else []
        rows.append(row)
    return _table("What was guessed. MAL: mean acceptance length, tokens per step", head, rows)


def _host(proposer: Mapping[str, Any]) -> str:
    names = {
        "us/step": "total_us_per_step",
        "CPU us/step": "total_cpu_us_per_step",
        "p50": "step_p50_us",
        "p99": "step_p99_us",
        "longest ms": "longest_call_ms",
        "prompt ns/token": "prompt_ns_per_token",
    }
    rows = [
        [name, *(w["host"][key] for key in names.values()), w["memory"].get("store_tokens")]
        for name, w in proposer["workloads"].items()
    ]
    return _table("Host time and memory", ["workload", *names, "store tokens"], rows)


def _logs(logs: Sequence[Mapping[str, Any]]) -> str:
    head = ["log", "records", "malformed", "too long", "models"]
    rows = [
        [log["name"], log["records"], log["malformed"], log["too_long"], ", ".join(log["models"])]
        for log in logs
    ]
    problems = [p for log in logs for p in log["problems"]]
    listed = "".join(f"<li><code>{html.escape(p)}</code></li>" for p in problems)
    return f"<h2>Logs</h2>{_table('What was read', head, rows)}" + (
        f"<ul>{listed}</ul>" if listed else ""
    )


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _table(caption: str, head: Sequence[str], rows: Sequence[Row]) -> str:
    heads = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    lines = "".join(
        f"<tr>{''.join(f'<td>{html.escape(_number(cell))}</td>' for cell in row)}</tr>\n"
        for row in rows
    )
    return f"<table><caption>{html.escape(caption)}</caption><tr>{heads}</tr>\n{lines}</table>"


def _number(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
