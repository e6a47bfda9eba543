"""The command ``specplug``. Every subcommand imports what it needs by itself, so that ``--help`` is instant.

Exit codes: 0 all is well, 1 the command found a problem, 2 wrong usage (argparse).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from specplug._version import __version__

#: Subcommands in modules of their own, each with ``DESCRIPTION``, ``add_arguments(parser)`` and ``run(chosen)``.
_COMMANDS = {
    "replay": (
        "specplug.replay.command",
        "what speculation would have brought on recorded requests",
    ),
    "tune": (
        "specplug.tune.command",
        "whether speculation will pay on recorded requests, and the flags for it",
    ),
    "calibrate": (
        "specplug.calibrate.command",
        "how long a step of your server takes, by the number of tokens in it",
    ),
    "warm": ("specplug.replay.warm", "make a store file from a log of past responses"),
    "simulate": (
        "specplug.simulate.command",
        "what the controller would do on other hardware and under other load",
    ),
    "check-engine": (
        "specplug.testing.check_engine",
        "whether a server with speculation says what it says without",
    ),
    "datastore": (
        "specplug.datastore.command",
        "build and inspect what specplug.rest and specplug.hybrid draft from",
    ),
    "fit-exit": (
        "specplug.adapters.transformers_hf.command",
        "fit exit heads, by which the first layers of a model draft for it",
    ),
}


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
    for name, (where, purpose) in _COMMANDS.items():
        module: Any = import_module(where)
        command = commands.add_parser(name, help=purpose, description=module.DESCRIPTION)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


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
