"""The documentation knows every option, and every command in it is one that exists. `make docs` checks the links."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from specplug import checks, cli, registry, settings
from specplug.adapters.common import published, wishes
from specplug.control import options as control


@pytest.fixture(scope="module")
def reference(checkout: Path) -> ModuleType:
    """tools/reference.py."""
    spec = importlib.util.spec_from_file_location("reference", checkout / "tools/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_option_is_in_the_reference(reference: ModuleType) -> None:
    page = reference.page()
    for name in registry.names():
        entry = registry.load(name)
        assert f"### {entry.where}" in page
        for option in settings.describe(entry.settings_type) if entry.settings_type else ():
            assert option["help"], f"{name}: {option['name']} says nothing"
            assert f"| `{option['name']}` | {option['type']} |" in page
    commands = reference._subcommands(cli.build_parser())
    assert {"doctor", "proposers", "replay", "tune", "calibrate"} <= set(commands)
    for name, command in commands.items():
        for action in command._actions:
            flags = action.option_strings[-1:] or [action.metavar or action.dest]
            if action.choices is not None and not action.option_strings:
                flags = [str(choice) for choice in action.choices]
            for flag in flags:
                assert str(flag) in page, f"specplug {name}: {flag}"
            if not isinstance(action, argparse._SubParsersAction):
                assert action.help, f"specplug {name}: {flags} says nothing"
    variables = [v for v in checks.known_variables() if "TEST" not in v and not v.endswith("_")]
    assert {"SPECPLUG_CACHE", "SPECPLUG_THREADS"} <= set(variables)
    for variable in variables:
        assert re.search(rf"\| `{variable}` \| \S", page), f"{variable} says nothing"


def test_every_controller_and_wish_is_in_the_reference(reference: ModuleType) -> None:
    page = reference.page()
    assert {"goodput", "fixed", "table"} <= set(control._SETTINGS)
    for name, kind in control._SETTINGS.items():
        for option in settings.describe(kind):
            assert option["help"], f"{name}: {option['name']} says nothing"
            assert f"| `{option['name']}` | {option['type']} |" in page
    for name in wishes.NAMES:
        assert re.search(rf"\| `{name}` \| \S", page), f"{name} says nothing"


def _documents(checkout: Path) -> list[Path]:
    return [checkout / "README.md", *sorted((checkout / "docs").glob("*.md"))]


def test_every_command_in_the_documentation_exists(checkout: Path) -> None:
    """Each line ``specplug ...`` of a console block is one that the command line takes."""
    found = 0
    for path in _documents(checkout):
        for block in re.findall(r"```console\n(.*?)```", path.read_text(), re.DOTALL):
            for line in re.sub(r"\\\n\s*", " ", block).splitlines():
                if not line.startswith("$ specplug "):
                    continue
                words = shlex.split(line.removeprefix("$ "), comments=True)
                if "..." in words:
                    continue
                found += 1
                try:
                    cli.build_parser().parse_args(words[1:])
                except (SystemExit, argparse.ArgumentError):
                    pytest.fail(f"{path.name}: {line}")
    assert found >= 8


def test_every_metric_is_documented(checkout: Path) -> None:
    page = (checkout / "docs/metrics.md").read_text()
    counters = [
        *(*published.COUNTERS, *published.CONTROLLED, *published.BY_SOURCE),
        published.DECISIONS,
    ]
    names = [*(f"{name}_total" for name in counters), *published.GAUGES, published.HISTOGRAM]
    missing = [name for name in names if f"`specplug_{name}`" not in page]
    assert not missing
    shown = set(re.findall(r"`(specplug_\w+)`", page))
    assert shown <= {f"specplug_{name}" for name in names}


def test_every_page_is_in_the_navigation(checkout: Path) -> None:
    """Pages of other work land under `More`; these are the ones that a newcomer needs."""
    listed = (checkout / "tools/mkdocs.yml").read_text()
    for page in ("start-vllm", "start-sglang", "will-it-pay", "tuning", "troubleshooting"):
        assert f"{page}.md" in listed
    for page in ("writing-a-proposer", "limits", "security", "losslessness", "support"):
        assert f"{page}.md" in listed
        assert (checkout / f"docs/{page}.md").is_file()
