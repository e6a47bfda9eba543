"""Which version of an engine is installed, and whether an adapter was tested with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from specplug._host import HostSymbol, SymbolReport, check_symbols, source_path
from specplug.errors import HostMismatchError, SettingsError

_POLICIES = ("warn", "allow", "refuse")


@dataclass(frozen=True)
class HostRequirements:
    """What an adapter needs of its host.

    Attributes:
        host: the engine's name, for messages.
        package: its importable package.
        distributions: names of the distributions that provide it; the first that is installed counts.
        tested: release series (or exact releases) that the adapter was run with, ``"0.32"`` or ``"0.5.23"``.
        symbols: the names that are relied on.
        variable: environment variable that says what to do with other releases.
        default_policy: ``warn``, ``allow`` or ``refuse`` if the variable is not set.
    """

    host: str
    package: str
    distributions: tuple[str, ...]
    tested: tuple[str, ...]
    symbols: tuple[HostSymbol, ...]
    variable: str
    default_policy: str

    def installed_version(self) -> str | None:
        """The version by package metadata; ``"unknown"`` for a bare source tree, None if it is not installed."""
        for name in self.distributions:
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return "unknown" if source_path(self.package) is not None else None

    def is_tested(self, found: str | None) -> bool:
        """Whether a version belongs to one of the tested series."""
        parts = () if found is None else tuple(found.split("+")[0].split("."))
        return any(parts[: len(s.split("."))] == tuple(s.split(".")) for s in self.tested)

    def policy(self) -> str:
        """What to do with an untested version, from the environment.

        Raises:
            SettingsError: the variable holds something else.
        """
        value = os.environ.get(self.variable, "").strip().lower() or self.default_policy
        if value not in _POLICIES:
            raise SettingsError(
                f"{self.variable} must be one of {', '.join(_POLICIES)}, got {value!r}"
            )
        return value

    def examine(self) -> tuple[SymbolReport, ...]:
        """Look for every symbol in the host's sources; imports nothing of it."""
        return check_symbols(self.symbols)

    def verdict(self, found: str | None, symbols: Sequence[SymbolReport]) -> tuple[bool, str]:
        """Whether the adapter works with this host, and the sentence that explains the answer."""
        missing = [s.problem for s in symbols if s.problem and s.symbol.required]
        tested = ", ".join(s if s.count(".") > 1 else f"{s}.x" for s in self.tested)
        if missing:
            return False, (
                f"{self.host} {found} lacks what specplug relies on: {'; '.join(missing)}. Tested with {self.host} "
                f"{tested}: install one of these or a newer specplug"
            )
        if self.is_tested(found):
            return True, ""
        facts = (
            f"{self.host} {found} was not tested with specplug (tested: {tested}), though all names that it uses "
            "are there"
        )
        policy = self.policy()
        if policy == "refuse":
            return False, f"{facts}; {self.variable}=warn tries it all the same"
        if policy == "warn":
            return True, f"{facts}; {self.variable}=allow silences this, =refuse makes it an error"
        return True, ""

    def require(self) -> str:
        """Refuse a host that the adapter cannot work with; returns a warning, mostly empty.

        Raises:
            HostMismatchError: with the missing symbols and the tested versions.
        """
        usable, sentence = self.verdict(self.installed_version(), self.examine())
        if not usable:
            raise HostMismatchError(sentence)
        return sentence
