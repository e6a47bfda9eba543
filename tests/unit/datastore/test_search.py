"""What :meth:`Datastore.search` is asked with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .conftest import Publish, peak_of
from .test_writer import WORDS


@pytest.mark.parametrize("kind", ["read-only", "gaps", "int64"])
def test_of_a_long_context_the_end_alone_is_copied(
    tmp_path: Path, published: Publish, kind: str
) -> None:
    store = published(tmp_path, [WORDS * 2])
    context = np.tile(np.array(WORDS, np.int32), 10_000)
    expected = store.search(context).copy()
    if kind == "read-only":
        context.flags.writeable = False
    elif kind == "gaps":
        context = np.repeat(context, 2)[::2]
    else:
        context = context.astype(np.int64)
    assert peak_of(lambda: store.search(context).copy()) < 10_000
    found = store.search(context).copy()
    assert len(expected.positions)
    assert found.positions.tolist() == expected.positions.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()
