"""The goodput controller against constant draft lengths, in the real vLLM on this machine.

One engine per method in a process of its own; all serve the same prompts in rotating order, batch by batch, so that
whatever else the machine does hits all alike. Requests share nothing (``store_mb`` 0), so a prompt may come again::

    python tools/environments.py run vllm benchmarks/controller_vllm.py --methods none goodput fixed:4 fixed:16

Methods: ``none``, ``goodput`` (and ``latency``), ``fixed:K``, ``suffix`` (a constant length with the proposer's own
stop), ``ngram:K`` (vLLM's own), ``adaptive:K`` (vLLM's own ngram under the controller).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

from _demo_prompts import WARM_UP, WORKLOADS  # noqa: E402  the prompts of the demo

from specplug.testing.engine_process import EngineProcess  # noqa: E402

WIDTH = 16


def configuration(method: str) -> dict[str, Any] | None:
    """The speculative_config of a method."""
    name, _, number = method.partition(":")
    suffix = {"method": "specplug.suffix", "num_speculative_tokens": WIDTH}
    ngram = {
        "num_speculative_tokens": int(number or 8),
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }
    if name == "none":
        return None
    if name == "goodput":
        return {**suffix, "specplug": {"store_mb": 0}}
    if name == "latency":
        control = {"name": "goodput", "mode": "latency"}
        return {**suffix, "specplug": {"store_mb": 0, "controller": control}}
    if name == "suffix":
        return {**suffix, "specplug": {"store_mb": 0, "controller": "fixed"}}
    if name == "fixed":
        control = {"name": "fixed", "length": int(number)}
        options = {"store_mb": 0, "verify_cost": 0.002, "controller": control}
        return {**suffix, "specplug": options}
    if name == "ngram":
        return {"method": "ngram", **ngram}
    if name == "adaptive":
        inner = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
        return {
            "method": "specplug.adaptive",
            "num_speculative_tokens": int(number or 8),
            "specplug": {"inner": inner},
        }
    raise SystemExit(f"unknown method {method!r}; see the head of the file")


def prompts_of(workload: str, count: int, turn: int) -> list[Any]:
    """``count`` prompts, from another place in every round; ``mixed`` takes from all workloads in turn."""
    pools = [[p for one in rounds for p in one] for rounds in WORKLOADS.values()]
    if workload == "mixed":
        pool = [p for group in zip(*pools, strict=False) for p in group]
    else:
        pool = pools[list(WORKLOADS).index(workload)]
    return [pool[(turn * count + i) % len(pool)] for i in range(count)]


def serve(engines: dict[str, EngineProcess], chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """All rounds; one record per batch."""
    names, found = list(engines), []
    turn = 0
    deadline = time.monotonic() + chosen.seconds
    for number in range(chosen.rounds):
        for workload in chosen.workloads:
            for count in chosen.concurrency:
                prompts = prompts_of(workload, count, number)
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    before = engines[name].metrics()
                    batch = engines[name].generate(
                        prompts, {"temperature": 0, "max_tokens": chosen.tokens, "ignore_eos": True}
                    )
                    gained = engines[name].metrics() - before
                    found.append(
                        {
                            "round": number,
                            "workload": workload,
                            "concurrency": count,
                            "method": name,
                            "seconds": batch.seconds,
                            "tokens": batch.generated_tokens,
                            "drafted": gained.draft_tokens,
                            "accepted": gained.accepted_tokens,
                            "text": [r.only.token_ids for r in batch.results],
                        }
                    )
                turn += 1
        print(f"round {number + 1} of {chosen.rounds} done", file=sys.stderr, flush=True)
        if time.monotonic() > deadline:
            print("out of time: fewer rounds", file=sys.stderr)
            break
    return found


def table(found: list[dict[str, Any]], names: list[str]) -> str:
    """Per workload, concurrency and method: median over rounds of the ratio to the first method, and drafts."""
    head = (
        f"{'workload':<12}{'requests':>9}  {'method':<12}{'tokens/s':>9}{'ratio':>7}  {'(range)':<14}"
        f"{'drafted':>9}{'accepted':>9}  identical"
    )
    lines = [head, "-" * len(head)]
    cells = sorted({(r["workload"], r["concurrency"]) for r in found})
    for workload, count in cells:
        here = [r for r in found if (r["workload"], r["concurrency"]) == (workload, count)]
        base = {r["round"]: r for r in here if r["method"] == names[0]}
        for name in names:
            mine = [r for r in here if r["method"] == name]
            speeds = [r["tokens"] / r["seconds"] for r in mine]
            ratios = [
                base[r["round"]]["seconds"]
                / base[r["round"]]["tokens"]
                * r["tokens"]
                / r["seconds"]
                for r in mine
            ]
            same = sum(
                a == b
                for r in mine
                for a, b in zip(r["text"], base[r["round"]]["text"], strict=True)
            )
            span = f"({min(ratios):.2f} to {max(ratios):.2f})"
            lines.append(
                f"{workload:<12}{count:>9}  {name:<12}{statistics.median(speeds):>9.1f}"
                f"{statistics.median(ratios):>6.2f}x  {span:<14}{sum(r['drafted'] for r in mine):>9}"
                f"{sum(r['accepted'] for r in mine):>9}  {same} of {sum(len(r['text']) for r in mine)}"
            )
    return "\n".join(lines)


def main() -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add(
        "--methods",
        nargs="+",
        default=["none", "goodput", "fixed:2", "fixed:4", "fixed:8", "fixed:16"],
    )
    add("--workloads", nargs="+", default=[*WORKLOADS, "mixed"])
    add("--concurrency", nargs="+", type=int, default=[1, 4, 8])
    add("--rounds", type=int, default=5)
    add("--tokens", type=int, default=48, help="per answer (48)")
    add("--seconds", type=float, default=1e9, help="start no new round after so many")
    add("--dtype", default="float32", choices=["float32", "bfloat16"])
    add("--json", type=Path)
    chosen = parser.parse_args()
    model = (
        subprocess.run(
            [sys.executable, str(ROOT / "tools" / "model.py")],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        .stdout.strip()
        .splitlines()[-1]
    )
    with ExitStack() as stack:
        engines = {}
        for name in chosen.methods:
            print(f"starting {name} ...", file=sys.stderr, flush=True)
            options = {
                "model": model,
                "dtype": chosen.dtype,
                "max_model_len": 2048,
                "max_num_seqs": 8,
                "speculative_config": configuration(name),
            }
            engines[name] = stack.enter_context(EngineProcess(options, name=name.replace(":", "-")))
            # The cost model shall know the machine before the clock runs, as it does in a server.
            for size in (1, 4, 8):
                engines[name].generate(
                    [WARM_UP] * size, {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
                )
        found = serve(engines, chosen)
        info = engines[chosen.methods[0]].info()
        own = {name: engine.metrics().own for name, engine in engines.items()}
    print(table(found, chosen.methods))
    print(
        f"vLLM {info['versions']['vllm']}, {info['threads']} threads, {info['dtype']}, greedy, {chosen.tokens} tokens"
    )
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"records": found, "info": info, "own": own}, default=str) + "\n"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
