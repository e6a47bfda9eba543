"""What the kit checks, whichever way it was handed over, and the list of checks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specplug import registry
from specplug.protocols import Proposer
from specplug.settings import describe
from specplug.testing.properties import explore_examples
from specplug.testing.strategies import BUDGETS
from specplug.testing.watch import ContractError, Watched
from specplug.types import Capabilities, Context, ProbArray

#: Small enough for every check; the sizes that matter are set by each check itself.
PROBE = Context(vocab_size=8, max_length=64, max_draft=4, max_requests=4)


@dataclass(frozen=True)
class Subject:
    """A proposer under test: how to build it, as often as a check wants.

    Attributes:
        name: for messages.
        entry: factory, settings and where they come from.
        options: what it is built with.
        capabilities: what it declares.
        examples: how many random examples each property gets.
        budget: the name of the option that limits memory, if there is one.
        shrink: whether failures are reduced to a small example, which takes most of the time of a
            failing check.
    """

    name: str
    entry: registry.ProposerEntry
    options: Mapping[str, Any]
    capabilities: Capabilities
    examples: int = 50
    budget: str | None = None
    shrink: bool = True

    def explore(self, fewer: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Settings of a property with as many examples, or that many times fewer."""
        return explore_examples(max(1, self.examples // fewer), self.shrink)

    def build(self, context: Context, **changed: Any) -> Proposer:
        """A fresh proposer; its drafts, if they are drawn at random, come from fixed coins."""
        proposer = registry.build_entry(self.entry, context, {**self.options, **changed})
        if proposer.capabilities.sampled:
            use_draw(proposer, FixedCoins())
        return proposer

    def watched(self, context: Context, **changed: Any) -> Watched:
        """A fresh proposer under watch."""
        return Watched(self.build(context, **changed), context)


def subject_of(
    factory: str | Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    examples: int = 50,
    shrink: bool = True,
) -> Subject:
    """Find what is to be tested.

    Args:
        factory: a registered name, ``"module:attribute"``, or a factory itself.
        options: as a user would write them; its ``Settings`` checks them.
        examples: random examples per property.
        shrink: reduce failures to small examples.

    Raises:
        UnknownProposerError, InvalidProposerError, SettingsError: as the registry does.
    """
    if isinstance(factory, str):
        entry = registry.load(factory)
    else:
        name = getattr(factory, "__qualname__", repr(factory))
        module = getattr(factory, "__module__", "?")
        settings = getattr(factory, "Settings", None)
        entry = registry.ProposerEntry(f"{module}:{name}", factory, settings, module.split(".")[0])
    budget = _small_budget(entry)
    small = {**budget, **(options or {})}
    capabilities = registry.build_entry(entry, PROBE, small).capabilities
    limited = next(iter(budget), None)
    return Subject(entry.where, entry, small, capabilities, examples, limited, shrink)


def _small_budget(entry: registry.ProposerEntry) -> dict[str, float]:
    """A small value for the option that limits memory, if there is one: checks build hundreds of proposers."""
    if entry.settings_type is None:
        return {}
    for row in describe(entry.settings_type):
        if row["name"].endswith(BUDGETS):
            small = 0.1 if row["name"].endswith("_mb") else 100_000
            return {row["name"]: max(small, row["minimum"] or 0)}
    return {}


def use_draw(proposer: Proposer, draw: Callable[[ProbArray], int]) -> None:
    """Make a proposer of sampled drafts take its chance from ``draw``.

    Raises:
        ContractError: it has no attribute ``draw``.
    """
    if not callable(getattr(proposer, "draw", None)):
        raise ContractError(
            f"{type(proposer).__name__} declares Capabilities(sampled=True), but has no callable attribute 'draw': the "
            "kit must be able to take over its chance; draw every token by self.draw(law) -> token"
        )
    proposer.draw = draw  # type: ignore[attr-defined]


class FixedCoins:
    """Draws tokens by coins that depend on the law and on nothing else, so that two runs can be compared."""

    def __call__(self, law: ProbArray) -> int:
        digest = hashlib.sha256(np.ascontiguousarray(law).tobytes()).digest()
        coin = int.from_bytes(digest[:8], "big") / 2.0**64
        return int(np.searchsorted(np.cumsum(law / law.sum()), coin, side="right"))


@dataclass(frozen=True)
class Check:
    """One thing that every proposer is held against.

    Attributes:
        name: stable id, for reports and xfail files.
        sentence: what must hold.
        run: raises an AssertionError where it does not.
        skip: from the capabilities to the reason why it does not apply, or None.
    """

    name: str
    sentence: str
    run: Callable[[Subject], None]
    skip: Callable[[Subject], str | None]


#: All checks, in the order in which they run: cheap ones first.
CHECKS: dict[str, Check] = {}


def always(subject: Subject) -> str | None:
    """Skips nothing."""
    return None


def check(
    sentence: str, skip: Callable[[Subject], str | None] = always
) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Register a function ``check_<name>`` as the check ``<name>``."""

    def register(run: Callable[[Subject], None]) -> Callable[[Subject], None]:
        name = run.__name__.removeprefix("check_")
        CHECKS[name] = Check(name, sentence, run, skip)
        return run

    return register
