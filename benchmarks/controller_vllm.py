"""The goodput controller against constant draft lengths, in the real vLLM on this machine.

One engine per method in a process of its own; all serve the same prompts in rotating order, turn by turn, so that
whatever else the machine does hits all alike. In a turn so many requests run at a time, always (``_closed_loop.py``).
Requests share nothing (``store_mb`` 0), so a prompt may come again. Seconds of the clock and of processors are both
shown: others on the machine can make a step wait, but hardly make it work more.
The default takes about 20 minutes on two idle cores and 16 GB of memory::

    python tools/environments.py run vllm benchmarks/controller_vllm.py --json controller.json

Methods: ``none``, ``goodput`` (and ``latency``), ``fixed:K``, ``suffix`` (a constant length with the proposer's own
stop), ``ngram:K`` (vLLM's own), ``adaptive:K`` (vLLM's own ngram under the controller), ``model:K`` and
``adaptive-model:K`` (the model as its own draft model, which shows cost and acceptance, not a gain).

One request at a time is served from each kind of text by itself, several at a time are mixed. ``fixed:0`` against
``none`` is what vLLM's steps lose by being ready for drafts at all (async scheduling, among others).
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


def configuration(method: str, model: str) -> dict[str, Any] | None:
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
    if name == "model":
        return {"method": "draft_model", "model": model, "num_speculative_tokens": int(number or 4)}
    if name in ("adaptive", "adaptive-model"):
        inner: dict[str, Any] = {"method": "draft_model", "model": model}
        if name == "adaptive":
            inner = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
        return {
            "method": "specplug.adaptive",
            "num_speculative_tokens": int(number or 8),
            "specplug": {"inner": inner},
        }
    raise SystemExit(f"unknown method {method!r}; see the head of the file")


_COPYING, _CHAT = WORKLOADS.values()
#: Prompts by kind; the first of each round of the copying ones of the demo is about code.
POOLS = {
    "copying": [prompt for one in _COPYING for prompt in one[1:]],
    "code": [one[0] for one in _COPYING],
    "chat": [prompt for one in _CHAT for prompt in one],
}
#: What is served, and how many requests at a time.
CELLS = (("copying", 1), ("code", 1), ("chat", 1), ("mixed", 4), ("mixed", 8))


def prompts_of(workload: str, count: int, turn: int) -> list[Any]:
    """``count`` prompts, from another place in every round; ``mixed`` takes from all kinds in turn."""
    pool = POOLS.get(workload, [])
    if workload == "mixed":
        pool = [prompt for group in zip(*POOLS.values(), strict=False) for prompt in group]
    return [pool[(turn * count + i) % len(pool)] for i in range(count)]


#: Requests of a turn for each one that runs at a time.
TURN = 3


def serve(engines: dict[str, EngineProcess], chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """All rounds; one record per batch."""
    names, found = list(engines), []
    turn = 0
    deadline = time.monotonic() + chosen.seconds
    for number in range(chosen.rounds):
        for workload, count in chosen.cells:
            prompts = prompts_of(workload, TURN * count, number)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                engine = engines[name]
                before = engine.metrics()
                batch = engine.call(
                    "run",
                    target="_closed_loop:serve",
                    prompts=[engine.tokenize(prompt) for prompt in prompts],
                    together=count,
                    tokens=chosen.tokens,
                )["value"]
                gained = engine.metrics() - before
                found.append(
                    {
                        "round": number,
                        "workload": workload,
                        "concurrency": count,
                        "method": name,
                        "drafted": gained.draft_tokens,
                        "accepted": gained.accepted_tokens,
                        **batch,
                    }
                )
            turn += 1
        print(f"round {number + 1} of {chosen.rounds} done", file=sys.stderr, flush=True)
        if time.monotonic() > deadline:
            print("out of time: fewer rounds", file=sys.stderr)
            break
    return found


def speeds(
    found: list[dict[str, Any]], cell: tuple[str, int], name: str, clock: str = "seconds"
) -> list[float]:
    """Tokens per second in every round; ``processor_seconds`` is the other clock."""
    here = [r for r in found if (r["workload"], r["concurrency"], r["method"]) == (*cell, name)]
    return [r["tokens"] / r[clock] for r in sorted(here, key=lambda r: r["round"])]


def ratio(
    found: list[dict[str, Any]],
    cell: tuple[str, int],
    name: str,
    base: str,
    clock: str = "seconds",
) -> list[float]:
    """Speed to that of another method, round by round."""
    pairs = zip(speeds(found, cell, name, clock), speeds(found, cell, base, clock), strict=True)
    return [mine / theirs for mine, theirs in pairs]


def table(found: list[dict[str, Any]], names: list[str]) -> str:
    """Per cell and method: medians over rounds of the ratios to the first method, by either clock, and drafts."""
    head = (
        f"{'workload':<10}{'requests':>9}  {'method':<16}{'tokens/s':>9}{'ratio':>7}  {'(range)':<16}"
        f"{'by CPU':>6}  {'(range)':<16}{'tokens/step':>11}{'drafted':>9}{'accepted':>9}  identical"
    )
    lines = [head, "-" * len(head)]
    for cell in dict.fromkeys((r["workload"], r["concurrency"]) for r in found):
        here = [r for r in found if (r["workload"], r["concurrency"]) == cell]
        base = {r["round"]: r for r in here if r["method"] == names[0]}
        for name in names:
            mine = [r for r in here if r["method"] == name]
            ratios, worked = (
                ratio(found, cell, name, names[0], clock)
                for clock in ("seconds", "processor_seconds")
            )
            pairs = [
                (a, b)
                for r in mine
                for a, b in zip(r["text"], base[r["round"]]["text"], strict=True)
            ]
            spans = [f"({min(v):.2f} to {max(v):.2f})" for v in (ratios, worked)]
            per_step = sum(r["tokens"] for r in mine) / sum(r["steps"] for r in mine)
            lines.append(
                f"{cell[0]:<10}{cell[1]:>9}  {name:<16}{statistics.median(speeds(found, cell, name)):>9.1f}"
                f"{statistics.median(ratios):>6.2f}x  {spans[0]:<16}{statistics.median(worked):>5.2f}x  {spans[1]:<16}"
                f"{per_step:>11.2f}{sum(r['drafted'] for r in mine):>9}"
                f"{sum(r['accepted'] for r in mine):>9}  {sum(a == b for a, b in pairs)} of {len(pairs)}"
            )
    return "\n".join(lines)


def both(found: list[dict[str, Any]], cell: tuple[str, int], name: str, other: str) -> str:
    """The median ratio of speeds, by the clock and by processor time."""
    by_clock, by_work = (
        statistics.median(ratio(found, cell, name, other, clock))
        for clock in ("seconds", "processor_seconds")
    )
    return f"{by_clock:.3f} (by CPU {by_work:.3f})"


def summary(found: list[dict[str, Any]], names: list[str]) -> str:
    """The controller against the best constant length of each cell, against none, and over vLLM's own methods."""
    lines = []
    constant = [name for name in names if name.startswith("fixed:") or name == "none"]
    for cell in dict.fromkeys((r["workload"], r["concurrency"]) for r in found):
        parts = []
        best = max(
            constant, key=lambda name: statistics.median(speeds(found, cell, name)), default=None
        )
        for name in ("goodput", "latency"):
            if name in names:
                for other in dict.fromkeys((best, "none")):
                    if other in names:
                        parts.append(f"{name} {both(found, cell, name, other)} of {other}")
        for name in names:
            kind, _, length = name.partition(":")
            alone = {"adaptive": "ngram", "adaptive-model": "model"}.get(kind, "") + f":{length}"
            if alone in names:
                parts.append(f"{name} {both(found, cell, name, alone)} of {alone}")
        found_best = f" (best constant: {best})" if best else ""
        lines.append(f"{cell[0]}, {cell[1]} at a time{found_best}: " + "; ".join(parts))
    if "fixed:0" in names and "none" in names:
        for cell in dict.fromkeys((r["workload"], r["concurrency"]) for r in found):
            plain, ready = (
                1e3
                * statistics.median(
                    r["seconds"] / r["steps"]
                    for r in found
                    if (r["workload"], r["concurrency"], r["method"]) == (*cell, name)
                )
                for name in ("none", "fixed:0")
            )
            lines.append(
                f"{cell[0]}, {cell[1]} at a time: a plain step takes {plain:.2f} ms, {ready - plain:+.2f} ms when "
                "ready for drafts (the option async_loss_ms)"
            )
    return "\n".join(lines)


