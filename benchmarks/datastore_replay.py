"""What a datastore adds to ``specplug.suffix``: one from half of a workload's records, replayed on the other half.

Greedy, teacher-forced, one request after the other; tokens per unit of work, if verifying one more draft token costs
``--cost`` plain steps. The calibration error is the mean distance of the estimates from what was accepted::

    python benchmarks/datastore_replay.py TRACES TOKENIZER [--only NAME ...] [--cost 0.03]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from _comparison import Requests, load

from specplug import registry
from specplug.datastore.writer import Writer
from specplug.replay.drivers import ProposerDriver
from specplug.replay.metrics import Tally
from specplug.replay.provenance import provenance
from specplug.replay.report import write_json
from specplug.replay.simulator import replay_record
from specplug.replay.tokenizers import load_tokenizer
from specplug.types import Context

WIDTH = 16
METHODS = ("suffix", "rest", "hybrid")


def replay(method: str, options: dict[str, Any], requests: Requests, vocab: int) -> Tally:
    """One method on the second half."""
    longest = max(len(prompt) + len(response) for prompt, response in requests)
    context = Context(vocab, longest + WIDTH, WIDTH, 1)
    driver = ProposerDriver(registry.build(method, context, options), context)
    tally = Tally()
    for prompt, response in requests:
        replay_record(driver, prompt, response, tally)
    return tally


def compare(name: str, requests: Requests, vocab: int, cost: float) -> dict[str, Any]:
    """All methods on one workload."""
    half = len(requests) // 2
    row: dict[str, Any] = {"workload": name, "requests": len(requests) - half}
    with tempfile.TemporaryDirectory() as folder:
        with Writer(folder, vocab) as writer:
            for _, response in requests[:half]:
                writer.add(response)
            row["datastore_tokens"] = writer.publish({}).tokens
        for method in METHODS:
            options: dict[str, Any] = {"verify_cost": cost}
            if method != "suffix":
                options["datastore"] = folder
            tally = replay(method, options, requests[half:], vocab)
            error = tally.reliability.error
            row[method] = {
                "speedup": tally.emitted / (tally.steps + cost * tally.drafted),
                "mal_per_step": tally.emitted / tally.steps,
                "mal_per_drafted_step": 1 + tally.accepted / max(1, tally.drafted_steps),
                "drafted_per_step": tally.drafted / tally.steps,
                "calibration_error": float("nan") if error is None else error,
            }
    row["ratio"] = row["hybrid"]["speedup"] / row["suffix"]["speedup"]
    return row


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    cells = [
        f"{row[m]['speedup']:.3f} | {row[m]['mal_per_drafted_step']:.2f}, {row[m]['mal_per_step']:.2f} | "
        f"{row[m]['calibration_error']:.3f}"
        for m in METHODS
    ]
    return f"| {row['workload']} | {row['datastore_tokens']} | {' | '.join(cells)} | {row['ratio']:.3f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", type=Path, help="folder of logs")
    parser.add_argument("tokenizer", help="tokenizer.json, or a folder with one")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--cost", type=float, default=0.03)
    parser.add_argument("--out", type=Path, default=Path("build/datastore_replay"))
    chosen = parser.parse_args()
    tokenizer = load_tokenizer(chosen.tokenizer)
    facts = provenance(("specplug", "numpy", "numba", "tokenizers"))
    rows = []
    columns = " | ".join(
        f"{m} tokens per work | {m} MAL drafted, step | {m} calibration error" for m in METHODS
    )
    print(f"| workload | datastore tokens | {columns} | hybrid / suffix |\n|---|---|{'---|' * 10}")
    for name, requests in load(chosen.traces, tokenizer, None, chosen.only).items():
        rows.append(compare(name, requests, tokenizer.vocab_size, chosen.cost))
        print(line(rows[-1]), flush=True)
    chosen.out.mkdir(parents=True, exist_ok=True)
    write_json(chosen.out / "replay.json", {"provenance": facts, "cost": chosen.cost, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
