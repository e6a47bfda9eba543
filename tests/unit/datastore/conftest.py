"""Small datastores on disk."""

from __future__ import annotations

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


@pytest.fixture
def published() -> Publish:
    """The function."""
    return publish