def cell_of(text: str) -> tuple[str, int]:
    """A workload and a number of requests, from ``mixed:4``."""
    kind, _, count = text.partition(":")
    if kind not in (*POOLS, "mixed") or not count.isdigit() or not int(count):
        raise argparse.ArgumentTypeError(
            f"expected KIND:N with a kind of {', '.join((*POOLS, 'mixed'))}, got {text!r}"
        )
    return kind, int(count)


def start(stack: ExitStack, model: str, chosen: argparse.Namespace) -> dict[str, EngineProcess]:
    """One engine per method, started together, and warm."""
    engines = {}
    for name in chosen.methods:
        options = {
            "model": model,
            "dtype": chosen.dtype,
            "max_model_len": 1024,
            "max_num_seqs": 8,
            # 8,192 tokens: a gigabyte per engine would be more than many machines have.
            "num_gpu_blocks_override": 256,
            "block_size": 32,
            "speculative_config": configuration(name, model),
        }
        engines[name] = stack.enter_context(
            EngineProcess(
                options,
                name=name.replace(":", "-"),
                env={"PYTHONPATH": str(Path(__file__).resolve().parent)},
                wait=False,
            )
        )
        if len(engines) % 3 == 0 or len(engines) == len(chosen.methods):
            for ready in engines.values():
                ready.ready()
            print(f"{len(engines)} engines are ready", file=sys.stderr, flush=True)
    for engine in engines.values():
        # The cost model shall know the machine before the clock runs, as it does in a server.
        for size in (1, 4, 8):
            engine.generate(
                [WARM_UP] * size, {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
            )
    return engines


def main() -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add(
        "--methods",
        nargs="+",
        default=[
            *("none", "goodput", "fixed:0", "fixed:2", "fixed:4", "fixed:8", "fixed:16"),
            *("ngram:8", "adaptive:8"),
        ],
    )
    add(
        "--cells",
        nargs="+",
        type=cell_of,
        default=CELLS,
        metavar="KIND:N",
        help="what is served and how many at a time (copying:1 code:1 chat:1 mixed:4 mixed:8)",
    )
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
        engines = start(stack, model, chosen)
        found = serve(engines, chosen)
        info = engines[chosen.methods[0]].info()
        own = {name: engine.metrics().own for name, engine in engines.items()}
    print(table(found, chosen.methods))
    print(summary(found, chosen.methods))
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
