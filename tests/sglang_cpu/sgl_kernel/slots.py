"""Moving indices and rows of the KV cache. All of them write into an argument, as the compiled ones do."""

from __future__ import annotations

import ctypes

import numpy as np
import torch


def _ranges(starts: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of every position of ``starts[i]:ends[i]``, rows in order."""
    starts, lengths = starts.long(), (ends - starts).long()
    rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    before = lengths.cumsum(0) - lengths
    return rows, torch.arange(len(rows)) - before[rows] + starts[rows]


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """``req_to_token[req_pool_indices[i], start[i]:end[i]]`` = the next entries of ``out_cache_loc``.

    Args:
        req_pool_indices: ``[requests]`` rows of ``req_to_token``.
        req_to_token: ``[rows, pool_len]`` cache slots of every request's tokens; written.
        start_offset, end_offset: ``[requests]`` half-open ranges of columns.
        out_cache_loc: ``[sum of lengths]``.
        pool_len: the number of columns; the compiled operation needs it.
    """
    rows, columns = _ranges(start_offset, end_offset)
    values = out_cache_loc[: len(rows)].to(req_to_token.dtype)
    req_to_token[req_pool_indices.long()[rows], columns] = values


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """The reverse: ``out_cache_loc`` = all ``req_to_token[req_pool_indices[i], start[i]:end[i]]``, packed."""
    rows, columns = _ranges(start_offset, end_offset)
    found = req_to_token[req_pool_indices.long()[rows], columns]
    out_cache_loc[: len(rows)] = found.to(out_cache_loc.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Pack ``out_cache_loc[j]`` for every ``j`` of ``accept_index`` (any shape, -1 = nothing) to the front."""
    wanted = accept_index.flatten()
    wanted = wanted[wanted >= 0].long()
    accept_out_cache_loc[: len(wanted)] = out_cache_loc[wanted].to(accept_out_cache_loc.dtype)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """In each buffer row ``tgt_loc[i]`` = row ``src_loc[i]`` as it was before.

    Args:
        data_ptrs: ``[buffers]`` addresses in memory.
        strides: ``[buffers]`` bytes per row.
        tgt_loc, src_loc: ``[moves]`` row numbers.
    """
    target, source = tgt_loc.numpy(), src_loc.numpy()
    moved = target != source
    if not moved.any():
        return
    target, source = target[moved], source[moved]
    rows = int(max(target.max(), source.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (rows * stride)).from_address(address)
        buffer = np.frombuffer(memory, dtype=np.uint8).reshape(rows, stride)
        buffer[target] = buffer[source]
