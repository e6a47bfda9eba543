"""Real vLLM on the CPU with a datastore of documents: answers that quote them come faster than with request text alone.

The documents are the licence texts of the Python packages that are installed here; the prompts begin such texts, and
the model goes on quoting. One engine after the other serves the same prompts: no speculation, ``specplug.suffix``, and
``specplug.hybrid`` with the datastore. Greedy decoding in float32, one request at a time::

    python tools/environments.py run vllm examples/datastore_vllm.py

Steps and accepted tokens do not depend on what else the machine does; times do.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from _demo_report import Served, as_json, provenance, rows, table
from demo_vllm import ask, model_folder, say

from specplug.datastore.build import build
from specplug.replay.tokenizers import load_tokenizer
from specplug.testing.engine_process import EngineProcess

WORKLOAD = "quotes"
PLAIN = "none"
#: Beginnings of texts that a model has read; the rest of the sentence is for it to say.
PROMPTS = (
    "MIT License\n\nCopyright (c) 2021 Jane Doe\n\nPermission is hereby granted, free of charge, to any person",
    'Licensed under the Apache License, Version 2.0 (the "License");\nyou may not use this file except',
    "Redistribution and use in source and binary forms, with or without modification, are permitted",
    'THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED,',
    "Apache License\nVersion 2.0, January 2004\nhttp://www.apache.org/licenses/\n\nTERMS AND CONDITIONS FOR USE,",
    'THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS',
)


def documents() -> list[Path]:
    """The licence files of the installed packages, in the order of their paths."""
    found = {
        Path(str(file.locate()))
        for distribution in distributions()
        for file in distribution.files or ()
        if "licen" in file.name.lower() and file.suffix in ("", ".txt", ".md", ".rst")
    }
    return sorted(path for path in found if path.is_file())


def configs(width: int, folder: str) -> dict[str, dict[str, Any] | None]:
    """The speculative_config of each method."""
    common = {"num_speculative_tokens": width}
    return {
        PLAIN: None,
        "specplug.suffix": {"method": "specplug.suffix", **common},
        "specplug.hybrid": {
            "method": "specplug.hybrid",
            **common,
            "specplug": {"datastore": folder},
        },
    }


def serve(model: str, config: dict[str, Any] | None, name: str, length: int) -> tuple[Served, Any]:
    """All prompts by one engine."""
    options = {
        **{"model": model, "dtype": "float32", "max_model_len": 1024, "max_num_seqs": 4},
        "speculative_config": config,
    }
    served = Served()
    say(f"vLLM with {name}")
    with EngineProcess(options, name=name) as engine:
        engine.generate(["A short story about a boat:"], {"temperature": 0, "max_tokens": 16})
        for prompt in PROMPTS:
            served.begin_round()
            ask(engine, served, prompt, length)
        return served, engine.info()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="model folder; by default tools/model.py makes it")
    parser.add_argument("--corpus", type=Path, nargs="*", help="files instead of the licences")
    parser.add_argument("--length", type=int, default=96, help="tokens per answer (96)")
    parser.add_argument("--width", type=int, default=16, help="num_speculative_tokens (16)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


def main() -> int:
    """Run; the exit status is 1 if an answer differs from plain decoding."""
    chosen = arguments()
    model = chosen.model or model_folder()
    with tempfile.TemporaryDirectory() as folder:
        header, counts = build(folder, chosen.corpus or documents(), load_tokenizer(model))
        say(
            f"datastore: {counts.taken} documents, {header.tokens} tokens, {header.file_size} bytes"
        )
        served, facts = {}, {}
        for name, config in configs(chosen.width, folder).items():
            served[name], info = serve(model, config, name, chosen.length)
            facts = provenance(info, "float32", 0)
    found = rows({WORKLOAD: served}, PLAIN)
    print(f"\n{header.documents} documents, {header.tokens} tokens in the datastore\n")
    print(table(found))
    print(", ".join(f"{key}: {value}" for key, value in facts.items()))
    if chosen.json:
        settings = {"length": chosen.length, "width": chosen.width, "prompts": len(PROMPTS)}
        chosen.json.write_text(json.dumps(as_json(found, facts, settings), indent=2) + "\n")
    return int(any(row.identical < row.prompts for row in found))


if __name__ == "__main__":
    sys.exit(main())
