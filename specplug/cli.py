"""The command ``specplug``. Every subcommand imports what it needs by itself, so that ``--help`` is instant.

Exit codes: 0 all is well, 1 the command found a problem, 2 wrong usage (argparse).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specplug._version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code."""
    chosen = build_parser().parse_args(arguments)
    result: int = chosen.run(chosen)
    return result


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="specplug",
        description="Speculative decoding without a draft model, plugged into vLLM and SGLang.",
    )
    parser.add_argument("--version", action="version", version=f"specplug {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    doctor = commands.add_parser(
        "doctor",
        help="what is installed, which engine adapters are active or why not",
        description="Exit code 1 if an engine is installed in which specplug would not work.",
    )
    doctor.add_argument("--json", action="store_true", help="machine-readable")
    doctor.add_argument(
        "--datastore",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="also read this datastore and compare its checksums; may be given several times",
    )
    doctor.add_argument(
        "--live",
        nargs="?",
        const="",
        metavar="LOG",
        help="instead: what the controllers of your running servers decide and why, or those of a saved LOG",
    )
    doctor.add_argument("--save", type=Path, metavar="CSV", help="with --live: write the decisions")
    doctor.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="with --live: draw them (.svg, .png); needs matplotlib",
    )
    doctor.set_defaults(run=_doctor)
    listing = commands.add_parser("proposers", help="the registered proposers and their options")
    listing.add_argument("--json", action="store_true", help="machine-readable")
    listing.set_defaults(run=_proposers)
    _add_replay(commands)
    _add_tune(commands)
    _add_calibrate(commands)
    _add_warm(commands)
    _add_simulate(commands)
    _add_check_engine(commands)
    _add_datastore(commands)
    _add_fit_exit(commands)
    return parser


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from specplug.replay import command

    replay = commands.add_parser(
        "replay",
        help="what speculation would have brought on recorded requests",
        description=command.DESCRIPTION,
    )
    command.add_arguments(replay)
    replay.set_defaults(run=command.run)


def _add_tune(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from specplug.tune import command

    tune = commands.add_parser(
        "tune",
        help="whether speculation will pay on recorded requests, and the flags for it",
        description=command.DESCRIPTION,
    )
    command.add_arguments(tune)
    tune.set_defaults(run=command.run)


def _add_calibrate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from specplug.calibrate import command

    calibrate = commands.add_parser(
        "calibrate",
        help="how long a step of your server takes, by the number of tokens in it",
        description=command.DESCRIPTION,
    )
    command.add_arguments(calibrate)
    calibrate.set_defaults(run=command.run)


def _add_warm(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from specplug.replay import warm

    parser = commands.add_parser(
        "warm",
        help="make a store file from a log of past responses",
        description=warm.DESCRIPTION,
    )
    warm.add_arguments(parser)
    parser.set_defaults(run=warm.run)


def _add_datastore(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from specplug.datastore import command

    parser = commands.add_parser(
        "datastore",
        help="build and inspect what specplug.rest and specplug.hybrid draft from",
        description=command.DESCRIPTION,
    )
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _add_fit_exit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from specplug.adapters.transformers_hf import command

    parser = commands.add_parser(
        "fit-exit",
        help="fit exit heads, by which the first layers of a model draft for it",
        description=command.DESCRIPTION,
    )
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from specplug.simulate import command

    parser = commands.add_parser(
        "simulate",
        help="what the controller would do on other hardware and under other load",
        description=command.DESCRIPTION,
    )
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _add_check_engine(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from specplug.testing import check_engine

    parser = commands.add_parser(
        "check-engine",
        help="whether a server with speculation says what it says without",
        description=check_engine.DESCRIPTION,
    )
    check_engine.add_arguments(parser)
    parser.set_defaults(run=check_engine.run)


def _doctor(chosen: argparse.Namespace) -> int:
    from specplug import doctor

    if chosen.live is not None:
        return _live(chosen)
    facts = doctor.examine(chosen.datastore)
    print(json.dumps(facts, indent=2) if chosen.json else doctor.as_text(facts))
    return 0 if doctor.healthy(facts) else 1


def _live(chosen: argparse.Namespace) -> int:
    from specplug.control import live
    from specplug.errors import SpecplugError

    try:
        if chosen.live:
            parts = [(chosen.live, live.read_log(Path(chosen.live)))]
        else:
            parts = [(f"{c.name}, process {c.process}", c.decisions) for c in live.running()]
        if chosen.json:
            print(json.dumps({name: live.as_values(rows) for name, rows in parts}))
        elif parts:
            print("\n\n".join(live.as_text(name, rows) for name, rows in parts))
        if chosen.plot and parts:
            live.plot(parts, chosen.plot)
        if chosen.save and parts:
            live.write_log(parts[-1][1], chosen.save)
    except SpecplugError as error:
        print(f"specplug doctor: {error}", file=sys.stderr)
        return 1
    if not parts:
        print(f"no controller runs here (looked in {live.folder() or 'no folder: switched off'})")
    return 0 if parts else 1


def _proposers(chosen: argparse.Namespace) -> int:
    from specplug import doctor, registry, settings

    def options(form: str) -> list[dict[str, Any]]:
        kind = registry.load(form).settings_type
        return settings.describe(kind) if kind is not None else []

    found: list[dict[str, Any]] = [
        {**item, "where": "", "options": [] if item["problem"] else options(item["name"])}
        for item in doctor.proposers()
    ]
    for name, (form, where) in registry.of_layers().items():
        ours = {"name": name, "distribution": "specplug", "problem": ""}
        found.append({**ours, "where": where, "options": options(form)})
    if chosen.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_proposer_lines(found)))
    return 1 if any(entry["problem"] for entry in found) else 0


def _proposer_lines(found: list[dict[str, Any]]) -> list[str]:
    lines = []
    for entry in found:
        lines.append(f"{entry['name']}  ({entry['distribution']})")
        if entry["problem"]:
            lines.append(f"  cannot be loaded: {entry['problem']}")
        if entry["where"]:
            lines.append(f"  {entry['where']}")
        for o in entry["options"]:
            bounds = "".join(
                f", {word} {o[key]}"
                for key, word in (("minimum", "at least"), ("maximum", "at most"))
                if o[key] is not None
            )
            lines.append(f"  {o['name']} = {o['default']!r}  ({o['type']}{bounds}) {o['help']}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
