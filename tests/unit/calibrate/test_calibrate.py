"""From measured steps to a cost file; the sweep of a server against one whose step times are known."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug import registry
from specplug.calibrate import offline, server
from specplug.calibrate.fit import Point, cost_file, curve
from specplug.cli import main
from specplug.control.costfile import machine_name, read_seed
from specplug.errors import SettingsError
from specplug.testing.engine_protocol import Batch
from specplug.tune.costs import costs_of
from specplug.types import Context, allocate_drafts


def decode(tokens: int, seconds: float, requests: int = 1) -> Point:
    return Point("decode", requests, tokens, seconds)


def test_the_file_is_one_that_tune_reads_back() -> None:
    points = [decode(1, 0.01), decode(8, 0.012), decode(32, 0.02), decode(64, 0.04, 8)]
    points += [Point("prefill", 1, n, 0.005 + n * 1e-4) for n in (32, 64, 512)]
    costs = costs_of(cost_file(points, "m", "s", {"command": "c"}))
    assert costs.plain_seconds == 0.01
    got = costs.seconds(np.array([1.0, 8, 64, 512, 1024]))
    # Beyond the longest decoding step it grows as prompts do, and beyond these as it did before.
    assert got == pytest.approx([0.01, 0.012, 0.04, 0.04 + 448e-4, 0.04 + 960e-4], rel=1e-3)
    assert costs.facts["provenance"] == {"command": "c"}
    assert len(costs.facts["points"]) == len(points)


def test_the_median_of_a_size_counts_and_noise_is_pooled() -> None:
    points = [decode(1, v) for v in (0.01, 0.011, 5.0)]
    points += [decode(2, 0.009), decode(4, 0.02), decode(8, 0.03)]
    tokens, seconds = curve(points)
    assert tokens.tolist() == [1, 2, 4, 8]
    assert seconds.tolist() == pytest.approx([0.01, 0.01, 0.02, 0.03])


def test_a_gap_between_decoding_and_the_shortest_prompt_is_no_flat_stretch() -> None:
    points = [decode(1, 0.01), decode(8, 0.012)]
    points += [Point("prefill", 1, n, 0.005 + n * 1e-4) for n in (32, 512)]
    tokens, seconds = curve(points)
    assert tokens.tolist() == [1, 8, 32, 512]
    assert seconds.tolist() == pytest.approx([0.01, 0.012, 0.012 + 24e-4, 0.012 + 504e-4])


@pytest.mark.parametrize("points", [[], [decode(1, 0.1)], [decode(2, 0.1), decode(4, 0.2)]])
def test_too_few_points_are_refused(points: list[Point]) -> None:
    with pytest.raises(SettingsError, match="at least a step of one token and a longer one"):
        curve(points)


def test_the_probe_drafts_exactly_what_it_may() -> None:
    proposer = registry.build(offline.PROBE, Context(50, 100, 8, 4))
    out = allocate_drafts(3, 8)
    slots = np.arange(3, dtype=np.int32)
    proposer.propose(slots, np.array([0, 8, 3], np.int32), out)
    assert out.lengths.tolist() == [0, 8, 3]
    first = out.tokens[1].tolist()
    assert all(0 <= t < 50 for t in first)
    proposer.propose(slots, np.array([0, 8, 3], np.int32), out)
    assert out.tokens[1].tolist() != first


class KnownEngine:
    """Answers at once, and says that a step of ``n`` tokens took ``n`` ms and 10 more.

    Like the adapters it verifies no draft that reaches beyond the end of its request.
    """

    def __init__(self) -> None:
        self.limits: list[int] = []

    def info(self) -> dict[str, Any]:
        return {"vocab_size": 100}

    def generate(
        self, prompts: list[list[int]], params: dict[str, Any], *, abort_after: dict[int, int]
    ) -> Batch:
        limit = params["extra_args"]["specplug"]["draft_limit"]
        self.limits.append(limit)
        steps = min(params["max_tokens"], abort_after[0])
        seconds = 0.01 + 0.001 * sum(map(len, prompts))
        for done in range(1, steps):
            drafts = min(limit, params["max_tokens"] - done - 1)
            seconds += 0.01 + 0.001 * len(prompts) * (1 + drafts)
        return Batch((), seconds, steps)


def test_a_sweep_of_an_engine_finds_its_step_times() -> None:
    done: list[None] = []
    engine: Any = KnownEngine()
    points = list(offline.sweep(engine, 2, 0, lambda: done.append(None)))
    assert len(points) == len(done) == offline.points_of(2)
    for point in points:
        assert point.seconds == pytest.approx(0.01 + 0.001 * point.tokens)
    assert {p.tokens for p in points if p.kind == "decode"} >= {1, 2, 4, 8, 32, 64, 256}


class Clock:
    """Time that passes only while the server works, so that no load of the machine changes what is measured."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lock = threading.Lock()

    def perf_counter(self) -> float:
        return self.now


