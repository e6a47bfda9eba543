"""Proposers are found without importing anything, and checked the moment they are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specplug import registry
from specplug.errors import InvalidProposerError, SettingsError, UnknownProposerError
from specplug.proposers.null import NullProposer
from specplug.proposers.suffix import SuffixProposer, SuffixSettings
from specplug.types import Context

CONTEXT = Context(vocab_size=10, max_length=20, max_draft=2, max_requests=2)

#: A complete proposer of a third party; tests break one thing at a time.
PLUGIN = """
from dataclasses import dataclass
from specplug.settings import option
from specplug.types import Capabilities

@dataclass(frozen=True)
class Options:
    depth: int = option(3, minimum=1, maximum=9, help="How deep.")
    name: str = option("x", help="A name.")

class Tree:
    Settings = Options
    built = 0
    capabilities = Capabilities(trees=True)
    def __init__(self, context, settings):
        type(self).built += 1
        self.context, self.settings = context, settings
    def start(self, slot, request, history): pass
    def observe(self, observed): pass
    def propose(self, slots, ceilings, out): pass
    def finish(self, slot, keep): pass
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution of one module into a folder on ``sys.path``."""

    def install_into_path(
        entry: str,
        source: str = PLUGIN,
        module: str = "third_party_plugin",
        dist: str = "Third-Party",
    ) -> Path:
        site = tmp_path / dist
        info = site / f"{dist.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{entry}\n")
        (site / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, module, raising=False)
        return site

    yield install_into_path
    # Left behind, it would be what the next test loads.
    sys.modules.pop("third_party_plugin", None)


def test_our_own_proposers_are_listed_sorted_without_prefix() -> None:
    assert registry.names() == sorted(registry.names())
    assert {"null", "suffix"} <= set(registry.names())


def test_listing_imports_nothing(install: Install) -> None:
    site = install("tree = third_party_plugin:Tree", source="raise SystemExit('imported')")
    code = (
        "import json, sys\n"
        "from specplug import registry\n"
        "before = set(sys.modules)\n"
        "names = registry.names()\n"
        "new = [m for m in set(sys.modules) - before if m.split('.')[0] in ('specplug', 'third_party_plugin')]\n"
        "print(json.dumps([names, new, 'numba' in sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    names, imported, numba = json.loads(done.stdout)
    assert names == sorted(names)
    assert "tree" in names
    assert imported == []
    assert not numba


@pytest.mark.parametrize(
    "name", ["suffix", "specplug.suffix", "specplug.proposers.suffix:SuffixProposer"]
)
def test_three_ways_to_name_the_same_proposer(name: str) -> None:
    entry = registry.load(name)
    assert entry.factory is SuffixProposer
    assert entry.settings_type is SuffixSettings
    assert entry.distribution == "specplug"


def test_messages_call_a_proposer_as_the_user_does() -> None:
    assert registry.load("suffix").where == "specplug.suffix"
    by_module = "specplug.proposers.null:NullProposer"
    assert registry.load(by_module).where == by_module


@pytest.mark.parametrize("name", ["sufix", "specplug.sufix"])
def test_an_unknown_name_gets_a_suggestion(name: str) -> None:
    with pytest.raises(UnknownProposerError) as caught:
        registry.load(name)
    message = str(caught.value)
    assert message.startswith("unknown proposer 'specplug.sufix'; did you mean 'suffix'?")
    assert "null" in message


def test_layer_skipping_says_where_it_works() -> None:
    """A name of ours that no engine's adapter can run yet is not simply unknown."""
    for name in ("layerskip", "specplug.layerskip"):
        with pytest.raises(
            UnknownProposerError, match=r"specplug\.layerskip: .* vLLM's V1 model runner and"
        ) as caught:
            registry.check(name, {})
        assert "specplug.adapters.transformers_hf.SelfSpeculation" in str(caught.value)
    assert "layerskip" not in registry.names()


@pytest.mark.parametrize("name", [":", "module:", ":Tree", "specplug.x:"])
def test_half_a_module_path_is_refused_in_words(name: str) -> None:
    with pytest.raises(UnknownProposerError, match="<name> or module:attribute, got"):
        registry.load(name)


@pytest.mark.parametrize(
    ("entry", "source", "reason"),
    [
        ("tree = no_such_module_here:Tree", PLUGIN, "No module named 'no_such_module_here'"),
        ("tree = third_party_plugin:Missing", PLUGIN, "has no attribute 'Missing'"),
        ("tree = third_party_plugin:Tree", "import no_such_dependency", "'no_such_dependency'"),
        ("tree = third_party_plugin:Tree", "def broken(:", "SyntaxError"),
        ("tree = third_party_plugin:Tree", "raise OSError('no GPU')", "OSError: no GPU"),
    ],
    ids=["module", "attribute", "dependency", "syntax", "error of its own"],
)
def test_what_cannot_be_imported_is_named_with_its_distribution(
    install: Install, entry: str, source: str, reason: str
) -> None:
    install(entry, source)
    assert "tree" in registry.names()
    with pytest.raises(UnknownProposerError) as caught:
        registry.load("tree")
    message = str(caught.value)
    assert "of distribution 'Third-Party'" in message
    assert repr(entry.split(" = ")[1]) in message
    assert reason in message


def test_a_third_partys_proposer_works_under_our_prefix(install: Install) -> None:
    install("tree = third_party_plugin:Tree")
    proposer: Any = registry.build("specplug.tree", CONTEXT, {"depth": 5})
    assert type(proposer).__name__ == "Tree"
    assert proposer.context is CONTEXT
    assert (proposer.settings.depth, proposer.settings.name) == (5, "x")
    assert proposer.capabilities.trees
    assert registry.load("specplug.tree").distribution == "Third-Party"


