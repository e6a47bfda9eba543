"""vLLM's forward context for passes that no scheduler planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np


class DraftStep:
    """What the draft passes of one step share, gathered once: rows, block tables, starts; a pass adds its positions.

    Args:
        runner: vLLM's model runner, whose cache is one group.
        request_ids: one token of each per pass.
    """

    def __init__(self, runner: Any, request_ids: Sequence[str]) -> None:
        import torch

        batch = runner.input_batch
        self.request_ids = tuple(request_ids)
        rows = [batch.req_id_to_index[request_id] for request_id in request_ids]
        table = batch.block_table[0]
        self._device = runner.device
        self._size = int(table.block_size)
        self._newest = np.array([int(batch.num_tokens_no_spec[row]) - 1 for row in rows], np.int64)
        blocks = table.block_table.cpu[torch.as_tensor(rows)]
        self._blocks = blocks.numpy()
        self._table = blocks.to(self._device)
        self._rows = np.arange(len(rows))
        self._starts = torch.arange(len(rows) + 1, dtype=torch.int32)
        self._device_starts = self._starts.to(self._device)

    def at(self, place: int) -> Any:
        """vLLM's ``CommonAttentionMetadata`` for tokens ``place`` positions after the newest certain ones."""
        import torch
        from vllm.v1.attention.backend import CommonAttentionMetadata

        positions = self._newest + place
        blocks = self._blocks[self._rows, positions // self._size].astype(np.int64)
        slots = blocks * self._size + positions % self._size
        lengths = (positions + 1).astype(np.int32)
        return CommonAttentionMetadata(
            query_start_loc=self._device_starts,
            query_start_loc_cpu=self._starts,
            seq_lens=torch.from_numpy(lengths).to(self._device),
            num_reqs=len(positions),
            num_actual_tokens=len(positions),
            max_query_len=1,
            max_seq_len=int(lengths.max()),
            block_table_tensor=self._table,
            slot_mapping=torch.from_numpy(slots).to(self._device),
            causal=True,
            positions=torch.from_numpy(positions).to(self._device),
        )


@contextmanager
def forward_context(runner: Any, common: Any) -> Iterator[None]:
    """Passes inside run eagerly over the tokens that ``common`` (vLLM's ``CommonAttentionMetadata``) describes.

    Args:
        runner: vLLM's model runner, whose cache is one group.
        common: block table in blocks of the cache; where the kernel's are smaller, vLLM's groups map it.
    """
    from vllm.forward_context import set_forward_context

    metadata, mapping = {}, {}
    for group in runner.attn_groups[0]:
        built = group.build_metadata(common)
        for name in group.layer_names:
            metadata[name], mapping[name] = built, common.slot_mapping
    with set_forward_context(
        metadata,
        runner.vllm_config,
        num_tokens=common.num_actual_tokens,
        slot_mapping=mapping,
        skip_compiled=True,
    ):
        yield
