"""Datastores beside ``draftretriever`` 0.1.1: the same corpus, the same queries, one run.

Per workload the corpus are the responses of the first half of the records; queries are places in the second half.
Look-up time, quality of the best chain and of trees with as many nodes, build time, size. Then how it grows on
made-up text.

    python3.11 tools/environments.py run bench benchmarks/datastores.py TRACES TOKENIZER [--grow 1e6] [--out FOLDER]

Build times begin with token ids and end with the file published, kernels compiled. Both sides get what they take,
arrays or lists of integers. Ours sorts and writes checksums. Neither waits for the disk (what ours takes if it does,
as is its default, is said apart).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _comparison import Requests, load
from _datastore_build import build, builds, warm_up
from _datastore_growth import grow
from _datastore_peer import Peer, ask_peer
from _datastore_search import asking, batching, searching, times_of

from specplug.index.datastore import Datastore
from specplug.index.rest import RestIndex
from specplug.proposers.rest import BRANCHES
from specplug.replay.drivers import Draft
from specplug.replay.provenance import provenance
from specplug.replay.report import write_json
from specplug.replay.simulator import accepted_nodes
from specplug.replay.tokenizers import load_tokenizer
from specplug.types import Context, Observed, Request, TokenArray, allocate_drafts

PACKAGES = ("specplug", "numpy", "numba", "draftretriever")
#: Tokens between two queries in a response; tokens of the longest draft, as in REST.
STRIDE, DEPTH, NODES = 5, 10, 64
#: Tokens of context that are looked for, at most.
SPAN = 16
#: Fewer queries than this have no 99th percentile but a slowest one: searches are timed at every token then.
FEW = 100


def places(requests: Requests, limit: int, stride: int = STRIDE) -> list[tuple[int, int]]:
    """Query places: request, position in its response."""
    found = [
        (number, position)
        for number, (_, response) in enumerate(requests)
        for position in range(STRIDE, len(response) - DEPTH, stride)
    ]
    return found[:limit]


def ours(
    folder: str,
    vocab: int,
    requests: Requests,
    chosen: list[tuple[int, int]],
    tree: bool,
    sizes: list[int],
) -> dict[str, Any]:
    """Times and drafts of :class:`RestIndex`, which learns from the text as it goes."""
    context = Context(vocab, 1 << 20, NODES if tree else DEPTH, 1)
    index = RestIndex(context, folder, cost=0.0, branches=BRANCHES if tree else 1)
    slots, ceilings = np.zeros(1, np.int32), np.full(1, context.max_draft, np.int32)
    out = allocate_drafts(1, context.max_draft, vocab, index.capabilities)
    times, accepted = [], []
    current, known = -1, 0
    for (number, position), size in zip(chosen, sizes, strict=True):
        prompt, response = requests[number]
        if number != current:
            index.start(0, Request("r", len(prompt)), np.concatenate([prompt, response[:position]]))
        else:
            news = response[known:position]
            index.observe(Observed(slots, np.array([0, len(news)], np.int64), news))
        current, known = number, position
        ceilings[0] = size
        begin = time.perf_counter_ns()
        index.propose(slots, ceilings, out)
        times.append(time.perf_counter_ns() - begin)
        n = int(out.lengths[0])
        parents = None if out.parents is None else out.parents[0, :n].copy()
        draft = Draft(out.tokens[0, :n].copy(), None, parents)
        accepted.append(int(accepted_nodes(draft, response[position : position + DEPTH]).sum()))
    return {"ns": times, "accepted": accepted}


def prefix(path: list[int], truth: TokenArray) -> int:
    """Tokens of a path that come true."""
    pairs = list(zip(path, truth.tolist(), strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


def nodes_of(paths: list[list[int]]) -> int:
    """Nodes of the tree that these paths make."""
    return len({tuple(path[: i + 1]) for path in paths for i in range(len(path))})


def compare(name: str, requests: Requests, vocab: int, limit: int) -> dict[str, Any]:
    """Everything about one workload."""
    half = len(requests) // 2
    documents = [response for _, response in requests[:half]]
    tests = requests[half:]
    chosen = places(tests, limit)
    with tempfile.TemporaryDirectory() as folder:
        built = build(folder, vocab, documents, 1)
        chosen, queries = known(Datastore(folder), tests, chosen)
        timed = queries
        if len(timed) < FEW:
            timed = known(Datastore(folder), tests, places(tests, 50 * limit, 1))[1][:limit]
        with Peer(f"{folder}/peer.idx", vocab, documents) as peer:
            theirs = peer.search(queries)
            rounds = {"search": searching(folder, timed), "peer": asking(peer, timed)}
            times = times_of({**rounds, "batch": batching(folder, vocab, timed, DEPTH)}, len(timed))
            took = builds(vocab, documents, peer)
        sizes = [NODES] * len(chosen)
        if theirs is not None:
            sizes = [nodes_of(paths) for paths in theirs["paths"]]
        chain = ours(folder, vocab, tests, chosen, False, [DEPTH] * len(chosen))
        tree = ours(folder, vocab, tests, chosen, True, sizes)
    row: dict[str, Any] = {
        **{"workload": name, "corpus_tokens": built["tokens"], "queries": len(chosen)},
        **{"bytes_per_token": built["bytes_per_token"], **took},
        **{"timed_queries": len(timed), "search": times["search"], "batch": times["batch"]},
        **{"chain_us": quantiles(chain["ns"]), "tree_us": quantiles(tree["ns"])},
        **{"chain": float(np.mean(chain["accepted"])), "tree": float(np.mean(tree["accepted"]))},
    }
    if theirs is not None and peer.built is not None:
        truths = [tests[n][1][p : p + DEPTH] for n, p in chosen]
        best = [
            prefix(paths[0], t) if paths else 0
            for paths, t in zip(theirs["paths"], truths, strict=True)
        ]
        any_path = [
            max((prefix(p, t) for p in paths), default=0)
            for paths, t in zip(theirs["paths"], truths, strict=True)
        ]
        row["peer"] = {
            **{"build_s": took["peer_build_s"], "batch": times["peer_batch"]},
            **{"bytes_per_token": peer.built["bytes"] / built["tokens"], "search": times["peer"]},
            **{
                "chain": float(np.mean(best)),
                "tree": float(np.mean(any_path)),
                "nodes": float(np.mean(sizes)),
            },
        }
    return row


def known(
    store: Datastore, requests: Requests, chosen: list[tuple[int, int]]
) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """The places whose last two tokens occur in the corpus, and their longest contexts (up to 16 tokens) that do."""
    kept, queries = [], []
    for number, position in chosen:
        prompt, response = requests[number]
        context = np.concatenate([prompt[-SPAN:], response[:position]])[-SPAN:]
        lengths = store.search(context).lengths
        if len(lengths) and lengths[0] > 1:
            kept.append((number, position))
            queries.append(context[-int(lengths[0]) :].tolist())
    return kept, queries


def quantiles(nanoseconds: list[int] | list[float]) -> list[float]:
    """Median and 99th percentile in microseconds."""
    return [float(value) for value in np.percentile(nanoseconds, [50, 99]) / 1e3]


HEADER = (
    "| workload | tokens | queries (timed) | search us p50, p99 (of single calls) | per query of a batch | theirs "
    "| theirs, over groups | times as fast p50, p99 (of single calls) | batch: p50, p99 over groups "
    "| chain accepted | theirs | tree accepted | theirs | nodes "
    "| build ms (waiting for the disk), all processors | theirs | bytes per token | theirs |"
)


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    peer = row.get("peer")
    if peer is None:
        none: dict[str, Any] = {"us": [np.nan] * 2, "single_p99_us": np.nan}
        peer = {"search": none, "batch": none, "chain": np.nan, "tree": np.nan, "nodes": np.nan}
        peer |= {"build_s": np.nan, "bytes_per_token": np.nan}

    def shown(times: dict[str, Any]) -> str:
        return "{:.3g}, {:.3g} ({:.3g})".format(*times["us"], times["single_p99_us"])

    def faster(what: str) -> str:
        ratios = np.divide(peer[what]["us"], row[what]["us"])
        single = peer[what]["single_p99_us"] / row[what]["single_p99_us"]
        return "{:.1f}, {:.1f} ({:.1f})".format(*ratios, single)

    cells = [
        *(row["workload"], row["corpus_tokens"], f"{row['queries']} ({row['timed_queries']})"),
        *(shown(row["search"]), shown(row["batch"]), shown(peer["search"])),
        *(shown(peer["batch"]), faster("search"), faster("batch")),
        *(f"{row['chain']:.2f}", f"{peer['chain']:.2f}"),
        *(f"{row['tree']:.2f}", f"{peer['tree']:.2f}", f"{peer['nodes']:.0f}"),
        f"{row['build_s'] * 1e3:.1f} ({row['build_synced_s'] * 1e3:.1f}), {row['build_all_processors_s'] * 1e3:.1f}",
        f"{peer['build_s'] * 1e3:.1f}",
        *(f"{row['bytes_per_token']:.1f}", f"{peer['bytes_per_token']:.1f}"),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def large_vocabulary(vocab: int) -> str:
    """What the peer does with ids above 65,535."""
    rng = np.random.default_rng(0)
    document = rng.integers(65_536, vocab, 2000).astype(np.int32)
    queries = [document[i : i + 8].tolist() for i in range(0, 1900, 50)]
    with tempfile.TemporaryDirectory() as folder:
        answer = ask_peer(f"{folder}/peer.idx", vocab, [document], queries)
    if answer is None:
        return "ends the process"
    right = sum(
        bool(paths) and paths[0][:1] == [int(document[i * 50 + 8])]
        for i, paths in enumerate(answer["paths"])
    )
    return f"{right} of {len(queries)} continuations right"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", type=Path, help="folder of logs")
    parser.add_argument("tokenizer", help="tokenizer.json, or a folder with one")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--queries", type=int, default=1000, help="per workload (1000)")
    parser.add_argument("--grow", type=float, nargs="*", default=[], metavar="TOKENS")
    parser.add_argument("--vocab", type=int, default=151_936, help="of the made-up text (151936)")
    parser.add_argument("--out", type=Path, default=Path("build/datastores"))
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    document: dict[str, Any] = {"provenance": provenance(PACKAGES), "workloads": [], "growth": []}
    tokenizer = load_tokenizer(chosen.tokenizer)
    warm_up()
    if chosen.only != ["none"]:
        print(HEADER, f"|{'---|' * HEADER.count(' | ')}---|", sep="\n", flush=True)
        for name, requests in load(chosen.traces, tokenizer, None, chosen.only).items():
            row = compare(name, requests, tokenizer.vocab_size, chosen.queries)
            document["workloads"].append(row)
            print(line(row), flush=True)
        document["large_vocabulary"] = large_vocabulary(128_256)
        print("vocabulary of 128,256, draftretriever:", document["large_vocabulary"])
    for size in chosen.grow:
        document["growth"].append(grow(int(size), chosen.vocab))
        print(document["growth"][-1], flush=True)
    document["load_average_at_end"] = round(os.getloadavg()[0], 2)
    chosen.out.mkdir(parents=True, exist_ok=True)
    write_json(chosen.out / "datastores.json", document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