class Handler(BaseHTTPRequestHandler):
    """2 ms per token of an answer, 0.1 ms per token of a prompt; requests wait for each other."""

    honest = True
    clock = Clock()

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "a"}, {"id": "b"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.clock.lock:
            self.clock.now += 0.002 * body["max_tokens"] + 0.0001 * len(body["prompt"])
        made = body["max_tokens"] if self.honest else 1
        self._answer({"usage": {"completion_tokens": made}})

    def _answer(self, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def url() -> Iterator[str]:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


def test_a_server_is_measured_into_a_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "REQUESTS", (1, 2))
    monkeypatch.setattr(server, "PROMPTS", (32, 512))
    monkeypatch.setattr(server, "time", Handler.clock)
    path = tmp_path / "cost.json"
    given = ["calibrate", "--base-url", url + "/v1/", "--served-model", "b", "--rounds", "1"]
    assert main([*given, "--api-key", "secret", "--out", str(path), "--quiet"]) == 0
    content = json.loads(path.read_text())
    assert content["plain_seconds"] == pytest.approx(0.002)
    assert content["relative"][:2] == pytest.approx([1.0, 2.0], rel=1e-3)
    by_tokens = dict(zip(content["tokens"], content["relative"], strict=True))
    # A token of a prompt costs a twentieth of a plain step here.
    assert by_tokens[512] - by_tokens[256] == pytest.approx(256 / 20, rel=1e-3)
    assert content["source"].startswith(f"b at {url}/v1")
    assert "secret" not in path.read_text()
    assert len(content["points"]) == 4
    assert "plain steps" in capsys.readouterr().out


def test_a_full_disk_does_not_cost_what_was_measured(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(server, "REQUESTS", (1, 2))
    monkeypatch.setattr(server, "PROMPTS", (32, 512))
    monkeypatch.setattr(server, "time", Handler.clock)
    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "cost.json"
    given = ["calibrate", "--base-url", url, "--rounds", "1", "--out", str(path), "--quiet"]
    assert main(given) == 1
    out, err = capsys.readouterr()
    assert "No space left on device" in err
    assert "plain steps" in out
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_stops_early_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Handler, "honest", False)
    path = tmp_path / "cost.json"
    assert main(["calibrate", "--base-url", url, "--out", str(path), "--quiet"]) == 1
    assert "was asked for 4 tokens with ignore_eos and says it made 1" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--base-url", "http://127.0.0.1:9"), "is the server running?"),
        (("--base-url", "{url}", "--served-model", "c"), "serves a, b, not 'c'"),
        (("--base-url", "{url}", "--out", "nowhere/x.json"), "there is no folder nowhere"),
    ],
)
def test_wrong_usage(
    url: str, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [a.replace("{url}", url) for a in arguments]
    assert main(["calibrate", "--out", "x.json", *given, "--quiet"]) == 1
    assert message in capsys.readouterr().err


def test_the_controller_reads_the_same_file(tmp_path: Path) -> None:
    points = [decode(1, 0.01), decode(64, 0.04)]
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(cost_file(points, machine_name("cpu"), "a test", {})))
    seed = read_seed(path, machine_name("cpu"))
    assert seed is not None
    assert seed.relative[0] == 1.0
    assert seed.relative[6] == pytest.approx(4.0)
