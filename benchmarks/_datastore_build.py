"""Build times of a datastore from token ids, with kernels compiled, and what of it waits for the disk."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from specplug.datastore.writer import Writer
from specplug.types import TokenArray

REPEATS = 3


def warm_up() -> None:
    """Compile every kernel that builds, on a corpus of a few tokens."""
    with tempfile.TemporaryDirectory() as folder, Writer(folder, 1000) as writer:
        writer.add(np.tile(np.arange(20, dtype=np.int32), 3))
        writer.publish({})


class Syncs:
    """Seconds spent in ``os.fsync`` while this is entered: the library of the peer does not wait for the disk."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._real = os.fsync

    def __enter__(self) -> Syncs:
        os.fsync = self._timed
        return self

    def __exit__(self, *failure: object) -> None:
        os.fsync = self._real

    def _timed(self, handle: Any) -> None:
        begin = time.perf_counter()
        self._real(handle)
        self.seconds += time.perf_counter() - begin


def build(folder: str, vocab: int, documents: Iterable[TokenArray], threads: int) -> dict[str, Any]:
    """One build: seconds for everything, and of these for appending, sorting and waiting for the disk."""
    with Syncs() as syncs:
        begin = time.perf_counter()
        with Writer(folder, vocab, threads=threads) as writer:
            for document in documents:
                writer.add(document)
            added = time.perf_counter()
            header = writer.publish({})
        end = time.perf_counter()
    return {
        **{"build_s": end - begin, "add_s": added - begin, "sync_s": syncs.seconds},
        **{"tokens": header.tokens, "bytes_per_token": header.file_size / header.tokens},
    }


def builds(vocab: int, documents: Sequence[TokenArray]) -> dict[str, float]:
    """Medians over some builds: with one thread, with all processors, and of the first the wait for the disk."""
    one, all_threads = [], []
    for _ in range(REPEATS):
        for threads, into in ((1, one), (len(os.sched_getaffinity(0)), all_threads)):
            with tempfile.TemporaryDirectory() as folder:
                into.append(build(folder, vocab, documents, threads))
    return {
        "build_s": float(np.median([found["build_s"] for found in one])),
        "sync_s": float(np.median([found["sync_s"] for found in one])),
        "build_all_processors_s": float(np.median([found["build_s"] for found in all_threads])),
    }
