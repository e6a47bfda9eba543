"""``specplug simulate``: every experiment runs and says what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specplug.cli import main


def test_a_small_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "grid.json"
    code = main(
        [
            *("simulate", "grid", "--hardware", "cpu-f32", "--requests", "2", "--tokens", "300"),
            *("--json", str(path)),
        ]
    )
    assert code == 0
    rows = json.loads(path.read_text())["grid"]
    assert [row["workload"] for row in rows] == ["chat", "code edit", "agent", "mixed"]
    assert all(row["best/none"] >= 1.0 for row in rows)
    shown = capsys.readouterr().out
    assert "measured: vLLM" in shown
    assert "of the best constant length of the cell" in shown


def test_the_picture_of_a_grid(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "grid.svg"
    given = ("--hardware", "cpu-f32", "--requests", "2", "--tokens", "300", "--plot", str(path))
    assert main(["simulate", "grid", *given]) == 0
    assert "</svg>" in path.read_text()


def test_the_looping_request_gets_the_drafts(tmp_path: Path) -> None:
    path = tmp_path / "mixed.json"
    assert main(["simulate", "mixed", "--hardware", "cpu-f32", "--json", str(path)]) == 0
    rows = {row["controller"]: row for row in json.loads(path.read_text())["cpu-f32"]}
    found = rows["goodput"]
    assert found["tokens/s"] > max(rows["none"]["tokens/s"], rows["16"]["tokens/s"])
    assert found["drafts of the loop"] > 5
    assert found["drafts of each other"] < 1


def test_drafts_come_back_within_twenty_steps(tmp_path: Path) -> None:
    path = tmp_path / "recovery.json"
    assert main(["simulate", "recovery", "--hardware", "cpu-f32", "--json", str(path)]) == 0
    for row in json.loads(path.read_text())["cpu-f32"]:
        assert row["steps to 3 drafts per request"] <= 20, row


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hardware", "cpu-f23"], "did you mean 'cpu-f32'"),
        (["--log", "chats=x.jsonl"], "KIND=FILE"),
        (["--log", "chat=x.jsonl"], "needs --tokenizer"),
    ],
)
def test_wrong_use_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "grid", *arguments]) == 1
    assert words in capsys.readouterr().err


def test_load_that_comes_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "load.json"
    command = ["simulate", "load", "--hardware", "h100-8b", "--requests", "8", "--seconds", "4"]
    assert main([*command, "--arrivals", "bursts", "--json", str(path)]) == 0
    [rows] = json.loads(path.read_text()).values()
    assert len({row["workload"] for row in rows}) == 4
    assert {row["method"] for row in rows} == {"0", "2", "4", "8", "16", "goodput"}
    assert all(row["ms/token"] > 0 for row in rows if row["finished"])
    printed = capsys.readouterr().out
    assert "times real time" in printed
    assert ("finished no request" in printed) == any(not row["finished"] for row in rows)


def test_a_time_in_which_nothing_is_finished_is_said_to_be_short(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["simulate", "load", "--hardware", "cpu-f32", "--requests", "1", "--seconds", "0.01"]
    assert main(command) == 0
    assert "in 0.01 s some finished no request; --seconds serves longer" in capsys.readouterr().out