def test_a_factory_may_be_a_function(install: Install) -> None:
    source = PLUGIN + "\ndef make(context):\n    return Tree(context, Options())\n"
    install("tree = third_party_plugin:make", source)
    proposer: Any = registry.build("tree", CONTEXT)
    assert proposer.settings.depth == 3
    with pytest.raises(SettingsError, match=r"specplug\.tree: unknown option 'depth'"):
        registry.build("tree", CONTEXT, {"depth": 3})


def test_checking_fills_in_defaults_and_builds_nothing(install: Install) -> None:
    install("tree = third_party_plugin:Tree")
    assert registry.check("tree", {"depth": 5}) == {"depth": 5, "name": "x"}
    assert registry.check("specplug.tree", {}) == {"depth": 3, "name": "x"}
    assert registry.load("tree").factory.built == 0  # type: ignore[attr-defined]
    assert registry.check("null", {}) == {}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "suffix",
            {"store": 1},
            "specplug.suffix: unknown option 'store'; did you mean 'store_mb'",
        ),
        ("suffix", {"store_mb": -1}, "'store_mb' must be between"),
        ("null", {"store_mb": 1}, "specplug.null: unknown option"),
        ("suffix", [], "must be an object"),
        ("null", "", "must be an object"),
    ],
)
def test_wrong_options_are_refused_by_check_and_build(
    name: str, options: Any, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        registry.check(name, options)
    with pytest.raises(SettingsError, match=message):
        registry.build(name, CONTEXT, options)


@pytest.mark.parametrize("options", [None, {}])
def test_no_options_are_the_defaults(options: Any) -> None:
    assert isinstance(registry.build("null", CONTEXT, options), NullProposer)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "    def finish(self, slot, keep): pass\n",
            "",
            r"Tree has no method finish\(slot, keep\)",
        ),
        ("def observe(self, observed)", "def observe_all(self, observed)", "no method observe"),
        ("def start(self, slot, request, history): pass", "start = 3", "no method start"),
        (
            "def propose(self, slots, ceilings, out)",
            "def propose(self, slots, out)",
            r"propose must take \(slots, ceilings, out\), but has \(slots, out\)",
        ),
        (
            "def finish(self, slot, keep)",
            "def finish(self, slot, keep, reason)",
            r"finish must take \(slot, keep\), but has \(slot, keep, reason\): .*'reason'",
        ),
        ("Capabilities(trees=True)", "{'trees': True}", "'capabilities' must be .* got {'trees'"),
        ("    capabilities = Capabilities(trees=True)\n", "", "'capabilities' must be .* got None"),
    ],
)
def test_a_proposer_without_the_protocol_is_refused_when_it_is_built(
    install: Install, old: str, new: str, message: str
) -> None:
    assert old in PLUGIN
    install("tree = third_party_plugin:Tree", PLUGIN.replace(old, new))
    with pytest.raises(InvalidProposerError, match=message) as caught:
        registry.build("tree", CONTEXT)
    assert "specplug.tree of distribution 'Third-Party'" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('= option(3, minimum=1, maximum=9, help="How deep.")', "", "needs a default .*'depth'"),
        ("depth: int", "depth: list", "Options.depth: an option is"),
        ("@dataclass(frozen=True)\n", "", "settings must be a dataclass"),
        (
            "Settings = Options",
            "Settings = Options()",
            "'Settings' must be a dataclass, got Options",
        ),
        (
            "Settings = Options",
            "",
            r"called as factory\(context\), but takes \(context, settings\)",
        ),
        ("context, settings):", "context):", r"called as factory\(context, settings\), but takes"),
    ],
)
def test_settings_and_factory_are_checked_when_they_are_loaded(
    install: Install, old: str, new: str, message: str
) -> None:
    assert old in PLUGIN
    install("tree = third_party_plugin:Tree", PLUGIN.replace(old, new))
    with pytest.raises(InvalidProposerError, match=message) as caught:
        registry.load("tree")
    assert "specplug.tree of distribution 'Third-Party'" in str(caught.value)


def test_an_entry_point_that_is_no_factory_is_refused(install: Install) -> None:
    install("tree = third_party_plugin:Tree", "Tree = 3")
    with pytest.raises(InvalidProposerError, match=r"must be a class or function .*got 3"):
        registry.load("tree")


def test_two_distributions_of_one_name_are_refused_naming_both(install: Install) -> None:
    install("tree = third_party_plugin:Tree", dist="First-One")
    install("tree = other_plugin:Tree", module="other_plugin", dist="Second-One")
    with pytest.raises(InvalidProposerError) as caught:
        registry.load("tree")
    message = str(caught.value)
    assert "two distributions register the proposer 'tree'" in message
    for part in ("First-One", "Second-One", "third_party_plugin:Tree", "other_plugin:Tree"):
        assert repr(part) in message
    # The others go on working.
    assert registry.load("null").name == "null"
    assert {"null", "suffix", "tree"} <= set(registry.names())


def test_a_distribution_that_is_seen_twice_is_no_conflict(install: Install) -> None:
    # An editable install beside the wheel of the same project.
    install("tree = third_party_plugin:Tree", dist="First-One")
    install("tree = third_party_plugin:Tree", dist="Second-One")
    assert registry.names().count("tree") == 1
