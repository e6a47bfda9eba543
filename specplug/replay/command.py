"""The command ``specplug replay``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specplug.replay.concurrent import Traffic
    from specplug.replay.tokenizers import TextTokenizer
    from specplug.replay.traces import LogFile

DESCRIPTION = """\
What would speculation have brought? Replays recorded requests through proposers, without a model: the proposer drafts,
what agrees with the recorded response is accepted, one more token follows. Logs are JSONL (prompt and response, OpenAI
chats, responses and what proxies record), Parquet, or what vLLM and SGLang log themselves; plain or compressed.
speedup@c is emitted tokens per unit of work if verifying one more draft token costs c plain decoding steps. Reading
text needs `pip install 'specplug[replay]'`, Parquet 'specplug[parquet]', --html 'specplug[report]'.
"""
#: Requests in a batch with --arrivals, unless --concurrency says otherwise: vLLM's own bound.
MOST_RUNNING = 256
PACKAGES = ("specplug", "numpy", "numba", "tokenizers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_log_arguments(parser)
    add = parser.add_argument
    add(
        "--proposer",
        action="append",
        metavar="NAME",
        help="may be given several times (default: suffix)",
    )
    add(
        "--options",
        action="append",
        type=json_object,
        metavar="JSON",
        help="of the first --proposer, the second, and so on; verify_cost is set to each --cost unless given here",
    )
    add("--width", type=positive, default=16, metavar="N", help="most draft tokens per step (16)")
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
    add("--concurrency", type=positive, metavar="N", help="N requests at once, in batches")
    add(
        "--arrivals",
        action="store_true",
        help="requests arrive when the log says, all files in one state; --concurrency (256) bounds the batch",
    )
    add(
        "--step-ms",
        type=_milliseconds,
        default=25.0,
        metavar="MS",
        help="how long an engine step takes, for --arrivals (25)",
    )
    add(
        "--check",
        type=positive,
        nargs="?",
        const=1,
        default=0,
        metavar="N",
        help="check drafts at every step, the proposer's state at every N-th (default 1; slow)",
    )
    add("--through-session", action="store_true", help="time the whole session, as adapters use it")
    add("--no-oracle", action="store_true", help="leave out what the best copy would have brought")
    add("--json", type=Path, metavar="FILE", help="write everything, reliability tables included")
    add("--html", type=Path, metavar="FILE", help="write a report with plots, one file")


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what says which requests are read, shared by all commands that read logs."""
    add = parser.add_argument
    add("logs", nargs="+", type=Path, metavar="LOG", help="files of requests")
    add(
        "--tokenizer",
        required=True,
        metavar="PATH",
        help="tokenizer.json, a folder with one, or a GGUF file",
    )
    add("--limit", type=positive, metavar="N", help="read at most N records of each file")
    add("--tag", metavar="FIELD", help="report by this field of each entry instead of by file")
    add("--model", metavar="NAME", help="only what this model answered")
    add("--time", metavar="FIELD", help="when a request arrived (default: the usual names)")
    add(
        "--turns",
        choices=("last", "all"),
        default="last",
        help="of chats with several answers: the last one is a request, or each (last)",
    )
    add("--max-length", type=positive, default=1 << 18, metavar="N", help="leave longer ones out")
    add("--strict", action="store_true", help="stop at the first malformed line")
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
    from specplug.errors import SettingsError
    from specplug.replay import html_report, provenance, report, runs
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
    logs, tokenizer = open_logs(chosen)
    for path in (chosen.json, chosen.html):
        check_folder(path)
    if chosen.html is not None:
        html_report.load_library()
    plan = runs.Plan(
        variants,
        logs,
        tokenizer,
        width=chosen.width,
        order="arrival" if chosen.arrivals else chosen.order,
        max_length=chosen.max_length,
        through_session=chosen.through_session,
        oracle=not chosen.no_oracle,
        check_every=chosen.check,
        traffic=_traffic(chosen),
    )
    facts = provenance.provenance(PACKAGES)
    with Progress(sum(log.size for log in plan.logs), chosen.quiet) as progress:
        outcome = runs.replay(plan, progress)
    print(report.as_text(plan, outcome, chosen.cost))
    document = report.as_json(plan, outcome, chosen.cost, facts)
    if chosen.json is not None:
        report.write_json(chosen.json, document)
    if chosen.html is not None:
        report.write_text(chosen.html, html_report.page(document))
        print(f"\nreport: {chosen.html}")
    return 0


def open_logs(chosen: argparse.Namespace) -> tuple[list[LogFile], TextTokenizer]:
    """The logs and the tokenizer that :func:`add_log_arguments` names.

    Raises:
        LogError: one of them is missing.
    """
    from specplug.errors import LogError
    from specplug.replay import tokenizers, traces

    for path in chosen.logs:
        if not path.is_file():
            raise LogError(f"{path}: no such file")
    choice = traces.Choice(chosen.tag, chosen.limit, chosen.turns, chosen.model, chosen.time)
    logs = [traces.LogFile(path, chosen.strict, choice) for path in chosen.logs]
    return logs, tokenizers.load_tokenizer(chosen.tokenizer)


def check_folder(path: Path | None) -> None:
    """Refuse a file whose folder does not exist, before hours are spent on what belongs in it.

    Raises:
        LogError: there is none.
    """
    from specplug.errors import LogError

    if path is not None and not path.parent.is_dir():
        raise LogError(f"{path}: there is no folder {path.parent}")


def _traffic(chosen: argparse.Namespace) -> Traffic | None:
    from specplug.replay.concurrent import Traffic

    if chosen.arrivals:
        return Traffic(chosen.concurrency or MOST_RUNNING, chosen.step_ms / 1e3)
    return None if chosen.concurrency is None else Traffic(chosen.concurrency)


def positive(text: str) -> int:
    """An integer of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _milliseconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}")
    return value


def _costs(text: str) -> list[float]:
    costs = [float(part) for part in text.split(",")]
    if not all(0 <= cost < float("inf") for cost in costs):
        raise argparse.ArgumentTypeError(f"costs must be numbers of at least 0, got {text!r}")
    return costs


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, for argparse."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"a JSON object is expected, got {text!r}")
    return value
