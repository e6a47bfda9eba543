"""A real scrape of vLLM's Prometheus endpoint: documented names, values that agree with vLLM's, the dashboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specplug.adapters.vllm_v1.metrics import COUNTERS, GAUGES

from .engines import WIDTH
from .prompts import VARIED
from .server import Server

COMPLETIONS = "/v1/completions"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that speculates with the suffix drafter, float32."""
    config = {"method": "specplug.suffix", "num_speculative_tokens": WIDTH}
    arguments = ["--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "16"]
    arguments += ["--speculative-config", json.dumps(config)]
    running = Server(model, tmp_path_factory.mktemp("server") / "server.log", *arguments)
    try:
        running.wait()
        yield running
    finally:
        running.process.end()


def test_the_numbers_are_shown_and_agree_with_those_of_vllm(server: Server) -> None:
    server.post(COMPLETIONS, prompt=VARIED["code-repeat"], temperature=0, max_tokens=48)
    server.post(COMPLETIONS, prompt=VARIED["prose"], temperature=0, max_tokens=4)
    found = {name: server.counter(f"specplug_{name}_total") for name in COUNTERS}
    theirs = server.counter(ACCEPTED)
    assert found["requests"] == 2
    assert found["fallbacks"] == 0
    assert found["rows"] == found["steps"] >= found["drafted_rows"] > 0
    assert found["offered_tokens"] >= found["drafted_tokens"] >= found["accepted_tokens"] > 0
    # How the very last draft of a request fared is known to vLLM only.
    assert theirs - 2 * WIDTH <= found["accepted_tokens"] <= theirs
    _, text = server.request("GET", "/metrics")
    for name in GAUGES:
        assert f'specplug_{name}{{engine="0",proposer="suffix"}}' in text
    assert server.counter("specplug_store_tokens") > 0
    assert server.counter("specplug_host_seconds_count") == found["steps"]
    assert 0 < server.counter("specplug_host_seconds_sum") < found["steps"]


def test_the_dashboard_asks_for_what_the_server_shows(server: Server) -> None:
    """Every metric in the queries of the dashboard exists in a scrape."""
    dashboard = json.loads((REPOSITORY / "examples" / "grafana" / "specplug.json").read_text())
    queries = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    assert len(queries) >= 6
    _, text = server.request("GET", "/metrics")
    shown = set(re.findall(r"^([a-z_:]+)(?:\{| )", text, re.MULTILINE))
    for query in queries:
        asked = set(re.findall(r"\b(?:specplug_|vllm:)[a-z_]+", query))
        assert asked, query
        assert asked <= shown, f"{query}: not in the scrape: {asked - shown}"
