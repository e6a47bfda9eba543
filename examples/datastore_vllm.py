"""Real vLLM on the CPU with a datastore of logged answers: what has been answered before comes faster.

A help desk: plain decoding answers questions about Python, and these answers, logged, become a datastore. Then two
fresh engines serve the same prompts in turn: ``specplug.suffix``, whose store is empty, and ``specplug.hybrid`` with
the datastore. Half of the questions come in the logged words, the other half in other words; none comes twice, so
that neither engine can copy from an answer of its own. Greedy decoding in float32, one request at a time::

    python tools/environments.py run vllm examples/datastore_vllm.py

Steps and accepted tokens do not depend on what else the machine does; times do.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _demo_report import Served, Tokens, as_json, provenance, rows, table
from demo_vllm import ask, model_folder, orders, say

from specplug.datastore.build import build
from specplug.replay.tokenizers import load_tokenizer
from specplug.testing.engine_process import EngineProcess

PLAIN, ALONE = "none", "specplug.suffix"
#: What is asked about.
TOPICS = (
    *("the function len", "the function range", "the method list.append", "the function open"),
    *("a dictionary", "a list comprehension", "the with statement", "an exception"),
    *("a generator", "a decorator", "the function sorted", "a lambda"),
    *("a virtual environment", "the module json", "a class", "an iterator"),
)
LOGGED = "What is {} in Python? Answer in a few sentences."
ASKED = {"asked again": LOGGED, "reworded": "Please explain {} in Python in a few sentences."}
#: Prompts of a workload in one round.
TOGETHER = 2

Prompts = dict[str, list[list[dict[str, str]]]]


def chat(question: str) -> list[dict[str, str]]:
    """A chat of one question."""
    return [{"role": "user", "content": question}]


def prompts() -> Prompts:
    """By workload; a topic belongs to one of them."""
    return {
        workload: [chat(wording.format(topic)) for topic in TOPICS[number :: len(ASKED)]]
        for number, (workload, wording) in enumerate(ASKED.items())
    }


def configs(width: int, folder: str) -> dict[str, dict[str, Any]]:
    """The speculative_config of both methods."""
    common = {"num_speculative_tokens": width}
    return {
        ALONE: {"method": "specplug.suffix", **common},
        "specplug.hybrid": {
            "method": "specplug.hybrid",
            **common,
            "specplug": {"datastore": folder},
        },
    }


def started(model: str, config: dict[str, Any] | None, name: str) -> EngineProcess:
    """One engine, warm."""
    say(f"starting vLLM, speculation: {name} (about 20 s) ...")
    options = {
        **{"model": model, "dtype": "float32", "max_model_len": 1024, "max_num_seqs": 8},
        "speculative_config": config,
    }
    engine = EngineProcess(options, name=name)
    engine.generate([chat("Tell me a story.")], {"temperature": 0, "max_tokens": 32})
    return engine


def serve(engines: dict[str, EngineProcess], length: int) -> dict[str, dict[str, Served]]:
    """Every prompt once by every engine, who is first in turn; a round has some prompts of each workload."""
    served = {workload: {name: Served() for name in engines} for workload in ASKED}
    order = orders(list(engines))
    asked = prompts()
    for start in range(0, min(map(len, asked.values())), TOGETHER):
        for workload, questions in asked.items():
            for one in served[workload].values():
                one.begin_round()
            for question in questions[start : start + TOGETHER]:
                for name in next(order):
                    ask(engines[name], served[workload][name], question, length)
    return served


def write_log(engine: EngineProcess, length: int, path: Path) -> dict[str, Tokens]:
    """Answers to all topics in the logged words, as a log of token ids; returns plain answers by workload."""
    sampling = {"temperature": 0, "max_tokens": length}
    logged = engine.generate([chat(LOGGED.format(topic)) for topic in TOPICS], sampling)
    with path.open("w") as log:
        for result in logged.results:
            ids = {"prompt_token_ids": result.prompt_token_ids, "token_ids": result.only.token_ids}
            log.write(json.dumps(ids) + "\n")
    return {name: engine.generate(asked, sampling).tokens for name, asked in prompts().items()}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="model folder; by default tools/model.py makes it")
    parser.add_argument("--length", type=int, default=80, help="tokens per answer (80)")
    parser.add_argument("--width", type=int, default=16, help="num_speculative_tokens (16)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


def main() -> int:
    """Run; the exit status is 1 if an answer differs from plain decoding."""
    chosen = arguments()
    model = chosen.model or model_folder()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        log = Path(folder) / "answers.jsonl"
        with started(model, None, PLAIN) as engine:
            plain = write_log(engine, chosen.length, log)
        header, _ = build(Path(folder) / "store", [log], load_tokenizer(model))
        engines = {
            name: stack.enter_context(started(model, config, name))
            for name, config in configs(chosen.width, f"{folder}/store").items()
        }
        served = serve(engines, chosen.length)
        facts = provenance(engines[ALONE].info(), "float32", 0)
    found = rows(served, ALONE)
    print(f"\n{header.documents} answers, {header.tokens} tokens in the datastore\n")
    print(table(found))
    print(
        f"\nratio: median over rounds of tokens/s against {ALONE} on the same prompts; identical: to it"
    )
    differing = 0
    for workload, methods in served.items():
        for name, one in methods.items():
            same = sum(a == b for a, b in zip(one.answers, plain[workload], strict=True))
            print(f"{workload}, {name}: {same} of {len(one.answers)} answers as in plain decoding")
            differing += same < len(one.answers)
    print(", ".join(f"{key}: {value}" for key, value in facts.items()))
    if chosen.json:
        settings = {"length": chosen.length, "width": chosen.width, "topics": len(TOPICS)}
        chosen.json.write_text(json.dumps(as_json(found, facts, settings), indent=2) + "\n")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
