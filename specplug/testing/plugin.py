"""A pytest plugin, used only where a ``conftest.py`` asks for it: ``pytest_plugins = ["specplug.testing.plugin"]``.

A test that takes the fixture ``specplug_check`` runs once per proposer and check:

    def test_conformance(specplug_check):
        specplug_check()

The proposers come from ``--specplug-proposer module:factory`` (may be repeated), or from the ini
option ``specplug_proposers``. Without a test of your own: ``pytest -p specplug.testing.plugin
--pyargs specplug.testing.suite --specplug-proposer module:factory``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from specplug.errors import SettingsError, SpecplugError, did_you_mean
from specplug.testing.conformance import DEFAULT_EXAMPLES, run_check
from specplug.testing.report import read_xfails
from specplug.testing.subject import CHECKS, Subject, subject_of

FIXTURE = "specplug_check"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the kit."""
    group = parser.getgroup("specplug", "conformance of proposers for speculative decoding")
    group.addoption(
        "--specplug-proposer",
        action="append",
        default=[],
        metavar="MODULE:FACTORY",
        help="proposer to check, a registered name or module:factory; may be repeated",
    )
    group.addoption(
        "--specplug-max-examples",
        type=int,
        default=DEFAULT_EXAMPLES,
        metavar="N",
        help=f"random examples per property (default: {DEFAULT_EXAMPLES})",
    )
    group.addoption(
        "--specplug-xfails",
        default=None,
        metavar="FILE",
        help="checks that are known to fail, one 'check: reason' per line",
    )
    parser.addini("specplug_proposers", "proposers to check, as --specplug-proposer", type="args")


@dataclass(frozen=True)
class _Case:
    subject: Subject
    check: str

    def __call__(self) -> None:
        """Run the check; fails or skips the running test."""
        outcome = run_check(self.subject, self.check)
        if outcome.status == "skipped":
            pytest.skip(outcome.detail)
        if outcome.status == "failed":
            pytest.fail(f"{self.subject.name}: {outcome.detail}", pytrace=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per proposer and check."""
    if FIXTURE not in metafunc.fixturenames:
        return
    config = metafunc.config
    try:
        subjects = _subjects(config)
        expected = _expected(config, subjects)
    except SpecplugError as error:
        raise pytest.UsageError(str(error)) from error
    cases = []
    for subject in subjects:
        for name in CHECKS:
            marks = []
            if name in expected:
                # Strict: an expected failure that does not happen is an error, so that the list
                # cannot rot.
                marks.append(pytest.mark.xfail(reason=expected[name], strict=True))
            cases.append(
                pytest.param(_Case(subject, name), id=f"{subject.name}-{name}", marks=marks)
            )
    metafunc.parametrize(FIXTURE, cases)


def _subjects(config: pytest.Config) -> list[Subject]:
    names = config.getoption("--specplug-proposer") or config.getini("specplug_proposers")
    if not names:
        raise SettingsError(
            f"a test uses the fixture {FIXTURE!r}, but no proposer is named; pass "
            "--specplug-proposer module:factory or set specplug_proposers in the pytest configuration"
        )
    examples = config.getoption("--specplug-max-examples")
    if examples < 1:
        raise SettingsError(f"--specplug-max-examples must be at least 1, got {examples}")
    return [subject_of(name, examples=examples) for name in dict.fromkeys(names)]


def _expected(config: pytest.Config, subjects: list[Subject]) -> dict[str, str]:
    path = config.getoption("--specplug-xfails")
    expected = {} if path is None else read_xfails(path)
    for name in expected:
        if name not in CHECKS:
            raise SettingsError(f"{path}: there is no check {name!r}; {did_you_mean(name, CHECKS)}")
        if all(CHECKS[name].skip(subject) for subject in subjects):
            raise SettingsError(
                f"{path}: {name!r} does not run for any of the proposers; remove the entry"
            )
    return expected


@pytest.fixture
def specplug_check(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Runs one check on one proposer; see :func:`pytest_generate_tests`."""
    case: Callable[[], None] = request.param
    return case
