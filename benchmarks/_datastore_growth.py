"""How a datastore grows: build time, size, look-ups warm and cold, on made-up text in which phrases recur."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from _datastore_build import build, builds
from _datastore_peer import Peer
from _datastore_search import asking, searching, times_of

from specplug.datastore.sorting import processors
from specplug.index.datastore import Datastore
from specplug.types import TokenArray

LOOKUPS, COLD = 2000, 200
#: Tokens up to which ``draftretriever`` builds the same corpus; as lists of Python integers it needs much memory.
BESIDE = 2_000_000


def text(size: int, vocab: int, seed: int = 0) -> Iterator[TokenArray]:
    """Documents with ``size`` tokens in all: phrases of 5 to 60 tokens, each of which comes some 25 times."""
    rng = np.random.default_rng(seed)
    phrases = max(50, size // 800)
    lengths = rng.integers(5, 60, phrases)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    pool = (rng.zipf(1.3, int(starts[-1])) % vocab).astype(np.int32)
    made = 0
    while made < size:
        chosen = rng.integers(0, phrases, 30)
        document = np.concatenate([pool[starts[i] : starts[i + 1]] for i in chosen])
        made += len(document) + 1
        yield document


def grow(size: int, vocab: int) -> dict[str, Any]:
    """Figures for one size."""
    with tempfile.TemporaryDirectory() as folder:
        queries: list[TokenArray] = []
        documents = text(size, vocab)
        built = build(folder, vocab, noted(documents, queries, size), processors())
        made = time.perf_counter()
        for _ in text(size, vocab):
            pass
        made = time.perf_counter() - made
        os.sync()
        handle = os.open(f"{folder}/datastore.bin", os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
        begin_open = time.perf_counter()
        store = Datastore(folder)
        opened = time.perf_counter() - begin_open
        # Later ones would find warm what the first ones read.
        cold = lookups(store, queries[:COLD])
        lookups(store, queries)
        warm = lookups(store, queries)
        theirs = _peer(folder, vocab, size, queries)
        return {
            **theirs,
            **{"vocab": vocab, "queries": len(queries), **built},
            # What made the text, which is part of ``add_s`` and ``build_s``.
            **{"text_s": made, "open_ms": opened * 1e3},
            # Of the process so far, mapped pages of the file included.
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
            **{"cold": cold, "warm": warm},
        }


def noted(
    documents: Iterator[TokenArray], queries: list[TokenArray], size: int
) -> Iterator[TokenArray]:
    """The documents; places in some of them become queries."""
    rng = np.random.default_rng(1)
    for document in documents:
        yield document
        if len(queries) < LOOKUPS and rng.random() < 4e6 / size:
            start = int(rng.integers(0, len(document) - 20))
            queries.append(document[start : start + 16].copy())


def _peer(folder: str, vocab: int, size: int, queries: list[TokenArray]) -> dict[str, Any]:
    """Builds and searches of both on the same text, in turns, if it is not too long."""
    if size > BESIDE:
        return {}
    asked = [query.tolist() for query in queries[:500]]
    documents = list(text(size, vocab))
    with Peer(f"{folder}/peer.idx", vocab, documents) as peer:
        answer = peer.search(asked)
        if peer.built is None or answer is None:
            return {"peer": "ended without an answer"}
        rounds = {"search": searching(folder, asked), "peer": asking(peer, asked)}
        found = sum(bool(paths) for paths in answer["paths"])
        return {
            "beside": {**builds(vocab, documents, peer), **times_of(rounds, len(asked))},
            "peer": {
                "bytes_per_token": peer.built["bytes"] / size,
                "found": found / len(asked),
            },
        }


def lookups(store: Datastore, queries: list[TokenArray]) -> dict[str, float]:
    """Median and 99th percentile in microseconds, and page faults per look-up (major: read from disk)."""
    # Numba's first call with these types; it looks for nothing, so that no page is read.
    store.search(np.zeros(0, np.int32))
    times = []
    before = resource.getrusage(resource.RUSAGE_SELF)
    for query in queries:
        begin = time.perf_counter_ns()
        store.search(query)
        times.append(time.perf_counter_ns() - begin)
    after = resource.getrusage(resource.RUSAGE_SELF)
    median, high = np.percentile(times, [50, 99]) / 1e3
    return {
        "p50_us": float(median),
        "p99_us": float(high),
        "major_faults": (after.ru_majflt - before.ru_majflt) / len(queries),
        "minor_faults": (after.ru_minflt - before.ru_minflt) / len(queries),
    }
