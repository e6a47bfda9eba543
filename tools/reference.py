"""The page of every option: commands, proposers, environment variables; read from the package, so never out of date.

python tools/environments.py run docs tools/reference.py      # prints it
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from specplug import checks, cli, registry, settings

#: What is said of a variable; one that is missing here is listed all the same.
VARIABLES = {
    "SPECPLUG_CACHE": "Folder of every cache; compiled kernels lie in its subfolder `kernels`. Default: "
    "`$XDG_CACHE_HOME/specplug` or `~/.cache/specplug`.",
    "SPECPLUG_THREADS": "Most threads for look-ups. Default: half of the usable cores, at most 8.",
    "SPECPLUG_VLLM_UNTESTED": "`warn` (default), `allow` or `refuse` a version of vLLM that was not tested.",
    "SPECPLUG_SGLANG_UNTESTED": "`refuse` (default), `warn` or `allow` a version of SGLang that was not tested.",
    "SPECPLUG_SGLANG_OPTIONS": "Options of the proposer in SGLang, a JSON object.",
    "SPECPLUG_SGLANG_CPU_OVERLAP": "`1`: overlap scheduling on the CPU.",
}


def page() -> str:
    """The whole page, in Markdown."""
    os.environ["COLUMNS"] = "100"
    parts = ["# Reference", "Generated from the package itself when this site is built."]
    parts += ["## Proposers", *_proposers(), "## Commands", *_commands()]
    parts += ["## Environment variables", _variables()]
    return "\n\n".join(parts) + "\n"


def _proposers() -> Iterator[str]:
    yield (
        "In vLLM options stand under the key `specplug` of the speculative configuration, in SGLang in "
        "`SPECPLUG_SGLANG_OPTIONS`. `specplug proposers` prints those of what is installed."
    )
    for name in registry.names():
        entry = registry.load(name)
        yield f"### {entry.where}"
        kind = entry.settings_type
        options = settings.describe(kind) if kind is not None else []
        if not options:
            yield "No options."
            continue
        lines = ["| option | type | default | range | meaning |", "|---|---|---|---|---|"]
        lines += [
            f"| `{o['name']}` | {o['type']} | `{o['default']!r}` | {_range(o)} | {_cell(o['help'])} |"
            for o in options
        ]
        yield "\n".join(lines)


def _commands() -> Iterator[str]:
    parser = cli.build_parser()
    for name, command in _subcommands(parser).items():
        yield f"### specplug {name}"
        yield f"```text\n{command.format_help().strip()}\n```"


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Every command, and the commands of commands, by name."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                found[name] = inner
                below = _subcommands(inner).items()
                found.update({f"{name} {further}": command for further, command in below})
    return found


def _variables() -> str:
    lines = ["| variable | meaning |", "|---|---|"]
    for name in sorted(checks.known_variables()):
        if not name.endswith("_") and "TEST" not in name:
            lines.append(f"| `{name}` | {VARIABLES.get(name, '')} |")
    return "\n".join(lines)


def _range(option: dict[str, Any]) -> str:
    low, high = option["minimum"], option["maximum"]
    words = [f"at least {low:g}"] if low is not None else []
    words += [f"at most {high:g}"] if high is not None else []
    return ", ".join(words)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    print(page())
