"""Host time of the vLLM adapter per engine step: everything that specplug adds between two forward passes.

Drives the real adapter and proposer on a stand-in runner with the same arrays as vLLM's (no engine, no model), so that
the figure is the cost of our side alone. The text is Python's own standard library, cut into words: half of the
requests copy their prompt with edits (what an editing or summarising request does), half continue a file that they
have not seen. Requests come and go, so that the cost of taking in a prompt is in the 99th percentile. Wall time is what
an engine waits; CPU time of the calling thread is what remains of it on a machine that is busy with other things.

    python benchmarks/host_time.py [--method suffix] [--batches 1 8 64] [--steps 600] [--prompt 2000] [--json]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import sysconfig
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from specplug import registry
from specplug.adapters.common.timing import StepTimes
from specplug.adapters.vllm_v1.options import Choice
from specplug.adapters.vllm_v1.proposer import VllmProposer
from specplug.replay.provenance import provenance
from specplug.testing.stub_host import StubHost, configuration, stub_vllm
from specplug.types import TokenArray

VOCABULARY = 49_152
OUTPUT = 400
WARM_STEPS = 30
WORD = re.compile(r"\w+|\s+|[^\w\s]")


class TimedProposer(VllmProposer):
    """The adapter, its calls timed by the CPU clock of this thread as well."""

    cpu = StepTimes()

    def after_update(self, runner: Any, scheduler_output: Any) -> None:
        started = time.thread_time_ns()
        super().after_update(runner, scheduler_output)
        self._before = time.thread_time_ns() - started

    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        started = time.thread_time_ns()
        drafts = super().propose(*args, **kwargs)
        self.cpu.add(time.thread_time_ns() - started + self._before)
        return drafts


class Corpus:
    """Files of the standard library as token ids, in a fixed order."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.ids: dict[str, int] = {}
        root = Path(sysconfig.get_paths()["stdlib"])
        self.files = [path for path in sorted(root.glob("*.py")) if path.stat().st_size > 30_000]

    def tokens(self, length: int) -> TokenArray:
        """``length`` tokens from a random place in a random file."""
        while True:
            path = self.files[int(self.rng.integers(len(self.files)))]
            words = WORD.findall(path.read_text(encoding="utf-8", errors="replace"))
            if len(words) > length:
                start = int(self.rng.integers(len(words) - length))
                numbers = [
                    self.ids.setdefault(w, len(self.ids) % VOCABULARY)
                    for w in words[start : start + length]
                ]
                return np.array(numbers, np.int32)

    def request(self, prompt: int, copies: bool) -> tuple[TokenArray, TokenArray]:
        """A prompt and the output that the model will give."""
        text = self.tokens(prompt + OUTPUT)
        if not copies:
            return text[:prompt], text[prompt:]
        start = int(self.rng.integers(prompt - OUTPUT)) if prompt > OUTPUT else 0
        output = np.resize(text[start:prompt], OUTPUT)
        edited = self.rng.random(OUTPUT) < 0.04
        output[edited] = self.rng.integers(0, len(self.ids), int(edited.sum()))
        return text[:prompt], output


def measure(
    method: str, batch: int, steps: int, prompt: int, width: int, seed: int
) -> dict[str, Any]:
    """Median, 99th percentile and maximum in microseconds over ``steps`` steps of ``batch`` requests."""
    corpus = Corpus(seed)
    config = configuration(width, batch, prompt + 2 * OUTPUT, VOCABULARY)
    with stub_vllm():
        adapter = TimedProposer(config, Choice(method, registry.check(method, {})))
    host = StubHost(lambda history: 0, batch, config.model_config.max_model_len)
    host.runner.drafter = adapter
    numbers = count()
    ends: dict[str, int] = {}

    def arrive() -> None:
        number = next(numbers)
        asked, output = corpus.request(prompt, copies=number % 2 == 0)
        name = f"{number}-request"
        # The first arrivals have unequal outputs, so that later ones come one by one as in a server.
        length = OUTPUT if number >= batch else OUTPUT * (number + 1) // batch
        ends[name] = prompt + max(8, length)
        host.add(name, asked.tolist(), target=lambda h: int(output[(len(h) - prompt) % OUTPUT]))

    for _ in range(batch):
        arrive()
    for step in range(WARM_STEPS + steps):
        if step == WARM_STEPS:
            adapter.times, adapter.cpu = StepTimes(steps), StepTimes(steps)
            before = adapter.session.stats.as_dict() if adapter.session else {}
        host.step()
        for name in [n for n, e in host.running.items() if len(e.tokens) >= ends[n]]:
            host.end(name)
            arrive()
    session = adapter.session
    assert session is not None, "the adapter drafts nothing on this rank"
    assert adapter.faults == session.stats.faults == 0, "something failed: see the log"
    after = session.stats.as_dict()
    change = {
        k: after[k] - before[k] for k in ("rows", "drafted_rows", "drafted", "accepted", "started")
    }
    found: dict[str, Any] = {"batch": batch, "steps": adapter.times.count}
    for clock, times in (("wall", adapter.times), ("cpu", adapter.cpu)):
        kept = times.microseconds()
        found[f"{clock}_median_us"] = float(np.median(kept))
        found[f"{clock}_p99_us"] = float(np.percentile(kept, 99))
        found[f"{clock}_max_us"] = float(kept.max())
    return {
        **found,
        **change,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Host time of the vLLM adapter per engine step.")
    parser.add_argument("--method", default="suffix")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--prompt", type=int, default=2000, help="prompt tokens per request")
    parser.add_argument("--width", type=int, default=16, help="num_speculative_tokens")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    facts = provenance(("specplug", "numpy", "numba"), chosen.seed)
    rows = [
        measure(chosen.method, batch, chosen.steps, chosen.prompt, chosen.width, chosen.seed)
        for batch in chosen.batches
    ]
    if chosen.json:
        print(json.dumps({"provenance": facts, "rows": rows}, indent=2))
        return 0
    print(f"host time of specplug.{chosen.method} per engine step, microseconds")
    print(*(f"  {key}: {value}" for key, value in facts.items()), sep="\n")
    print(
        f"  prompt {chosen.prompt} tokens, at most {chosen.width} draft tokens, {chosen.steps} steps"
    )
    print(
        "batch   wall: median      p99      max   CPU: median      p99   per row: drafted accepted"
    )
    for row in rows:
        print(
            f"{row['batch']:>5}{row['wall_median_us']:>15.0f}{row['wall_p99_us']:>9.0f}{row['wall_max_us']:>9.0f}"
            f"{row['cpu_median_us']:>14.0f}{row['cpu_p99_us']:>9.0f}"
            f"{row['drafted'] / row['rows']:>17.2f}{row['accepted'] / row['rows']:>9.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
