"""What a server would draft from a datastore after a text, before it has learned anything from traffic."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specplug.index.rest import RestIndex
from specplug.types import Context, Request, TokenArray, allocate_drafts


def draft_after(
    path: Path, vocab_size: int, context: TokenArray, width: int
) -> tuple[TokenArray, list[float]]:
    """The chain after ``context`` (int32 ``[n]``) with at most ``width`` tokens, and the estimate for each of them."""
    limits = Context(vocab_size, max_length=len(context) + width, max_draft=width, max_requests=1)
    index = RestIndex(limits, str(path), cost=0.01)
    index.start(0, Request("preview", len(context)), context)
    out = allocate_drafts(1, width)
    index.propose(np.zeros(1, np.int32), np.full(1, width, np.int32), out)
    size = int(out.lengths[0])
    return out.tokens[0, :size], out.survival[0, :size].tolist()
