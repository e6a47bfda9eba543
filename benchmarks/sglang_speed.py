"""Real SGLang on the CPU: no speculation, SGLang's own NGRAM, and ``specplug.suffix`` in two ways, side by side.

Four engines serve the same prompts one after the other, in rotating order, so that whatever else the machine does hits
all alike; each prompt once per engine. Greedy decoding, one request at a time. Workloads: copy-heavy prompts and
free chat of ``examples/demo_vllm.py``, and code that is to be written::

    python tools/environments.py run sglang benchmarks/sglang_speed.py --dtype bfloat16 --json speed.json

In bfloat16 plain decoding and verification round differently, so that near-ties can flip and answers may differ; in
float32 the exit status is 1 if any does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

from _demo_prompts import WARM_UP, WORKLOADS, Chat  # noqa: E402  lies in examples/
from _demo_report import Served, as_json, provenance, rows, table  # noqa: E402  lies in examples/

from specplug.testing.engine_process import EngineProcess  # noqa: E402  after the path is set

PLAIN = "none"
LENGTHS = {"copy-heavy": 128, "code": 96, "free chat": 64}
_TASKS = [
    ["Write a Python class for a stack with push, pop, peek and size.", "Write unit tests for a function add(a, b)."],
    ["Write a SQL table of books and five INSERT statements.", "Write an HTML page with a table of four countries."],
    ["Write a C program that prints the first ten primes.", "Write a Python function that parses a CSV line."],
    ["Write a JSON file with five users and their emails.", "Write a bash script that renames all .txt files."],
    ["Write a Python class for a bank account.", "Write a JavaScript function for each of + - * and /."],
]  # fmt: skip
PROMPTS: dict[str, list[list[Chat]]] = {
    "copy-heavy": WORKLOADS["copy-heavy"],
    "code": [[[{"role": "user", "content": t}] for t in tasks] for tasks in _TASKS],
    "free chat": WORKLOADS["free chat"],
}


#: Options of specplug in a process's environment.
OPTIONS = "SPECPLUG_SGLANG_OPTIONS"


def methods(width: int) -> dict[str, dict[str, Any]]:
    """SGLang's arguments for each method, and its environment; all verify at most equally many positions.

    NGRAM drafts a tree of whatever it finds. The controller of specplug drafts what pays on this machine; ``trees`` is
    without it, as if verification cost nothing, and knows earlier prompts as NGRAM does, so that drafts can be
    compared with NGRAM's as drafts.
    """
    wide = {"speculative_num_draft_tokens": width}
    ours = {"speculative_algorithm": "specplug.suffix", **wide}
    trees = {"controller": "fixed", "verify_cost": 0.0001, "tree": True, "share_prompts": True}
    return {
        PLAIN: {},
        "NGRAM": {"speculative_algorithm": "NGRAM", **wide},
        "specplug.suffix": ours,
        "suffix, trees": {**ours, "env": {OPTIONS: json.dumps(trees)}},
    }


def start(stack: ExitStack, model: str, dtype: str, configs: dict[str, Any]) -> dict[str, Any]:
    """One engine per method, one after the other (each start uses all cores)."""
    engines = {}
    for name, config in configs.items():
        print(f"starting SGLang, speculation: {name} ...", file=sys.stderr, flush=True)
        options = {"model": model, "dtype": dtype, "max_model_len": 2048, "max_num_seqs": 8}
        options |= {"max_total_tokens": 4096, **config}
        env = options.pop("env", {})
        engine = EngineProcess(
            options,
            name=name.replace(".", "-").replace(", ", "-"),
            env=env,
            engine="sglang",
            start_seconds=600,
        )
        engines[name] = stack.enter_context(engine)
        engine.generate([WARM_UP], {"temperature": 0, "max_tokens": 32})
    return engines


def serve(
    engines: dict[str, EngineProcess], rounds: int, seconds: float
) -> dict[str, dict[str, Served]]:
    """As many rounds of all workloads as fit, every prompt once by every engine."""
    served = {w: {name: Served() for name in engines} for w in PROMPTS}
    names = list(engines)
    begin, turn = time.perf_counter(), 0
    for number in range(rounds):
        if number and (time.perf_counter() - begin) * (number + 1) / number > seconds:
            print(f"stopped after {number} rounds", file=sys.stderr)
            break
        for workload, prompts in PROMPTS.items():
            for one in served[workload].values():
                one.begin_round()
            for prompt in prompts[number]:
                order = names[turn % len(names) :] + names[: turn % len(names)]
                turn += 1
                for name in order:
                    before = engines[name].metrics()
                    params = {"temperature": 0, "max_tokens": LENGTHS[workload]}
                    batch = engines[name].generate([prompt], params)
                    served[workload][name].add(batch, engines[name].metrics() - before)
        print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    return served


def model_folder() -> str:
    """The folder that ``tools/model.py`` makes."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "model.py")],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return made.stdout.strip().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="model folder; by default tools/model.py makes it")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5, help="1 to 5 (default 5)")
    parser.add_argument(
        "--seconds", type=float, default=600, help="start no round that would end later"
    )
    parser.add_argument("--width", type=int, default=16, help="speculative_num_draft_tokens")
    parser.add_argument("--methods", nargs="+", default=list(methods(2)), help="some of the four")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    chosen = parser.parse_args()
    known = methods(chosen.width)
    if unknown := [name for name in chosen.methods if name not in known]:
        parser.error(f"unknown method {unknown[0]!r}; there are {', '.join(known)}")
    configs = {name: known[name] for name in dict.fromkeys([PLAIN, *chosen.methods])}
    with ExitStack() as stack:
        engines = start(stack, chosen.model or model_folder(), chosen.dtype, configs)
        served = serve(engines, chosen.rounds, chosen.seconds)
        facts = provenance(engines[PLAIN].info(), chosen.dtype, 0)
        own = {name: engines[name].metrics().own for name in configs if "suffix" in name}
    found = rows(served, PLAIN)
    print(table(found))
    print(
        "\nratio: median over rounds of tokens/s against none on the same prompts; MAL: mean acceptance"
    )
    print(
        "length, tokens per step that had a draft, and per decode step of any kind. Of NGRAM only steps"
    )
    print("with an accepted draft are known as drafted\n")
    print(", ".join(f"{key}: {value}" for key, value in facts.items() if key != "versions"))
    print(", ".join(f"{key} {value}" for key, value in facts["versions"].items()))
    for name, facts_of in own.items():
        print(f"{name}, host per step: {facts_of['host_time']}, {facts_of['verify_time']}")
    if chosen.json:
        settings = {"configs": configs, "lengths": LENGTHS, "own": own}
        chosen.json.write_text(json.dumps(as_json(found, facts, settings), indent=2) + "\n")
    differing = [r for r in found if r.identical < r.prompts]
    for row in differing:
        print(
            f"{row.workload}, {row.method}: {row.prompts - row.identical} answers differ from none"
        )
    return int(bool(differing) and chosen.dtype == "float32")


if __name__ == "__main__":
    raise SystemExit(main())
