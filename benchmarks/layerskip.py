"""Self-speculation with transformers: acceptance and speed by exit layer, with and without exit heads, and by policy.

Every method continues the same prompts, greedily and in float32; plain decoding runs the same loop without drafts, so
that the ratios are between like and like. Needs heads that ``specplug fit-exit`` wrote for the model::

    python tools/environments.py run vllm benchmarks/layerskip.py MODEL --heads MODEL.exits --json layerskip.json

All but the last row draft ``--max-draft`` tokens in every step, whatever it costs, to show acceptance; the last one
drafts only while it pays. Exit status 1 if any output differs from plain decoding.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

from _demo_prompts import WORKLOADS  # noqa: E402  lies in examples/

from specplug.adapters.transformers_hf import Decoder, SelfSpeculation  # noqa: E402
from specplug.adapters.transformers_hf.cache import crop  # noqa: E402
from specplug.layers.exit_file import load_heads  # noqa: E402
from specplug.layers.plan import Plan  # noqa: E402
from specplug.layers.policy import LayerPolicy, StopRule  # noqa: E402
from specplug.proposers.layerskip.clasp import Clasp  # noqa: E402
from specplug.proposers.layerskip.conflayers import ConfLayers  # noqa: E402
from specplug.proposers.layerskip.early_exit import EarlyExit, Fixed  # noqa: E402
from specplug.proposers.layerskip.stopping import Always, Paying  # noqa: E402
from specplug.proposers.layerskip.swift import Swift  # noqa: E402
from specplug.replay.provenance import provenance  # noqa: E402

Method = tuple[str, Callable[[], LayerPolicy], Callable[[], StopRule], bool]


def methods(layers: int, exits: list[int], best: int) -> list[Method]:
    """Name, policy, stop rule and whether exit heads are used."""

    def leave(layer: int) -> Callable[[], LayerPolicy]:
        return lambda: EarlyExit(layers, layer)

    rows: list[Method] = [("plain", lambda: Fixed(Plan.full(layers)), Always, False)]
    for layer in exits:
        rows.append((f"exit {layer} raw", leave(layer), Always, False))
        rows.append((f"exit {layer} head", leave(layer), Always, True))
    rows += [
        ("swift", lambda: Swift(layers), Always, False),
        ("clasp", lambda: Clasp(layers, max(1, layers // 3)), Always, False),
        ("conflayers", lambda: ConfLayers(layers), Always, False),
        (f"exit {best} head, paying", leave(best), Paying, True),
    ]
    return rows


def measure(
    decoder: Decoder, row: Method, prompts: list[list[int]], options: Any, heads: Any
) -> dict[str, Any]:
    """One method over all prompts."""
    name, policy, stop, with_heads = row
    width = 0 if name == "plain" else options.max_draft
    engine = SelfSpeculation(
        decoder, policy(), stop(), max_draft=width, heads=heads if with_heads else {}
    )
    start = time.perf_counter()
    runs = [engine.generate(prompt, options.tokens) for prompt in prompts]
    wall = time.perf_counter() - start
    total = {key: sum(run.seconds[key] for run in runs) for key in runs[0].seconds}
    drafted, accepted = sum(run.drafted for run in runs), sum(run.accepted for run in runs)
    steps, drafted_steps = sum(run.steps for run in runs), sum(run.drafted_steps for run in runs)
    passes = sum(run.draft_passes for run in runs)
    emitted = sum(len(run.tokens) for run in runs)
    return {
        "method": name,
        "outputs": [run.tokens for run in runs],
        "cost": round(engine.policy.plan().cost(), 3),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance": accepted / drafted if drafted else 0.0,
        "mal_drafted": 1.0 + accepted / drafted_steps if drafted_steps else 0.0,
        "mal": emitted / steps,
        "tokens_per_s": emitted / (wall - total["prefill"]),
        "draft_ms": 1e3 * total["draft"] / passes if passes else 0.0,
        "verify_ms": 1e3 * total["verify"] / steps,
        "policy_ms": 1e3 * total["policy"] / steps,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Aligned, one method per line."""
    base = rows[0]
    lines = [
        f"{'method':<22} {'runs':>5} {'drafted':>7} {'accepted':>8} {'share':>6} {'MAL drafted':>11} {'MAL step':>8} "
        f"{'tokens/s':>8} {'ratio':>6} {'draft ms':>8} {'verify ms':>9} {'policy ms':>9}  identical"
    ]
    for row in rows:
        same = sum(a == b for a, b in zip(row["outputs"], base["outputs"], strict=True))
        lines.append(
            f"{row['method']:<22} {row['cost']:>5.2f} {row['drafted']:>7} {row['accepted']:>8} "
            f"{row['acceptance']:>6.3f} {row['mal_drafted']:>11.2f} {row['mal']:>8.2f} {row['tokens_per_s']:>8.2f} "
            f"{row['tokens_per_s'] / base['tokens_per_s']:>5.2f}x {row['draft_ms']:>8.1f} {row['verify_ms']:>9.1f} "
            f"{row['policy_ms']:>9.1f}  {same} of {len(base['outputs'])}"
        )
    return "\n".join(lines)


