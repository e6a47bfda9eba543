"""Many requests at once: batches, arrivals, and that nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.cli import main
from specplug.replay import reading


def text(rng: np.random.Generator, length: int) -> str:
    return " ".join(f"w{i}" for i in rng.integers(0, 150, length))


def entries(count: int, seed: int = 0, gap: float = 1.0) -> list[dict[str, Any]]:
    """Requests that copy from their prompt, ``gap`` seconds apart."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        prompt = text(rng, 40)
        response = f"{text(rng, 3)} {' '.join(prompt.split()[5:30])} {text(rng, 3)}"
        found.append({"prompt": prompt, "response": response, "arrived": 1e9 + gap * i})
    return found


@pytest.fixture
def replay(tokenizer_file: Path, tmp_path: Path) -> Callable[..., Any]:
    """``replay(*arguments)`` -> the JSON document."""

    def call(*arguments: Any) -> Any:
        path = tmp_path / "result.json"
        fixed = ("replay", "--quiet", "--tokenizer", str(tokenizer_file), "--cost", "0.03")
        assert main([*fixed, "--json", str(path), *map(str, arguments)]) == 0
        return json.loads(path.read_text())

    return call


def counts(document: Any) -> dict[str, Any]:
    figures = document["proposers"][0]["workloads"]
    kept = ("requests", "short", "steps", "emitted", "drafted", "accepted", "by_match_length")
    return {name: {k: w[k] for k in kept} for name, w in figures.items()}


def test_one_client_is_one_request_after_the_other(replay: Any, write_log: Any) -> None:
    log = write_log(*entries(12), {"prompt": "w1", "response": "w2"})
    alone = counts(replay(log))
    assert counts(replay(log, "--concurrency", 1, "--check")) == alone
    assert alone["log"]["short"] == 1


def test_batches_are_full_while_requests_wait(replay: Any, write_log: Any) -> None:
    log = write_log(*entries(24))
    found = replay(log, "--concurrency", 4)
    load, figures = found["proposers"][0]["load"], counts(found)["log"]
    assert load["largest_batch"] == 4
    assert 3.0 < load["mean_batch"] <= 4.0
    assert load["steps"] * load["mean_batch"] == pytest.approx(figures["steps"])
    assert (figures["requests"], figures["emitted"]) == (24, 24 * 30)


def test_requests_of_one_moment_share_a_batch_and_far_ones_do_not(
    replay: Any, write_log: Any
) -> None:
    together = replay(write_log(*entries(6, gap=0.0)), "--arrivals", "--concurrency", 8)
    apart = replay(write_log(*entries(6, gap=60.0)), "--arrivals", "--concurrency", 8)
    assert together["proposers"][0]["load"]["largest_batch"] == 6
    assert apart["proposers"][0]["load"]["largest_batch"] == 1
    slow = replay(write_log(*entries(6, gap=60.0)), "--arrivals", "--step-ms", 60_000)
    assert slow["proposers"][0]["load"]["largest_batch"] > 1


def test_logs_are_merged_by_arrival(
    replay: Any, write_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log written when requests ended gives the same as one in order; so do its halves in two files."""
    ordered = entries(16)
    mixed = [ordered[i] for i in (2, 0, 1, 4, 3, 5, 7, 6, 9, 8, 10, 12, 11, 15, 13, 14)]
    monkeypatch.setattr(reading, "WINDOW", 4)
    whole = replay(write_log(*ordered, name="log.jsonl"), "--arrivals")
    assert counts(replay(write_log(*mixed, name="log.jsonl"), "--arrivals")) == counts(whole)
    halves = [write_log(*ordered[i::2], name=f"{i}.jsonl") for i in (0, 1)]
    parts = counts(replay(*halves, "--arrivals")).values()
    total = counts(whole)["log"]
    assert sum(p["accepted"] for p in parts) == total["accepted"]


def test_two_runs_are_the_same(replay: Any, write_log: Any) -> None:
    log = write_log(*entries(10, gap=0.1))
    arguments = (log, "--arrivals", "--proposer", "suffix", "--proposer", "null")
    assert counts(replay(*arguments)) == counts(replay(*arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arrivals",), "log.jsonl:1: no time of arrival; name its field with --time"),
        (("--arrivals", "--time", "when"), "field 'when' (the time) must be a time, got None"),
        (("--concurrency", "2", "--through-session"), "leave out one of the two"),
    ],
)
def test_wrong_usage(
    write_log: Any,
    tokenizer_file: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    log = write_log({"prompt": "w1", "response": "w2 w3"})
    given = ["replay", str(log), "--tokenizer", str(tokenizer_file), "--strict", *arguments]
    assert main(given) == 1
    assert message in capsys.readouterr().err
