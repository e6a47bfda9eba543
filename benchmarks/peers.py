"""The suffix drafter beside its peers, in one run: ``arctic-inference`` at three settings and vLLM's n-gram rule.

Teacher-forced greedy replay of every log in a folder, workload by workload, the drafters taking turns. Then what a
replay does not show: a prompt of 100,000 tokens, 256 requests at once, a history of 128,000 tokens; and each log with 8
and 32 requests at a time. Writes ``peers.json`` (everything, with provenance), ``peers.md`` (tables, targets) and
reliability plots.

    python benchmarks/peers.py TRACES TOKENIZER [--order file interleaved] [--limit N] [--only NAME ...] [--out FOLDER]

Needs ``pip install 'specplug[bench]'``. Times mean little unless the machine is idle: the load average is in the
report, and CPU time stands beside wall time.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import _batches
import _host
import _peers_report
from _comparison import ORACLE, Requests, compare, load
from _drafters import drafters

from specplug.errors import SpecplugError
from specplug.replay.drivers import ProposerDriver
from specplug.replay.metrics import Tally
from specplug.replay.provenance import provenance
from specplug.replay.report import write_json
from specplug.replay.simulator import replay_record
from specplug.replay.tokenizers import load_tokenizer
from specplug.types import Context

PACKAGES = ("specplug", "numpy", "numba", "tokenizers", "arctic-inference", "suffix-gpu")
#: The workload that copies its prompt, for long drafts.
COPYING = "code_edit_aider"


def replays(
    workloads: dict[str, Requests], chosen: argparse.Namespace, vocab: int
) -> dict[str, Any]:
    """Figures by order, workload and drafter."""
    longest = max(len(p) + len(r) for requests in workloads.values() for p, r in requests)
    context = Context(vocab, longest + chosen.width, chosen.width, max_requests=1)
    found: dict[str, Any] = {}
    for order in chosen.order:
        print(f"replay, order {order}", flush=True)
        group = drafters(context, chosen.cost, chosen.proposer, chosen.suffix_gpu)
        tallies = compare(workloads, group, chosen.width, order == "interleaved")
        costs = {d.name: chosen.cost if d.cost is None else [d.cost] for d in group}
        costs[ORACLE] = chosen.cost
        found[order] = {
            workload: {name: tally.figures(costs[name]) for name, tally in counts.items()}
            for workload, counts in tallies.items()
        }
    return found


def host(workloads: dict[str, Requests], chosen: argparse.Namespace, vocab: int) -> dict[str, Any]:
    """The measurements of :mod:`_host`."""
    middle = chosen.cost[len(chosen.cost) // 2]
    build = _host.builder(chosen.proposer, middle)
    print("long prompt", flush=True)
    found: dict[str, Any] = {
        "indexing": _host.indexing(
            build, vocab, _host.long_text(workloads, 0, 100_000 + _host.INDEXING_STEPS)
        )
    }
    print("batch", flush=True)
    prompts = _host.long_text(workloads, 0, chosen.rows * (chosen.history + 300))
    found["batch"] = _host.batch(build, vocab, prompts, chosen.rows, chosen.history, chosen.steps)
    print("histories", flush=True)
    lengths = (1_000, 128_000)
    text = _host.long_text(workloads, 1, lengths[1] + _host.GAIN * chosen.history_steps)
    found["histories"] = _host.histories(build, vocab, text, lengths, chosen.history_steps)
    memory = ProposerDriver(build(Context(vocab, 64, 16)), Context(vocab, 64, 16)).memory()
    found["store_bytes_per_token"] = (
        memory["store_bytes"] / memory["store_capacity"] if memory else None
    )
    if COPYING in workloads:
        print("long drafts", flush=True)
        found["long_drafts"] = long_drafts(workloads[COPYING], chosen, vocab)
    return found


def long_drafts(requests: Requests, chosen: argparse.Namespace, vocab: int) -> dict[str, Any]:
    """Tokens per step on text that copies its prompt, with few and with many draft tokens allowed."""
    widths = [8, 64]
    lengths = []
    for width in widths:
        context = Context(vocab, max(len(p) + len(r) for p, r in requests) + width, width, 1)
        driver = ProposerDriver(_host.builder(chosen.proposer, chosen.cost[0])(context), context)
        tally = Tally()
        for prompt, response in requests:
            replay_record(driver, prompt, response, tally)
        lengths.append(tally.mean_acceptance_length)
    return {"workload": COPYING, "widths": widths, "mean_acceptance_length": lengths}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("traces", type=Path, help="folder of *.jsonl, .jsonl.gz or .jsonl.zst files")
    add("tokenizer", help="tokenizer.json, or a folder with one")
    add("--order", nargs="+", choices=("file", "interleaved"), default=["file", "interleaved"])
    add("--only", nargs="*", default=[], metavar="NAME", help="these workloads only")
    add("--limit", type=int, metavar="N", help="the first N records of each file")
    add("--proposer", default="suffix", help="ours; must have the option verify_cost")
    add("--width", type=int, default=16, help="most draft tokens per step")
    add("--cost", type=float, nargs="+", default=[0.01, 0.03, 0.1])
    add("--suffix-gpu", action="store_true", help="its reference too; slow: use --limit")
    add("--no-replay", action="store_true", help="without the replays")
    add(
        "--no-host",
        action="store_true",
        help="without long prompts, the large batch and long histories",
    )
    add("--batches", type=int, nargs="*", default=[8, 32], help="requests at a time; none: not")
    add("--rows", type=int, default=256, help="requests of the batch")
    add("--history", type=int, default=8_000, help="tokens of each of them")
    add("--steps", type=int, default=20, help="of the batch")
    add("--history-steps", type=int, default=1_000, help="of the long and the short history")
    add("--out", type=Path, default=Path("build/peers"), help="folder for the results")
    return parser


def main() -> int:
    chosen = arguments().parse_args()
    facts = provenance(PACKAGES)
    try:
        tokenizer = load_tokenizer(chosen.tokenizer)
        workloads = load(chosen.traces, tokenizer, chosen.limit, chosen.only)
    except SpecplugError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1
    if not workloads:
        print(f"peers: no *.jsonl* file in {chosen.traces} {chosen.only or ''}", file=sys.stderr)
        return 1
    document: dict[str, Any] = {
        "provenance": facts,
        "settings": {
            "proposer": chosen.proposer,
            "suffix_gpu": chosen.suffix_gpu,
            "costs": chosen.cost,
            "width": chosen.width,
            "limit": chosen.limit,
            "tokenizer": tokenizer.digest,
        },
        "replay": {} if chosen.no_replay else replays(workloads, chosen, tokenizer.vocab_size),
        "host": None if chosen.no_host else host(workloads, chosen, tokenizer.vocab_size),
    }
    if chosen.batches:
        build = _host.builder(chosen.proposer, chosen.cost[len(chosen.cost) // 2])
        document["batches"] = _batches.batches(
            build, tokenizer.vocab_size, workloads, chosen.batches
        )
    document["load_average_at_end"] = round(os.getloadavg()[0], 2)
    chosen.out.mkdir(parents=True, exist_ok=True)
    write_json(chosen.out / "peers.json", document)
    text = _peers_report.markdown(document)
    (chosen.out / "peers.md").write_text(text, encoding="utf-8")
    _peers_report.plot_reliability(document, chosen.out)
    print(text)
    print(f"written to {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
