"""What a controller decides can be read from another process while it runs, kept, and drawn."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from specplug.cli import main
from specplug.control import live
from specplug.control.cost import StepFacts
from specplug.control.decisions import Decisions
from specplug.control.options import build, check
from specplug.types import LENGTH_DTYPE, Capabilities, Context

CONTEXT = Context(100, 400, 8, max_requests=2)


def decide(steps: int) -> None:
    """A controller as an engine has it, over some steps."""
    controller = build(check("goodput"), CONTEXT, Capabilities(), name="specplug.suffix")
    slots = np.arange(2, dtype=LENGTH_DTYPE)
    for _ in range(steps):
        controller.timed(StepFacts(0.01, 2, 2))  # type: ignore[attr-defined]
        lengths = np.zeros(2, LENGTH_DTYPE)
        controller.plan(slots, np.full(2, 8, LENGTH_DTYPE), lengths)
        controller.trim(slots, np.full((2, 8), 0.9), lengths)  # type: ignore[attr-defined]
        controller.observe(slots, lengths, lengths)


def serve(steps: int, ready: Connection) -> None:
    decide(steps)
    ready.send("ready")
    ready.recv()
    os._exit(0)  # as a process that is killed: nothing is cleaned up


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(live.VARIABLE, str(tmp_path / "live"))
    return tmp_path / "live"


def test_another_process_shows_what_is_decided_until_it_ends(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=serve, args=(30, theirs))
    process.start()
    try:
        assert ours.recv() == "ready"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        saved = tmp_path / "log.csv"
        assert main(["doctor", "--live", "--save", str(saved)]) == 0
        shown = capsys.readouterr().out
        assert f"specplug.suffix, process {process.pid}" in shown
        assert "30 steps:" in shown
        assert "why: plan" in shown
        assert main(["doctor", "--live", "--json"]) == 0
        [rows] = json.loads(capsys.readouterr().out).values()
        assert [row["step"] for row in rows] == list(range(30))
        assert all(row["budget"] >= row["drafted"] for row in rows)
    finally:
        ours.send("end")
        process.join()
    assert main(["doctor", "--live"]) == 1
    assert "no controller runs here" in capsys.readouterr().out
    assert not list(folder.iterdir())
    assert main(["doctor", "--live", str(saved)]) == 0
    assert "30 steps:" in capsys.readouterr().out


def test_a_log_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    decisions = Decisions(capacity=4)
    for step in range(6):
        decisions.add(
            rows=2,
            offered=8,
            budget=7,
            drafted=step,
            expected=1.5,
            ratio=1.25,
            predicted=np.nan if step == 3 else 0.01,
            reason="plan" if step else "probe",
        )
        decisions.accepted(1)
        decisions.measured(0.02)
    decisions.write(str(tmp_path / "log.csv"))
    found = live.read_log(tmp_path / "log.csv")
    assert found["step"].tolist() == [2, 3, 4, 5]
    for name in found.dtype.names or ():
        np.testing.assert_array_equal(found[name], decisions.last()[name])


def test_a_plot_is_drawn_from_a_log(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    decisions = Decisions()
    for _ in range(40):
        decisions.add(
            rows=1,
            offered=4,
            budget=4,
            drafted=2,
            expected=1.0,
            ratio=1.1,
            predicted=0.1,
            reason="plan",
        )
    decisions.write(str(tmp_path / "log.csv"))
    command = ["doctor", "--live", str(tmp_path / "log.csv"), "--plot", str(tmp_path / "log.svg")]
    assert main(command) == 0
    assert "<svg" in (tmp_path / "log.svg").read_text()


def test_what_is_no_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text("a,b\n1,2\n")
    assert main(["doctor", "--live", str(tmp_path / "log.csv")]) == 1
    assert "is no log of decisions" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["off", "/proc/no/such"])
def test_no_file_is_no_reason_to_fail(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(live.VARIABLE, where)
    assert live.share(Decisions(), "x") is None
    assert live.running() == []
    decide(3)
