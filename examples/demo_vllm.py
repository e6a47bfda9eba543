"""Real vLLM on the CPU: no speculation, vLLM's own ``ngram``, and ``specplug.suffix``, side by side.

Three engines in three processes serve the same prompts one after the other, in rotating order, so that whatever
else the machine does hits all three alike. Each prompt is served once per engine: nothing is drafted from an
earlier answer to the same question. Greedy decoding, one request at a time::

    python tools/environments.py run vllm examples/demo_vllm.py --json demo.json

The default is float32, in which speculation must not change a single token. bfloat16 is faster on a CPU that has
it, but there plain decoding and verification round differently, so that near-ties can flip (``--dtype bfloat16``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _demo_prompts import WARM_UP, WORKLOADS, Chat
from _demo_report import Served, as_json, provenance, rows, table

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import EngineProcessError, EngineRequestError

PLAIN = "none"
SEED = 0
#: Tokens per answer.
LENGTHS = {"copy-heavy": 128, "free chat": 64}
#: Copying pays most, chat must not suffer.
GOALS = {"copy-heavy": 2.0, "free chat": 0.97}


def methods(width: int) -> dict[str, dict[str, Any] | None]:
    """The speculative_config of each method."""
    return {
        PLAIN: None,
        "ngram": {
            "method": "ngram",
            "num_speculative_tokens": width,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        },
        "specplug.suffix": {"method": "specplug.suffix", "num_speculative_tokens": width},
    }


def say(text: str) -> None:
    """Progress goes to standard error; the table alone to standard output."""
    print(text, file=sys.stderr, flush=True)


def start(
    stack: ExitStack, model: str, dtype: str, configs: dict[str, Any]
) -> dict[str, EngineProcess]:
    """One engine per method, one after the other (each start uses all cores)."""
    engines = {}
    for name, config in configs.items():
        say(f"starting vLLM, speculation: {name} (about 20 s) ...")
        engine = EngineProcess(
            {
                "model": model,
                "dtype": dtype,
                "max_model_len": 2048,
                "max_num_seqs": 8,
                "seed": SEED,
                "speculative_config": config,
            },
            name=name,
        )
        engines[name] = stack.enter_context(engine)
        engine.generate([WARM_UP], {"temperature": 0, "max_tokens": 32})
        say(f"  ready after {engine.info()['start_seconds']:.0f} s")
    return engines


def orders(names: list[str]) -> Iterator[list[str]]:
    """The engines in rotating order: each is first, second and last equally often."""
    turn = 0
    while True:
        yield names[turn % len(names) :] + names[: turn % len(names)]
        turn += 1


def serve(engines: dict[str, EngineProcess], rounds: int) -> dict[str, dict[str, Served]]:
    """All rounds of all workloads, every prompt once by every engine."""
    served = {w: {name: Served() for name in engines} for w in WORKLOADS}
    order = orders(list(engines))
    for number in range(rounds):
        begin = time.perf_counter()
        for workload, prompts_by_round in WORKLOADS.items():
            for one in served[workload].values():
                one.begin_round()
            for prompt in prompts_by_round[number]:
                for name in next(order):
                    ask(engines[name], served[workload][name], prompt, LENGTHS[workload])
        say(f"round {number + 1} of {rounds} done in {time.perf_counter() - begin:.0f} s")
    return served


def ask(engine: EngineProcess, into: Served, prompt: Chat, length: int) -> None:
    """One prompt, one engine."""
    before = engine.metrics()
    batch = engine.generate([prompt], {"temperature": 0, "max_tokens": length})
    into.add(batch, engine.metrics() - before)


def model_folder() -> str:
    """The folder that ``tools/model.py`` makes."""
    tool = Path(__file__).resolve().parent.parent / "tools" / "model.py"
    made = subprocess.run(
        [sys.executable, str(tool)], stdout=subprocess.PIPE, text=True, check=True
    )
    return made.stdout.strip().splitlines()[-1]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="model folder; by default tools/model.py makes it")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5, help="1 to 5 (default 5)")
    parser.add_argument("--width", type=int, default=16, help="num_speculative_tokens (default 16)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    chosen = parser.parse_args()
    most = min(len(prompts) for prompts in WORKLOADS.values())
    if not 1 <= chosen.rounds <= most:
        parser.error(f"--rounds must be 1 to {most}, got {chosen.rounds}")
    return chosen


def main() -> int:
    """Run the demo; the exit status is 1 if float32 outputs differ or an engine fails."""
    chosen = arguments()
    say(f"about {1 + chosen.rounds * 50 // 60 + 1} minutes on two cores, if nothing else runs")
    model = chosen.model or model_folder()
    configs = methods(chosen.width)
    try:
        with ExitStack() as stack:
            engines = start(stack, model, chosen.dtype, configs)
            served = serve(engines, chosen.rounds)
            facts = provenance(engines[PLAIN].info(), chosen.dtype, SEED)
    except (EngineProcessError, EngineRequestError) as error:
        say(f"the demo cannot run: {error}")
        return 1
    found = rows(served, PLAIN)
    print(f"\nSmolLM2-135M-Instruct, greedy, one request at a time, {chosen.rounds} rounds\n")
    print(table(found))
    print("\nratio: median over rounds of tokens/s against none on the same prompts; MAL: mean")
    print("acceptance length, tokens per step that had a draft, and per decode step of any kind\n")
    print(", ".join(f"{key}: {value}" for key, value in facts.items() if key != "versions"))
    print(", ".join(f"{key} {value}" for key, value in facts["versions"].items()))
    for row in found:
        if row.method == "specplug.suffix":
            goal = GOALS[row.workload]
            verdict = "reached" if row.ratio >= goal else "missed"
            print(f"{row.workload}: {row.ratio:.2f}x, goal {goal:.2f}x {verdict}")
    if chosen.json:
        settings = {"configs": configs, "lengths": LENGTHS, "rounds": chosen.rounds}
        chosen.json.write_text(json.dumps(as_json(found, facts, settings), indent=2) + "\n")
        say(f"wrote {chosen.json}")
    differing = [r for r in found if r.identical < r.prompts]
    for row in differing:
        say(f"{row.workload}, {row.method}: {row.prompts - row.identical} answers differ from none")
    return int(bool(differing) and chosen.dtype == "float32")


if __name__ == "__main__":
    raise SystemExit(main())
