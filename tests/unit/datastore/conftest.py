"""Small datastores on disk."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from specplug.datastore.writer import Writer
from specplug.index.datastore import Datastore

Publish = Callable[..., Datastore]


def publish(
    folder: Path,
    documents: Sequence[Sequence[int]],
    vocab_size: int = 1000,
    memory: int = 1 << 20,
    threads: int | None = None,
) -> Datastore:
    """Write a datastore and open it."""
    with Writer(folder, vocab_size, memory=memory, threads=threads) as writer:
        for document in documents:
            writer.add(np.array(document, np.int32))
        writer.publish({"made": "by a test"})
    return Datastore(folder)


def peak_of(call: Callable[[], object]) -> int:
    """Bytes that were allocated at once, at most, while ``call`` ran."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def published() -> Publish:
    """The function."""
    return publish