def costs(decoder: Decoder, rounds: int = 15) -> str:
    """What a draft pass takes by exit layer, in passes of the whole model; medians of interleaved rounds."""
    layers = decoder.layers
    exits = sorted({1, layers // 8, layers // 4, layers // 2, 3 * layers // 4, layers - 1, layers})
    cache = decoder.new_cache()
    decoder.fill(range(100), cache)
    seconds: dict[int, list[float]] = {layer: [] for layer in exits}
    for _ in range(rounds):
        for layer in exits:
            plan = Plan.full(layers) if layer == layers else Plan.early_exit(layers, layer)
            start = time.perf_counter()
            with decoder.running(plan):
                decoder.logits([7], cache)
            seconds[layer].append(time.perf_counter() - start)
            crop(cache, 100)
    whole = median(seconds[layers])
    lines = [f"{'exit after':>12}  {'ms':>6}  {'cost':>5}  {'layers':>6}"]
    for layer in exits:
        cost = median(seconds[layer]) / whole
        lines.append(
            f"{layer:>6} of {layers:>2}  {1e3 * cost * whole:>6.1f}  {cost:>5.2f}  {layer / layers:>6.2f}"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--heads", type=Path, help="needed unless --costs")
    parser.add_argument("--costs", action="store_true", help="only what a draft pass takes")
    parser.add_argument("--exits", default="8,15,24", help="exit layers, all of which have a head")
    parser.add_argument("--best", type=int, default=8, help="exit layer of the last row")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--max-draft", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import transformers

    decoder = Decoder(
        transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype="float32")
    )
    if options.costs:
        print(
            costs(decoder),
            json.dumps(provenance(("specplug", "torch", "transformers"), 0)),
            sep="\n",
        )
        return 0
    if options.heads is None:
        parser.error("--heads FILE, written by specplug fit-exit, or --costs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    heads = load_heads(options.heads, decoder.fingerprint(), decoder.hidden, decoder.layers)
    chats = [chat for turns in WORKLOADS["free chat"] for chat in turns][: options.prompts]
    prompts = [
        list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
        for chat in chats
    ]
    exits = [int(layer) for layer in options.exits.split(",")]
    rows = []
    for row in methods(decoder.layers, exits, options.best):
        rows.append(measure(decoder, row, prompts, options, heads))
        print(table([rows[0], rows[-1]]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    facts = provenance(("specplug", "torch", "transformers", "numpy"), 0)
    print(json.dumps(facts))
    if options.json:
        options.json.write_text(json.dumps({"provenance": facts, "rows": rows}, indent=1) + "\n")
    return int(any(row["outputs"] != rows[0]["outputs"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
