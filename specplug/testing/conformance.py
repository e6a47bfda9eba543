"""One call that tells whether a proposer may be used; raises where something does not hold.

    from specplug.testing import check_proposer
    check_proposer("my_package.my_module:MyProposer")

No pytest is needed; with it, see :mod:`specplug.testing.plugin`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specplug.errors import SettingsError, did_you_mean

# These modules register their checks when they are imported; their order is the order of the
# checks.
from specplug.testing import contract, isolation, lawcheck  # noqa: F401
from specplug.testing.report import ConformanceError, Outcome, Report, read_xfails
from specplug.testing.subject import CHECKS, Subject, subject_of

#: Random examples per property unless told otherwise: a minute for a typical proposer.
DEFAULT_EXAMPLES = 50


def check_proposer(
    factory: str | Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    *,
    max_examples: int = DEFAULT_EXAMPLES,
    xfails: Mapping[str, str] | str | Path | None = None,
    only: Sequence[str] | None = None,
    shrink: bool = True,
) -> Report:
    """Hold a proposer against everything that the package demands of one.

    Args:
        factory: a registered name, ``"module:attribute"``, or the factory itself:
            ``factory(context, settings)``, or ``factory(context)`` where it has no ``Settings``.
        options: as a user would write them. An option whose name ends in ``_mb`` or ``_bytes`` is
            made small by default.
        max_examples: random examples per property.
        xfails: checks that are known to fail, with the reason; or a file of them, see
            :func:`read_xfails`.
        only: names of the checks to run; None runs all.
        shrink: reduce a failing example to a small one; False finds out faster that there is one.

    Returns:
        The report.

    Raises:
        ConformanceError: a check failed, or one that should fail did not.
        SettingsError: ``xfails`` or ``only`` names a check that does not exist or that did not run.
        UnknownProposerError, InvalidProposerError: there is no such proposer, or it is none.
    """
    subject = subject_of(factory, options, max_examples, shrink)
    expected = read_xfails(xfails) if isinstance(xfails, (str, Path)) else dict(xfails or {})
    chosen = list(CHECKS) if only is None else list(only)
    for name in [*chosen, *expected]:
        if name not in CHECKS:
            raise SettingsError(f"there is no check {name!r}; {did_you_mean(name, CHECKS)}")
    outcomes = tuple(run_check(subject, name, name in expected) for name in chosen)
    idle = [o.check for o in outcomes if o.status == "skipped" and o.check in expected]
    if idle or set(expected) - set(chosen):
        unmatched = sorted({*idle, *(set(expected) - set(chosen))})
        raise SettingsError(
            f"xfails names checks that did not run for {subject.name}: {', '.join(unmatched)}; remove these entries"
        )
    report = Report(subject.name, outcomes)
    if report.failures:
        raise ConformanceError(report)
    return report


def run_check(subject: Subject, name: str, xfail: bool = False) -> Outcome:
    """Run one check; any exception of the proposer is a failure of the check."""
    check = CHECKS[name]
    if subject.capabilities.target_states:
        return Outcome(
            name, "skipped", "needs the target's hidden states, which the kit does not have"
        )
    reason = check.skip(subject)
    if reason is not None:
        return Outcome(name, "skipped", reason)
    try:
        check.run(subject)
    except Exception as error:  # noqa: BLE001  whatever a third party's proposer raises is this check's finding
        notes = "\n".join(getattr(error, "__notes__", ()))
        message = f"{check.sentence}\n{type(error).__name__}: {error}\n{notes}".rstrip()
        return Outcome(name, "xfailed" if xfail else "failed", message)
    if xfail:
        return Outcome(
            name, "xpassed", "listed as an expected failure, but it holds; remove the entry"
        )
    return Outcome(name, "passed")
