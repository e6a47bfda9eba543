"""How checks ended, and which failures were expected."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from specplug.errors import SettingsError


@dataclass(frozen=True)
class Outcome:
    """How one check ended.

    Attributes:
        check: its name.
        status: ``passed``, ``failed``, ``skipped``, ``xfailed`` (failed as expected) or ``xpassed``
            (should have failed).
        detail: the reason of a skip, or the message of a failure.
    """

    check: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """All outcomes for one subject."""

    name: str
    outcomes: tuple[Outcome, ...]

    @property
    def failures(self) -> list[Outcome]:
        """What makes the subject unfit: failures, and expected failures that did not happen."""
        return [o for o in self.outcomes if o.status in ("failed", "xpassed")]

    def __str__(self) -> str:
        lines = [f"{self.name}: {len(self.outcomes)} checks, {len(self.failures)} failures"]
        for outcome in self.outcomes:
            first = outcome.detail.partition("\n")[0]
            lines.append(f"  {outcome.status:8} {outcome.check}{': ' + first if first else ''}")
        return "\n".join(lines)


class ConformanceError(AssertionError):
    """At least one check failed; ``report`` has them all."""

    def __init__(self, report: Report) -> None:
        self.report = report
        details = [f"--- {o.check} ({o.status})\n{o.detail}" for o in report.failures]
        super().__init__("\n".join([str(report), *details]))


def read_xfails(path: str | Path) -> dict[str, str]:
    """Read a file of expected failures: one ``check: reason`` per line, ``#`` starts a comment.

    Raises:
        SettingsError: a line without a reason, or a check listed twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        name, _, reason = (part.strip() for part in text.partition(":"))
        if not reason or name in found:
            problem = "has no reason" if not reason else f"lists {name!r} a second time"
            raise SettingsError(
                f"{path}, line {number} {problem}: {line!r}; write one 'check: reason' per line"
            )
        found[name] = reason
    return found


def brief(instance: Any) -> str:
    """A dataclass as an expression without the fields that have their default: what a person has to read."""
    shown = []
    for field in fields(instance):
        value = getattr(instance, field.name)
        required = field.default is MISSING and field.default_factory is MISSING
        if field.init and field.repr and (required or value != field.default):
            name = "" if required else f"{field.name}="
            shown.append(f"{name}{getattr(value, '__name__', None) or repr(value)}")
    return f"{type(instance).__name__}({', '.join(shown)})"
