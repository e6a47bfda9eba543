"""The command ``specplug replay``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

DESCRIPTION = """\
What would speculation have brought? Replays recorded requests through proposers, without a model: the proposer drafts,
what agrees with the recorded response is accepted, one more token follows. Logs are JSONL, plain or compressed (.gz,
.zst), with {"prompt", "response"}, {"messages"} or {"text"} per line. speedup@c is emitted tokens per unit of work
if verifying one more draft token costs c plain decoding steps. Reading text needs `pip install 'specplug[replay]'`.
"""
PACKAGES = ("specplug", "numpy", "numba", "tokenizers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("logs", nargs="+", type=Path, metavar="LOG", help="JSONL files")
    add("--tokenizer", required=True, metavar="PATH", help="tokenizer.json, or a folder with one")
    add(
        "--proposer",
        action="append",
        metavar="NAME",
        help="may be given several times (default: suffix)",
    )
    add(
        "--options",
        action="append",
        type=_json_object,
        metavar="JSON",
        help="of the first --proposer, the second, and so on; verify_cost is set to each --cost unless given here",
    )
    add("--width", type=_positive, default=16, metavar="N", help="most draft tokens per step (16)")
    add(
        "--cost",
        type=_costs,
        default=[0.01, 0.03, 0.1],
        metavar="C,...",
        help="costs of verifying one more draft token, in plain steps (0.01,0.03,0.1)",
    )
    add(
        "--order",
        choices=("file", "interleaved"),
        default="file",
        help="a state per file, or one state for all and one request of each file in turn",
    )
    add("--limit", type=_positive, metavar="N", help="read at most N records of each file")
    add("--tag", metavar="FIELD", help="report by this field of each line instead of by file")
    add("--max-length", type=_positive, default=1 << 18, metavar="N", help="leave longer ones out")
    add("--strict", action="store_true", help="stop at the first malformed line")
    add(
        "--check",
        type=_positive,
        nargs="?",
        const=1,
        default=0,
        metavar="N",
        help="check drafts at every step, the proposer's state at every N-th (default 1; slow)",
    )
    add("--through-session", action="store_true", help="time the whole session, as adapters use it")
    add("--no-oracle", action="store_true", help="leave out what the best copy would have brought")
    add("--json", type=Path, metavar="FILE", help="write everything, reliability tables included")
    add("--quiet", action="store_true", help="no progress bar")


def run(chosen: argparse.Namespace) -> int:
    """Replay, print the tables, write the JSON; returns the exit code."""
    from specplug.errors import SpecplugError

    try:
        return _run(chosen)
    except SpecplugError as error:
        print(f"specplug replay: {error}", file=sys.stderr)
        return 1


def _run(chosen: argparse.Namespace) -> int:
    from specplug.errors import LogError, SettingsError
    from specplug.replay import provenance, report, runs, tokenizers, traces
    from specplug.replay.progress import Progress

    names = chosen.proposer or ["suffix"]
    options = chosen.options or []
    if len(options) > len(names):
        raise SettingsError(
            f"{len(options)} times --options, but {len(names)} times --proposer; give one per proposer, in order"
        )
    options += [{}] * (len(names) - len(options))
    # Everything that can be wrong is looked at before the long part.
    variants = [
        variant
        for name, given in zip(names, options, strict=True)
        for variant in runs.variants(name, given, chosen.cost)
    ]
    for path in chosen.logs:
        if not path.is_file():
            raise LogError(f"{path}: no such file")
    if chosen.json is not None and not chosen.json.parent.is_dir():
        raise LogError(f"{chosen.json}: there is no folder {chosen.json.parent}")
    plan = runs.Plan(
        variants,
        [traces.LogFile(p, chosen.strict, chosen.tag, chosen.limit) for p in chosen.logs],
        tokenizers.load_tokenizer(chosen.tokenizer),
        width=chosen.width,
        order=chosen.order,
        max_length=chosen.max_length,
        through_session=chosen.through_session,
        oracle=not chosen.no_oracle,
        check_every=chosen.check,
    )
    facts = provenance.provenance(PACKAGES)
    with Progress(sum(log.size for log in plan.logs), chosen.quiet) as progress:
        outcome = runs.replay(plan, progress)
    print(report.as_text(plan, outcome, chosen.cost))
    if chosen.json is not None:
        report.write_json(chosen.json, report.as_json(plan, outcome, chosen.cost, facts))
    return 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _costs(text: str) -> list[float]:
    costs = [float(part) for part in text.split(",")]
    if not all(0 <= cost < float("inf") for cost in costs):
        raise argparse.ArgumentTypeError(f"costs must be numbers of at least 0, got {text!r}")
    return costs


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"a JSON object is expected, got {text!r}")
    return value
