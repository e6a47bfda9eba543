"""The command ``specplug check-engine``: does a server with speculation say what it says without?

Exit codes: 0 no difference found, 1 different, 2 wrong usage or a server that cannot be asked.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

DESCRIPTION = """\
Compares two running OpenAI-compatible servers, one with and one without speculative decoding: greedy answers must be
equal, sampled answers must have one distribution (two-sample test per prompt and sampling mode, exact p-values,
Holm's correction). Start both with the same model and dtype, best float32. Exit code 0: no difference found, 1:
different, 2: a server could not be asked.
"""
_MODES = ("greedy", "temperature-1.0", "temperature-0.7", "top-p-0.9")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--base-url", required=True, metavar="URL", help="the server to test")
    add("--baseline-url", required=True, metavar="URL", help="the same without speculation")
    add("--model", metavar="NAME", help="needed where a server has several")
    add("--prompts", type=Path, metavar="FILE", help="one per line, text or .jsonl (8 of our own)")
    add(
        "--mode",
        action="append",
        choices=_MODES,
        help="may be given several times (default: greedy, temperature-1.0, top-p-0.9)",
    )
    add(
        "--samples",
        type=_positive,
        default=1000,
        metavar="N",
        help="answers per prompt, sampling mode and server (1000)",
    )
    add("--tokens", type=_positive, default=4, metavar="N", help="length of sampled answers (4)")
    add(
        "--greedy-tokens",
        type=_positive,
        default=48,
        metavar="N",
        help="length of greedy answers (48)",
    )
    add("--batch", type=_positive, default=50, metavar="N", help="answers per request (50)")
    add("--concurrency", type=_positive, default=4, metavar="N", help="requests at a time (4)")
    add("--seed", type=_natural, default=0, metavar="S", help="of order and permutations (0)")
    add(
        "--alpha",
        type=_probability,
        default=0.01,
        metavar="P",
        help="probability of a false alarm over the whole table (0.01)",
    )
    add("--timeout", type=_seconds, default=120.0, metavar="S", help="per request (120)")
    add("--api-key-env", metavar="VAR", help="environment variable that holds the servers' key")
    add("--json", type=Path, metavar="FILE", help="write the verdicts as JSON")
    add("--quiet", action="store_true", help="no progress line")


def run(chosen: argparse.Namespace) -> int:
    """Ask both servers, print the table, write the JSON; returns the exit code."""
    from specplug.errors import SpecplugError

    try:
        return _run(chosen)
    except SpecplugError as error:
        print(f"specplug check-engine: {error}", file=sys.stderr)
        return 2


def _run(chosen: argparse.Namespace) -> int:
    from specplug.errors import SettingsError
    from specplug.testing.server_client import Client
    from specplug.testing.server_comparison import DEFAULT_MODES, Plan, compare_servers
    from specplug.testing.server_prompts import PROMPTS, read_prompts
    from specplug.testing.server_report import Progress, as_json, as_text

    # Everything that can be wrong is looked at before the long part.
    prompts = PROMPTS if chosen.prompts is None else read_prompts(chosen.prompts)
    modes = tuple(dict.fromkeys(chosen.mode or DEFAULT_MODES))
    key = None
    if chosen.api_key_env is not None:
        key = os.environ.get(chosen.api_key_env)
        if not key:
            raise SettingsError(f"the environment variable {chosen.api_key_env} is not set")
    if chosen.json is not None and not chosen.json.absolute().parent.is_dir():
        raise SettingsError(f"{chosen.json}: there is no folder {chosen.json.absolute().parent}")
    plan = Plan(
        prompts,
        modes,
        **{
            name: getattr(chosen, name)
            for name in ("samples", "tokens", "greedy_tokens", "batch", "concurrency")
        },
        seed=chosen.seed,
        alpha=chosen.alpha,
    )
    tested = Client(chosen.base_url, "tested", key, chosen.timeout)
    baseline = Client(chosen.baseline_url, "baseline", key, chosen.timeout)
    for client in (tested, baseline):
        client.choose_model(chosen.model)
    with Progress(plan.answers, chosen.quiet) as progress:
        result = compare_servers(tested, baseline, plan, progress.done)
    print(as_text(tested, baseline, plan, result))
    if chosen.json is not None:
        text = json.dumps(as_json(tested, baseline, plan, result), indent=2) + "\n"
        chosen.json.write_text(text, encoding="utf-8")
    return 1 if result.different else 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {value}")
    return value


def _probability(text: str) -> float:
    value = float(text)
    if not 1e-6 <= value <= 0.5:
        raise argparse.ArgumentTypeError(f"must be between 0.000001 and 0.5, got {text}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most 3600, got {text}")
    return value
