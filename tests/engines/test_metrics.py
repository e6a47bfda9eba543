"""Real scrapes of a server's Prometheus endpoint: documented names, sums, every query of the dashboard."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specplug.adapters.common.published import (
    BY_SOURCE,
    CONTROLLED,
    COUNTERS,
    DECISIONS,
    GAUGES,
    HISTOGRAM,
)

from . import promql
from .conftest import METHOD
from .engines import Engine, flags
from .prompts import VARIED
from .server import Server

COMPLETIONS = "/v1/completions"
REPOSITORY = Path(__file__).resolve().parents[2]
DASHBOARD = REPOSITORY / "examples" / "grafana" / "specplug.json"


@pytest.fixture(scope="module")
def server(
    engine: Engine, model: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that speculates, under the controller that gives reasons for what it does."""
    options = dict(engine.methods["specplug.suffix"])
    if "speculative_config" in options:
        options["speculative_config"] = {**options["speculative_config"], "specplug": {}}
    log = tmp_path_factory.mktemp("server") / "server.log"
    env = {name: "{}" for name in engine.environment if name.endswith("_OPTIONS")}
    running = Server(model, log, *flags(options), engine=engine, env=env)
    try:
        running.wait()
        yield running
    finally:
        running.process.end()


def work(server: Server) -> None:
    for name, length in (("code-repeat", 48), ("repeat-story", 48), ("prose", 4)):
        server.post(COMPLETIONS, prompt=VARIED[name], temperature=0, max_tokens=length)


def scraped(server: Server) -> promql.Scrape:
    status, text = server.request("GET", "/metrics")
    assert status == 200
    return promql.scrape(text, time.monotonic())


@pytest.fixture(scope="module")
def scrapes(server: Server) -> tuple[promql.Scrape, promql.Scrape]:
    """Two scrapes with work before each of them."""
    work(server)
    # What workers publish now and then, and the engine's own numbers, may take a moment.
    time.sleep(2)
    first = scraped(server)
    work(server)
    time.sleep(2)
    return first, scraped(server)


@pytest.mark.skipif(METHOD != "specplug.suffix", reason="of our own method only")
def test_every_documented_metric_is_there_and_the_numbers_add_up(
    engine: Engine, scrapes: tuple[promql.Scrape, promql.Scrape]
) -> None:
    _, now = scrapes
    found = {name: _total(now, f"specplug_{name}_total") for name in COUNTERS}
    assert found["requests"] == 6
    assert found["fallbacks"] == found["unserved_rows"] == 0
    assert found["rows"] == found["steps"] >= found["drafted_rows"] > 0
    assert found["drafted_tokens"] >= found["accepted_tokens"] > 0
    assert found["offered_tokens"] == found["withheld_tokens"] + found["drafted_tokens"]
    for name in GAUGES:
        assert f"specplug_{name}" in now.series, name
    assert _total(now, "specplug_store_tokens") > 0
    assert _total(now, "specplug_store_capacity") > 0
    assert _total(now, f"specplug_{HISTOGRAM}_count") == found["steps"]
    assert 0 < _total(now, f"specplug_{HISTOGRAM}_sum") < found["steps"]
    assert 0 < _total(now, f"specplug_{DECISIONS}_total") <= found["steps"]
    totals = {name: _total(now, f"specplug_{name}_total") for name in CONTROLLED}
    assert totals["controller_budget_tokens"] > 0
    assert totals["controller_expected_tokens"] > 0
    assert 0 <= totals["controller_wasted_tokens"] <= found["drafted_tokens"]
    assert totals["controller_measured_seconds"] > 0
    assert totals["controller_predicted_seconds"] > 0
    # What is counted by source comes every few steps only, and how the last draft of a request fared the engine knows.
    drafted, accepted = (_total(now, f"specplug_{name}_total") for name in BY_SOURCE)
    assert 0.5 * found["drafted_tokens"] <= drafted <= found["drafted_tokens"]
    assert 0.3 * found["accepted_tokens"] <= accepted <= found["accepted_tokens"]
    sources = {
        dict(labels)["source"] for labels in now.series["specplug_source_drafted_tokens_total"]
    }
    assert {"prompt", "store"} <= sources <= {"prompt", "output", "store"}


def test_accepted_tokens_agree_with_the_engine(
    engine: Engine, scrapes: tuple[promql.Scrape, promql.Scrape]
) -> None:
    if engine.name != "vllm":
        pytest.skip("SGLang's own rate takes every draft for one of full width")
    ours, theirs = (
        _total(scrapes[1], name)
        for name in ("specplug_accepted_tokens_total", engine.counters["accepted"])
    )
    # How the very last draft of each of the six requests fared is known to vLLM only.
    assert theirs - 6 * 8 <= ours <= theirs


def test_every_query_of_the_dashboard_has_an_answer(
    scrapes: tuple[promql.Scrape, promql.Scrape],
) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len(panels) >= 12
    for panel in panels:
        for target in panel["targets"]:
            found = promql.evaluate(target["expr"].replace("$__rate_interval", "1m"), *scrapes)
            shown = f"{panel['title']}: {target['expr']}: {found}"
            finite = [value for value in found.values() if math.isfinite(value)]
            assert finite, shown
            assert min(finite) >= 0, shown
            if panel["fieldConfig"]["defaults"]["unit"] == "percentunit":
                assert max(finite) <= 1, shown
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                # Prometheus adds the instance when it scrapes.
                assert label == "instance" or all(label in dict(key) for key in found), shown


def test_the_evaluator_by_hand() -> None:
    first = promql.scrape('# HELP a b\na{x="1",y="p"} 1\na{x="2",y="p"} 3\nb{x="1"} 4\n', 10.0)
    second = promql.scrape('a{x="1",y="p"} 5\na{x="2",y="p"} 7\nb{x="1"} 8\n', 12.0)

    def ask(query: str) -> promql.Vector:
        return promql.evaluate(query, first, second)

    assert ask("1 + sum(rate(a[1m])) / 2") == {(): 3.0}
    assert ask("sum by (y) (a)") == {(("y", "p"),): 12.0}
    assert ask("sum by (x) (increase(a[5m])) / sum by (x) (increase(b[5m]))") == {
        (("x", "1"),): 1.0
    }
    assert ask('a{x="2"}') == {(("x", "2"), ("y", "p")): 7.0}
    assert ask("sum(c) or sum(b)") == {(): 8.0}
    buckets = promql.scrape('h{le="1"} 2\nh{le="2"} 6\nh{le="+Inf"} 6\n', 0.0)
    assert promql.evaluate("histogram_quantile(0.5, h)", buckets, buckets) == {(): 1.25}
    with pytest.raises(ValueError, match="not understood"):
        ask("avg(a) ~ b")


def _total(found: promql.Scrape, name: str) -> float:
    return sum(found.series[name].values())
