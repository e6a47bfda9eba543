"""``specplug check-engine`` against real vLLM servers: one with our drafts, one with a known fault, one plain.

Few samples, so that it ends in minutes: a bias of 0.2 would be found in any one row, the fault of this vLLM is
larger. False alarms: below 1 % of seeds for the sampled rows; vLLM's seed is fixed, so the result stays what it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specplug.cli import main

from .server import Server

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

#: From text that repeats drafts are made; what follows is open enough for the law to show.
PROMPTS = {
    "weather": "Monday: rain. Tuesday: sun. Wednesday: rain. Thursday: sun. Friday: rain. Saturday:",
    "list": "Shopping list: apples, bread, apples, milk, apples, eggs, apples,",
    "echo": "The red boat left the harbour. The blue boat left the harbour. The green boat left the",
}
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
SUFFIX = {"method": "specplug.suffix", "num_speculative_tokens": 4}


@contextmanager
def serving(
    model: str, log: Path, config: dict[str, Any] | None = None, env: dict[str, str] | None = None
) -> Iterator[str]:
    """The address of a running server, float32."""
    arguments = ["--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "64"]
    if config is not None:
        arguments += ["--speculative-config", json.dumps(config)]
    # Different coins: with the same ones the samples would be alike whatever the law is.
    arguments += ["--seed", "1" if config is None else "2"]
    server = Server(model, log, *arguments, env=env)
    try:
        server.wait()
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.process.end()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For prompts, results and logs."""
    path = tmp_path_factory.mktemp("check-engine")
    lines = [json.dumps({"name": name, "prompt": text}) for name, text in PROMPTS.items()]
    (path / "prompts.jsonl").write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def baseline(model: str, folder: Path) -> Iterator[str]:
    """A server without speculation."""
    with serving(model, folder / "baseline.log") as url:
        yield url


def check(url: str, baseline: str, folder: Path, *modes: str) -> tuple[int, dict[str, Any]]:
    """Exit code and result of the command."""
    arguments = ["check-engine", "--base-url", url, "--baseline-url", baseline]
    arguments += ["--prompts", str(folder / "prompts.jsonl"), "--json", str(folder / "out.json")]
    arguments += ["--samples", "300", "--tokens", "4", "--greedy-tokens", "32", "--timeout", "600"]
    for mode in modes:
        arguments += ["--mode", mode]
    code = main(arguments)
    result: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return code, result


def test_with_our_drafts_it_is_the_same(model: str, baseline: str, folder: Path) -> None:
    with serving(model, folder / "suffix.log", SUFFIX) as url:
        code, result = check(url, baseline, folder, "greedy", "temperature-1.0", "top-p-0.9")
    assert result["unit"] == "token ids"
    assert result["tested"]["drafted"] > 1000
    assert not result["baseline"]["drafted"]
    assert (code, result["verdict"]) == (0, "same"), result["rows"]


def test_the_fault_of_this_vllm_is_found(model: str, baseline: str, folder: Path) -> None:
    """vLLM's own drafts without our repair: on a CPU this version samples from a wrong law (its issue 55005)."""
    with serving(model, folder / "ngram.log", NGRAM, {"VLLM_PLUGINS": ""}) as url:
        code, result = check(url, baseline, folder, "temperature-1.0")
    assert result["tested"]["drafted"] > 1000
    assert (code, result["verdict"]) == (1, "different"), result["rows"]
