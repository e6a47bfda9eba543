"""Build times of a datastore from token ids, with kernels compiled; with and without waiting for the disk."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from _datastore_peer import Peer

from specplug.datastore.writer import Writer
from specplug.types import TokenArray

#: As in the other one, a process that has built before: what one build reads and allocates is at hand in the next.
#: On a virtual machine the median of seven changes by a third from one run to the next.
REPEATS = 21
#: Documents that are appended together, as ``specplug datastore build`` does.
TOGETHER = 512


def warm_up() -> None:
    """Compile every kernel that builds, on a corpus of a few tokens."""
    with tempfile.TemporaryDirectory() as folder, Writer(folder, 1000) as writer:
        document = np.tile(np.arange(20, dtype=np.int32), 3)
        writer.add(document)
        writer.extend([document, document])
        writer.publish({})


def build(
    folder: str, vocab: int, documents: Iterable[TokenArray], threads: int, durable: bool = False
) -> dict[str, Any]:
    """One build: seconds for everything, and of these for appending (and making the documents)."""
    begin = time.perf_counter()
    with Writer(folder, vocab, threads=threads, durable=durable) as writer:
        waiting = iter(documents)
        while batch := list(islice(waiting, TOGETHER)):
            writer.extend(batch)
        added = time.perf_counter()
        header = writer.publish({})
    end = time.perf_counter()
    return {
        **{"build_s": end - begin, "add_s": added - begin},
        **{"tokens": header.tokens, "bytes_per_token": header.file_size / header.tokens},
    }


def builds(vocab: int, documents: Sequence[TokenArray], peer: Peer) -> dict[str, float]:
    """Medians over some builds that take turns: one thread, all processors, one that waits for the disk, the peer.

    Each makes a new file in a new folder, and is not timed while that is made or removed.
    """
    processors = len(os.sched_getaffinity(0))
    ways = {
        "build_s": (1, False),
        "build_all_processors_s": (processors, False),
        "build_synced_s": (1, True),
    }
    names = [*ways, "peer_build_s"]
    taken: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(REPEATS):
        # Whoever comes after another one finds its own things out of the caches.
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            with tempfile.TemporaryDirectory() as folder:
                if name not in ways:
                    taken[name].append(peer.build_again(f"{folder}/peer.idx"))
                    continue
                threads, durable = ways[name]
                taken[name].append(build(folder, vocab, documents, threads, durable)["build_s"])
    return {name: float(np.median(seconds)) for name, seconds in taken.items()}
