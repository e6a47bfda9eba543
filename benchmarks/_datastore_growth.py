"""How a datastore grows: build time, size, look-ups warm and cold, on made-up text in which phrases recur."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from _datastore_peer import ask_peer

from specplug.datastore.writer import Writer
from specplug.index.datastore import Datastore
from specplug.types import TokenArray

LOOKUPS = 2000
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
        begin = time.perf_counter()
        queries: list[TokenArray] = []
        rng = np.random.default_rng(1)
        with Writer(folder, vocab) as writer:
            for document in text(size, vocab):
                writer.add(document)
                if len(queries) < LOOKUPS and rng.random() < 4e5 / size:
                    start = int(rng.integers(0, len(document) - 20))
                    queries.append(document[start : start + 16].copy())
            added = time.perf_counter()
            header = writer.publish({})
        built = time.perf_counter()
        handle = os.open(f"{folder}/datastore.bin", os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
        begin_open = time.perf_counter()
        store = Datastore(folder)
        opened = time.perf_counter() - begin_open
        cold = lookups(store, queries)
        warm = lookups(store, queries)
        theirs = _peer(folder, vocab, size, queries)
        return {
            **theirs,
            **{"tokens": header.tokens, "vocab": vocab, "queries": len(queries)},
            **{"add_s": added - begin, "sort_and_publish_s": built - added},
            **{"bytes_per_token": header.file_size / header.tokens, "open_ms": opened * 1e3},
            **{"cold": cold, "warm": warm},
        }


def _peer(folder: str, vocab: int, size: int, queries: list[TokenArray]) -> dict[str, Any]:
    """Build time, size and search of ``draftretriever`` on the same text, if it is not too long."""
    if size > BESIDE:
        return {}
    asked = [query.tolist() for query in queries[:500]]
    answer = ask_peer(f"{folder}/peer.idx", vocab, list(text(size, vocab)), asked)
    if answer is None:
        return {"peer": "ended without an answer"}
    median, high = np.percentile(answer["ns"], [50, 99]) / 1e3
    found = sum(bool(paths) for paths in answer["paths"])
    return {
        "peer": {
            **{"build_s": answer["build_s"], "bytes_per_token": answer["bytes"] / size},
            **{"p50_us": float(median), "p99_us": float(high), "found": found / len(asked)},
        }
    }


def lookups(store: Datastore, queries: list[TokenArray]) -> dict[str, float]:
    """Median and 99th percentile in microseconds, and page faults per look-up (major: read from disk)."""
    store.search(np.zeros(1, np.int32))
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
