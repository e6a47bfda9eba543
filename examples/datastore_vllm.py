"""Real vLLM on the CPU with a datastore of logged answers: what has been answered before comes faster.

A help desk: plain decoding answers questions about Python's documentation, and these answers become a datastore. Then
the same questions come in other words, to one engine after the other: no speculation, ``specplug.suffix`` with an
empty store, and ``specplug.hybrid`` with the datastore. Greedy decoding in float32, one request at a time::

    python tools/environments.py run vllm examples/datastore_vllm.py

Steps and accepted tokens do not depend on what else the machine does; times do.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from _demo_report import Served, as_json, provenance, rows, table
from demo_vllm import ask, model_folder, say

from specplug.datastore.build import build
from specplug.replay.tokenizers import load_tokenizer
from specplug.testing.engine_process import EngineProcess

WORKLOAD = "reworded"
PLAIN = "none"
#: What is asked about, and the two wordings of the question.
TOPICS = (
    *("the function len", "the function range", "the method list.append", "the function open"),
    *("a dictionary", "a list comprehension", "the with statement", "an exception"),
)
LOGGED = "What is {} in Python? Answer in a few sentences."
ASKED = "Please explain {} in Python in a few sentences."


def chat(question: str) -> list[dict[str, str]]:
    """A chat of one question."""
    return [{"role": "user", "content": question}]


def configs(width: int, folder: str) -> dict[str, dict[str, Any]]:
    """The speculative_config of each method that speculates."""
    common = {"num_speculative_tokens": width}
    return {
        "specplug.suffix": {"method": "specplug.suffix", **common},
        "specplug.hybrid": {
            "method": "specplug.hybrid",
            **common,
            "specplug": {"datastore": folder},
        },
    }


def started(model: str, config: dict[str, Any] | None, name: str) -> EngineProcess:
    """One engine."""
    say(f"vLLM with {name}")
    options = {
        **{"model": model, "dtype": "float32", "max_model_len": 1024, "max_num_seqs": 4},
        "speculative_config": config,
    }
    return EngineProcess(options, name=name)


def serve(engine: EngineProcess, length: int) -> Served:
    """All questions in the second wording, each a round of its own."""
    served = Served()
    engine.generate([chat("Tell me a story.")], {"temperature": 0, "max_tokens": 16})
    for topic in TOPICS:
        served.begin_round()
        ask(engine, served, chat(ASKED.format(topic)), length)
    return served


def write_log(engine: EngineProcess, length: int, path: Path) -> None:
    """Answers to the first wording, as a log of token ids."""
    prompts = [chat(LOGGED.format(topic)) for topic in TOPICS]
    batch = engine.generate(prompts, {"temperature": 0, "max_tokens": length})
    with path.open("w") as log:
        for result in batch.results:
            ids = {"prompt_token_ids": result.prompt_token_ids, "token_ids": result.only.token_ids}
            log.write(json.dumps(ids) + "\n")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="model folder; by default tools/model.py makes it")
    parser.add_argument("--length", type=int, default=96, help="tokens per answer (96)")
    parser.add_argument("--width", type=int, default=16, help="num_speculative_tokens (16)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


def main() -> int:
    """Run; the exit status is 1 if an answer differs from plain decoding."""
    chosen = arguments()
    model = chosen.model or model_folder()
    served: dict[str, Served] = {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "answers.jsonl"
        with started(model, None, PLAIN) as engine:
            write_log(engine, chosen.length, log)
            served[PLAIN] = serve(engine, chosen.length)
        header, _ = build(Path(folder) / "store", [log], load_tokenizer(model))
        for name, config in configs(chosen.width, f"{folder}/store").items():
            with started(model, config, name) as engine:
                served[name] = serve(engine, chosen.length)
                facts = provenance(engine.info(), "float32", 0)
    found = rows({WORKLOAD: served}, PLAIN)
    print(f"\n{header.documents} answers, {header.tokens} tokens in the datastore\n")
    print(table(found))
    print(", ".join(f"{key}: {value}" for key, value in facts.items()))
    if chosen.json:
        settings = {"length": chosen.length, "width": chosen.width, "prompts": len(TOPICS)}
        chosen.json.write_text(json.dumps(as_json(found, facts, settings), indent=2) + "\n")
    return int(any(row.identical < row.prompts for row in found))


if __name__ == "__main__":
    sys.exit(main())
