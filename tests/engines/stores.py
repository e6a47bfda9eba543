"""Datastores that no model of the tests can use."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specplug.datastore.writer import Writer


def unfitting(folder: Path) -> None:
    """``large``: of more token ids than the model has; ``foreign``: of another tokenizer."""
    for name, vocab_size, vocabulary in (
        ("large", 100_000, ""),
        ("foreign", 100, "0123456789abcdef"),
    ):
        with Writer(folder / name, vocab_size, vocabulary) as writer:
            writer.add(np.arange(50, dtype=np.int32))
            writer.publish({})
