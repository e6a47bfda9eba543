"""Tensor parallelism: one rank drafts, every rank verifies the same drafts and emits the same tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.adapters.sglang_srt.drafting import Drafts
from specplug.types import LENGTH_DTYPE, TOKEN_DTYPE


class Ranks:
    """The tensor-parallel group of this worker.

    SGLang gives every rank the same requests in the same order, but nothing makes two drafters agree: shared stores,
    clocks and threads differ. Different drafts would mean different shapes, and collectives that never end.

    Args:
        group: SGLang's ``GroupCoordinator``.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.size = int(group.world_size)
        self.drafts_here = int(group.rank_in_group) == 0

    def share(self, drafts: Drafts, trees: bool) -> Drafts:
        """Rank 0's drafts, on every rank. ``trees`` must be the same everywhere: it decides the shape."""
        if self.size == 1:
            return drafts
        import torch

        rows, width = drafts.tokens.shape
        # One message of a shape that every rank knows: lengths, whether there are branches, tokens, parents.
        packed = np.zeros((rows, 2 + width * (2 if trees else 1)), np.int32)
        packed[:, 0] = drafts.lengths
        packed[:, 1] = drafts.parents is not None
        packed[:, 2 : 2 + width] = drafts.tokens
        if drafts.parents is not None:
            packed[:, 2 + width :] = drafts.parents
        message = torch.from_numpy(packed)
        torch.distributed.broadcast(message, src=self._group.ranks[0], group=self._group.cpu_group)
        branching = trees and rows > 0 and bool(packed[0, 1])
        return Drafts(
            np.ascontiguousarray(packed[:, 2 : 2 + width], TOKEN_DTYPE),
            np.ascontiguousarray(packed[:, 0], LENGTH_DTYPE),
            np.ascontiguousarray(packed[:, 2 + width :], LENGTH_DTYPE) if branching else None,
        )

    def agree(self, *outcomes: Any) -> None:
        """Overwrite tensors by rank 0's: each rank draws its own coins, and logits may differ in the last bit."""
        if self.size > 1:
            for outcome in outcomes:
                self._group.broadcast(outcome, src=0)
