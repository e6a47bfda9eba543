"""The kit's own machinery: reports, expected failures, the pytest plugin, controllers, replay."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.control.fixed import FixedLength
from specplug.errors import SettingsError, UnknownProposerError
from specplug.testing import check_controller, check_proposer
from specplug.testing.controllers import CONTROLLER_CHECKS
from specplug.testing.paths import NotReplayableError, Oracle, TooManyPathsError, explore
from specplug.testing.report import ConformanceError, read_xfails
from specplug.testing.strategies import EagerLengths
from specplug.testing.subject import CHECKS, subject_of
from specplug.testing.toys import CopyProposer
from specplug.testing.watch import ContractError
from specplug.types import Capabilities, IntArray

from .broken_proposers import NeedsHistory, TooLong


def test_the_kit_is_one_call_on_a_name_or_a_factory() -> None:
    for factory in ("null", "specplug.null", "specplug.testing.toys:CopyProposer", CopyProposer):
        report = check_proposer(factory, only=["empty_history", "nothing_asked"])
        assert [o.status for o in report.outcomes] == ["passed", "passed"]
    assert "2 checks, 0 failures" in str(report)


def test_options_reach_the_proposer() -> None:
    subject = subject_of("suffix", {"verify_cost": 0.5})
    assert subject.options == {"store_mb": 0.1, "verify_cost": 0.5}
    assert subject.budget == "store_mb"
    with pytest.raises(
        SettingsError, match="unknown option 'verify_cst'; did you mean 'verify_cost'"
    ):
        check_proposer("suffix", {"verify_cst": 1})


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownProposerError, match="did you mean 'null'"):
        check_proposer("nul")
    with pytest.raises(SettingsError, match="there is no check 'emtpy_history'; did you mean"):
        check_proposer("null", only=["emtpy_history"])


def test_an_expected_failure_is_no_failure() -> None:
    report = check_proposer(NeedsHistory, only=["empty_history"], xfails={"empty_history": "known"})
    assert [o.status for o in report.outcomes] == ["xfailed"]


def test_an_expected_failure_that_does_not_happen_is_one() -> None:
    with pytest.raises(ConformanceError, match="listed as an expected failure, but it holds"):
        check_proposer("null", only=["empty_history"], xfails={"empty_history": "known"})


@pytest.mark.parametrize(
    ("xfails", "message"),
    [
        ({"nothing": "?"}, "there is no check 'nothing'"),
        ({"valid_drafts": "not run"}, "names checks that did not run for .*: valid_drafts"),
        ({"memory_budget": "skipped"}, "names checks that did not run for .*: memory_budget"),
    ],
)
def test_unmatched_expectations_are_errors(xfails: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_proposer("null", only=["empty_history", "memory_budget"], xfails=xfails)


def test_xfail_files(tmp_path: Path) -> None:
    file = tmp_path / "xfails.txt"
    file.write_text("# known\n\nrecovery: learns slowly  # see notes\n", encoding="utf-8")
    assert read_xfails(file) == {"recovery": "learns slowly"}
    file.write_text("recovery\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"xfails.txt, line 1 has no reason: 'recovery'"):
        read_xfails(file)
    file.write_text("recovery: a\nrecovery: b\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"line 2 lists 'recovery' a second time"):
        read_xfails(file)


def test_drawn_drafts_need_a_source_of_chance_that_can_be_taken_over() -> None:
    class Opaque(CopyProposer):
        capabilities = Capabilities(sampled=True)

    with pytest.raises(ConformanceError, match="has no callable attribute 'draw'"):
        check_proposer(Opaque, only=["empty_history"])


def test_proposers_that_need_a_model_are_left_to_the_engine() -> None:
    class NeedsModel(CopyProposer):
        capabilities = Capabilities(target_states=True)

    report = check_proposer(NeedsModel)
    assert {o.status for o in report.outcomes} == {"skipped"}
    assert "hidden states" in report.outcomes[0].detail


def run_pytest(folder: Path, *options: str) -> tuple[int, str]:
    """Run pytest with the plugin in a fresh process."""
    (folder / "conftest.py").write_text('pytest_plugins = ["specplug.testing.plugin"]\n', "utf-8")
    test = "def test_it(specplug_check):\n    specplug_check()\n"
    (folder / "test_it.py").write_text(test, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return run.returncode, run.stdout + run.stderr


def test_plugin_runs_every_check_as_a_test(tmp_path: Path) -> None:
    proposer = ("--specplug-proposer", "null", "--specplug-max-examples", "3")
    code, output = run_pytest(tmp_path, *proposer)
    assert code == 0, output
    assert f"{len(CHECKS) - 1} passed, 1 skipped" in output


def test_plugin_reports_failures_by_check_and_honours_xfails(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from specplug.testing.toys import CopyProposer\n\n\n"
        "class Broken(CopyProposer):\n"
        "    def start(self, slot, request, history):\n"
        "        history[0]\n"
        "        super().start(slot, request, history)\n",
        encoding="utf-8",
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n", encoding="utf-8")
    asked = (
        "--specplug-proposer",
        "broken:Broken",
        "--specplug-max-examples",
        "3",
        "-k",
        "empty_history",
    )
    code, output = run_pytest(tmp_path, *asked)
    assert code == 1, output
    assert "test_it[broken:Broken-empty_history]" in output
    assert "IndexError" in output
    (tmp_path / "xfails.txt").write_text("empty_history: needs a prompt\n", encoding="utf-8")
    code, output = run_pytest(tmp_path, *asked, "--specplug-xfails", "xfails.txt")
    assert (code, "1 xfailed" in output) == (0, True), output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "but no proposer is named"),
        (("--specplug-proposer", "nul"), "unknown proposer 'specplug.nul'; did you mean 'null'"),
        (
            ("--specplug-proposer", "null", "--specplug-max-examples", "0"),
            "--specplug-max-examples must be at least 1, got 0",
        ),
        (
            ("--specplug-proposer", "null", "--specplug-xfails", "x.txt"),
            "there is no check 'nosuch'",
        ),
        (
            ("--specplug-proposer", "null", "--specplug-xfails", "y.txt"),
            "'memory_budget' does not run for any of the proposers",
        ),
    ],
)
def test_plugin_refuses_wrong_usage(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    (tmp_path / "x.txt").write_text("nosuch: reason\n", encoding="utf-8")
    (tmp_path / "y.txt").write_text("memory_budget: reason\n", encoding="utf-8")
    code, output = run_pytest(tmp_path, *options)
    assert code != 0
    assert message in output


class OverLimit(FixedLength):
    """Ignores the limits."""

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        ceilings[:] = 5


class SpoilsLimits(FixedLength):
    """Uses its argument as a scratch pad."""

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        super().plan(slots, limits, ceilings)
        limits[:] = 0


class NeedsRows(FixedLength):
    """Fails on an empty batch."""

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        ceilings[:] = np.minimum(limits, limits.max())


class OneWay(FixedLength):
    """Never allows more than what was accepted last."""

    def __init__(self) -> None:
        super().__init__()
        self.cap = 99

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        ceilings[:] = limits.clip(max=self.cap)

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        self.cap = min(self.cap, int(accepted.min()))


class Starves(FixedLength):
    """Switches everybody off as soon as there is more than one request."""

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        ceilings[:] = 0 if len(slots) > 1 else limits


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (OverLimit, "limits", "ceiling 5, expected 0 to"),
        (SpoilsLimits, "limits", "plan changed its argument number 2"),
        (NeedsRows, "limits", "zero-size array"),
        (OneWay, "recovery", "a length that can only fall needs a probe"),
        (Starves, "starvation", "whose drafts are all accepted got none"),
    ],
)
def test_broken_controllers_are_caught(broken: Callable[[], Any], check: str, words: str) -> None:
    with pytest.raises(ConformanceError, match=words) as caught:
        check_controller(broken, only=[check])
    assert [o.check for o in caught.value.report.failures] == [check]


@pytest.mark.parametrize("right", [FixedLength, lambda: FixedLength(2), lambda: EagerLengths((3,))])
def test_right_controllers_pass(right: Callable[[], Any]) -> None:
    report = check_controller(right, max_examples=10)
    assert [o.check for o in report.outcomes] == list(CONTROLLER_CHECKS)
    assert {o.status for o in report.outcomes} == {"passed"}
    report = check_controller(right, enumerate_law=False, only=["output_law"])
    assert report.outcomes[0].status == "skipped"
    with pytest.raises(SettingsError, match="there is no check 'limit'; did you mean 'limits'"):
        check_controller(right, only=["limit"])


def test_all_paths_are_followed_and_weighed() -> None:
    def program(oracle: Oracle) -> tuple[int, ...]:
        first = oracle.choose([0.5, 0.0, 0.5])
        return (first, oracle.choose([0.25, 0.75]) if first else 9)

    assert explore(program) == {(0, 9): 0.5, (2, 0): 0.125, (2, 1): 0.375}
    assert explore(lambda oracle: "only one") == {"only one": 1.0}
    with pytest.raises(TooManyPathsError, match="more than 3 paths"):
        explore(lambda oracle: tuple(oracle.choose([0.5, 0.5]) for _ in range(2)), max_paths=3)
    with pytest.raises(ValueError, match="no option of positive weight"):
        explore(lambda oracle: oracle.choose([0.0, 0.0]))


def test_hidden_chance_is_noticed() -> None:
    clock: Iterator[int] = iter(range(99))

    def changes_its_weights(oracle: Oracle) -> int:
        tick = next(clock) / 100
        return oracle.choose([0.5 + tick, 0.5 - tick])

    with pytest.raises(NotReplayableError, match="no clock, no generator of its own"):
        explore(changes_its_weights)

    def asks_less(oracle: Oracle) -> int:
        return sum(oracle.choose([0.5, 0.5]) for _ in range(2 - next(clock) % 2))

    with pytest.raises(NotReplayableError, match="after fewer random choices"):
        explore(asks_less)


def test_messages_stand_on_their_own() -> None:
    with pytest.raises(ConformanceError) as caught:
        check_proposer(TooLong, only=["valid_drafts"], max_examples=100)
    message = str(caught.value)
    assert "TooLong.propose, row 0 (slot 0): wrote 1 tokens, but the ceiling is 0" in message
    assert "Start(" in message, "the smallest trace that shows it is printed"
    assert issubclass(ContractError, AssertionError)
