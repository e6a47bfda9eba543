"""The command ``specplug tune``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specplug.replay.command import (
    add_log_arguments,
    check_folder,
    json_object,
    open_logs,
    positive,
)

if TYPE_CHECKING:
    from specplug.replay.traces import LogFile
    from specplug.tune.costs import StepCosts
    from specplug.tune.forecast import Counts
    from specplug.tune.search import Score

DESCRIPTION = """\
Will speculation pay on this traffic, and with what in the flag? Settings are chosen by the first part of the log and
judged by the rest. Without --cost the answer is work saved at an assumed price of verification; with a cost file of
your server (`specplug calibrate` writes one) it is tokens per second by number of requests at a time, the batch size
up to which speculation pays, and latency. The last lines are the flags to paste, or the advice not to.
"""
PACKAGES = ("specplug", "numpy", "numba", "tokenizers")
#: Numbers of requests at a time for which the answer is given.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_log_arguments(parser)
    add = parser.add_argument
    add(
        "--proposer",
        action="append",
        metavar="NAME",
        help="may be given several times (default: every registered one that a log can be replayed with)",
    )
    add(
        "--options",
        action="append",
        default=[],
        type=json_object,
        metavar="JSON",
        help="of the first --proposer, the second, and so on, not to be changed, for example its datastore",
    )
    add("--cost", type=Path, metavar="FILE", help="cost file of the server")
    add(
        "--verify-cost",
        type=float,
        default=0.03,
        metavar="C",
        help="without --cost: what verifying one more draft token costs, in plain steps (0.03)",
    )
    add(
        "--concurrency",
        type=positive,
        default=1,
        metavar="N",
        help="requests at a time that the settings are chosen for (1)",
    )
    add(
        "--train",
        type=_share,
        default=0.6,
        metavar="SHARE",
        help="share of each log that settings are chosen by (0.6)",
    )
    add(
        "--least",
        type=float,
        default=1.03,
        metavar="X",
        help="speedup below which the advice is not to (1.03)",
    )
    add("--json", type=Path, metavar="FILE", help="write everything")


def run(chosen: argparse.Namespace) -> int:
    """Search, print the advice; returns the exit code: 0 whatever the advice is."""
    from specplug.errors import SpecplugError

    try:
        return _run(chosen)
    except SpecplugError as error:
        print(f"specplug tune: {error}", file=sys.stderr)
        return 1


def _run(chosen: argparse.Namespace) -> int:
    from specplug.replay import provenance
    from specplug.replay.report import write_json
    from specplug.tune import advice, costs, search

    table = costs.read_costs(chosen.cost) if chosen.cost is not None else None
    proposers = _proposers(chosen.proposer, chosen.options)
    check_folder(chosen.json)
    logs, tokenizer = open_logs(chosen)
    totals = _count(logs)
    bench = search.Bench(
        lambda: _reopen(chosen, totals),
        tokenizer,
        chosen.train,
        chosen.max_length,
        quiet=chosen.quiet,
    )
    price = chosen.verify_cost if table is None else table.token_cost(chosen.concurrency)
    told = [round(price * factor, 4) for factor in (0.5, 1.0, 2.0)] if table else [price]
    best = search.search(bench, proposers, told, _score(table, price, chosen.concurrency))
    facts = provenance.provenance(PACKAGES)
    question = advice.Question(table, price, chosen.concurrency, chosen.least, BATCHES)
    answer = advice.advise(question, bench, best)
    print(advice.as_text(answer, question, bench))
    if chosen.json is not None:
        write_json(chosen.json, advice.as_json(answer, question, bench, facts))
    return 0


def _score(table: StepCosts | None, price: float, requests: int) -> Score:
    from specplug.tune import forecast

    def score(found: Counts) -> float:
        if table is None:
            return found.speedup(price)
        # Host time differs from run to run, so it has no part in the choice.
        step = forecast.step_seconds(found.lengths, table, requests) if found.steps else 1.0
        return found.mean_acceptance_length / step

    return score


def _proposers(
    names: Sequence[str] | None, options: Sequence[Mapping[str, Any]]
) -> list[tuple[str, Mapping[str, Any]]]:
    """What to search over, each with its fixed options.

    Without names: everything registered, but for what drafts nothing, cannot be replayed, or is about a datastore.
    """
    from specplug import registry
    from specplug.errors import SettingsError, SpecplugError
    from specplug.replay import runs
    from specplug.types import Context

    count = len(names or ())
    if len(options) > count:
        raise SettingsError(
            f"{len(options)} times --options, but {count} times --proposer; give one per proposer, in order"
        )
    if names:
        pairs = list(zip(names, [*options, *[{}] * (count - len(options))], strict=True))
        for name, given in pairs:
            runs.variants(name, given, [0.03])
        return pairs
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name in registry.names():
        try:
            variant = runs.variants(name, {}, [0.03])[0]
            variant.build(Context(32, 64, 4))
        except SpecplugError:
            continue  # it needs a model's states, or does not load here
        if name != "null" and "datastore" not in variant.options:
            found.append((name, {}))
    if not found:
        raise SettingsError("no registered proposer can be replayed; name one with --proposer")
    return found


def _count(logs: Sequence[LogFile]) -> dict[Path, int]:
    """Records of each log; reading them once beforehand also finds what is wrong before the long part."""
    return {log.path: sum(1 for _ in log) for log in logs}


def _reopen(chosen: argparse.Namespace, totals: dict[Path, int]) -> list[LogFile]:
    logs, _ = open_logs(chosen)
    for log in logs:
        log.expected = totals[log.path]
    return logs


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"must lie between 0 and 1, got {text!r}")
    return value
