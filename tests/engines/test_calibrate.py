"""``specplug calibrate`` against the real thing: a running server of either engine, and vLLM started for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specplug.calibrate import offline, server
from specplug.cli import main
from specplug.tune.costs import StepCosts, read_costs

from .engines import Engine
from .server import Server

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def plain_server(
    engine: Engine, model: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server without speculation, float32."""
    log: Path = tmp_path_factory.mktemp("server") / "server.log"
    running = Server(model, log, engine=engine, env={"SPECPLUG_SGLANG_OPTIONS": ""})
    try:
        running.wait()
        yield running
    finally:
        running.process.end()


def sound(path: Path, longest: int) -> StepCosts:
    """What the file must hold whatever the machine: one that tune and the controller take, with where it is from."""
    costs = read_costs(path)
    content = json.loads(path.read_text())
    assert content["measured_up_to"] == longest
    assert content["provenance"]["cpu"]
    assert content["provenance"]["seed"] is not None
    # A prompt's step is a difference of two measurements; noise may turn its sign, and the curve leaves it out then.
    assert all(p["seconds"] > 0 for p in content["points"] if p["kind"] == "decode")
    # A step of a 135M model in float32 takes some 20 to 100 ms here, and eight times the tokens take longer.
    assert 0.002 < costs.plain_seconds < 2
    assert costs.relative[-1] > 1.2
    return costs


def log_file(folder: Path) -> Path:
    """Requests whose answers copy their prompts, so that speculation pays."""
    path = folder / "log.jsonl"
    lines = []
    for number in range(12):
        text = " ".join(f"item {n} costs {n * number} coins" for n in range(30))
        lines.append(json.dumps({"prompt": f"Copy this: {text}", "response": text}))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_running_server(
    plain_server: Server,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(server, "REQUESTS", (1, 4, 8))
    monkeypatch.setattr(server, "PROMPTS", (32, 512))
    path = tmp_path / "cost.json"
    url = f"http://127.0.0.1:{plain_server.port}"
    given = ["calibrate", "--base-url", url, "--rounds", "2", "--out", str(path), "--quiet"]
    assert main(given) == 0
    sound(path, 512)
    assert json.loads(path.read_text())["provenance"]["model"] == "test"
    capsys.readouterr()
    log = log_file(tmp_path)
    asked = ["tune", str(log), "--tokenizer", model, "--cost", str(path), "--quiet"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "requests at a time" in said
    assert "--speculative-config" in said or "Do not:" in said


def test_an_engine_that_is_started_for_it(
    engine: Engine, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(offline, "REQUESTS", (1, 4))
    monkeypatch.setattr(offline, "PROMPTS", (32, 128))
    path = tmp_path / "cost.json"
    options = json.dumps({"dtype": "float32", "enforce_eager": True})
    given = ["calibrate", "--model", model, "--engine-args", options, "--rounds", "1"]
    status = main([*given, "--out", str(path), "--quiet"])
    if engine.name != "vllm":
        assert status == 1
        assert "--base-url" in capfd.readouterr().err
        assert not path.exists()
        return
    assert status == 0
    costs = sound(path, 128)
    points = json.loads(path.read_text())["points"]
    sizes = {(point["requests"], point["tokens"]) for point in points if point["kind"] == "decode"}
    assert {(1, 1), (1, 8), (1, 32), (4, 4), (4, 128)} <= sizes
    # Seven drafts more do not cost seven steps more: otherwise they were not verified together.
    assert float(costs.seconds(8.0)) < 8 * costs.plain_seconds
