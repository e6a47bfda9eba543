"""The page of every option: commands, proposers, controllers, variables; read from the package, so never out of date.

python tools/environments.py run docs tools/reference.py      # prints it
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from specplug import checks, cli, registry, settings
from specplug.adapters.common import wishes
from specplug.control import options as control

#: What is said of a variable; one that is missing here is listed all the same.
VARIABLES = {
    "SPECPLUG_CACHE": "Folder of every cache; compiled kernels lie in its subfolder `kernels`. Default: "
    "`$XDG_CACHE_HOME/specplug` or `~/.cache/specplug`.",
    "SPECPLUG_LIVE_DIR": "Where controllers keep their last decisions for `specplug doctor --live`; `off`: nowhere.",
    "SPECPLUG_THREADS": "Most threads for look-ups. Default: half of the usable cores, at most 8.",
    "SPECPLUG_VLLM_UNTESTED": "`warn` (default), `allow` or `refuse` a version of vLLM that was not tested.",
    "SPECPLUG_SGLANG_UNTESTED": "`refuse` (default), `warn` or `allow` a version of SGLang that was not tested.",
    "SPECPLUG_SGLANG_OPTIONS": "Options of the proposer in SGLang, a JSON object.",
    "SPECPLUG_SGLANG_CPU_OVERLAP": "`1`: overlap scheduling on the CPU.",
    "SPECPLUG_METRICS_DIR": "Where vLLM's workers leave numbers for `/metrics`; set by the "
    "front end, see [Metrics](metrics.md).",
    "SPECPLUG_DEBUG_CHECKSUM": "`1`: a running checksum of all that is drafted and learned, to "
    "compare ranks or runs; slow.",
}


#: What a client may ask for one request, :data:`specplug.adapters.common.wishes.NAMES`.
REQUESTS = {
    "draft_limit": "At most so many draft tokens per step; 0: none.",
    "namespace": "Requests share text only within one namespace; LoRA adapters and cache salts always have their own.",
    "share": "`false`: the text of this request is kept for nobody; it may still use what others have said.",
}


def page() -> str:
    """The whole page, in Markdown."""
    os.environ["COLUMNS"] = "100"
    parts = ["# Reference", "Generated from the package itself when this site is built."]
    parts += ["## Proposers", *_proposers(), "## Controllers", *_controllers()]
    parts += ["## Requests", _requests(), "## Commands", *_commands()]
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
        yield _table(settings.describe(kind) if kind is not None else [])


def _table(options: list[dict[str, Any]]) -> str:
    if not options:
        return "No options."
    lines = ["| option | type | default | range | meaning |", "|---|---|---|---|---|"]
    lines += [
        f"| `{o['name']}` | {o['type']} | `{o['default']!r}` | {_range(o)} | {_cell(o['help'])} |"
        for o in options
    ]
    return "\n".join(lines)


def _controllers() -> Iterator[str]:
    yield (
        'Beside the options of the proposer: `"controller": "fixed"`, or with options '
        '`"controller": {"name": "goodput", "slo_ms": 50}`. The default is `goodput`. See [the '
        "controller](controller.md)."
    )
    for name, kind in control._SETTINGS.items():
        if name != "none":
            yield f"### controller {name}"
            yield _table(settings.describe(kind))


def _requests() -> str:
    lines = [
        'For one request: in vLLM `SamplingParams(extra_args={"specplug": {...}})`, over HTTP '
        "`vllm_xargs` with the prefix "
        "`specplug_`; in SGLang `custom_params`.",
        "",
        "| name | meaning |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {REQUESTS.get(name, '')} |" for name in wishes.NAMES]
    return "\n".join(lines)


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
