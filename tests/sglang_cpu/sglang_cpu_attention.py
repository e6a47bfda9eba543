"""SGLang's ``torch_native`` attention for test runs: verification of drafts, and batches in one call.

SGLang 0.5.23 cannot verify drafts with this backend (``extend_prefix_lens`` is None then), and decodes with one
call per request and layer. A plugin (see the ``dist-info`` beside this file) puts the functions below around the
backend's own. Prefill stays SGLang's. GPU backends verify drafts themselves, so this belongs to the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

BACKEND = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
#: A group of requests is padded to its longest; it may hold this much more than its tokens.
PADDING = 1.5
#: Tokens of one group, so that the copies of keys and values stay small.
GROUP_TOKENS = 16384


def groups(lengths: list[int]) -> Iterator[list[int]]:
    """Requests, sorted by length, in groups that can be padded to their longest at little cost."""
    group: list[int] = []
    total = 0
    for request in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[request]
        padded = length * (len(group) + 1)
        if group and (padded > PADDING * (total + length) + 64 or padded > GROUP_TOKENS):
            yield group
            group, total = [], 0
        group.append(request)
        total += length
    if group:
        yield group


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    committed: torch.Tensor,
    tail: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attention of ``n`` rows per request over its committed tokens and, as ``tail`` says, over those rows.

    Args:
        query: ``[requests, n, heads, size]``.
        keys, values: ``[cache slots, key heads, size]``.
        slots: ``[requests, longest + n]`` cache slots of each request's tokens; beyond its length anything valid.
        committed: ``[requests]`` tokens before the rows.
        tail: ``[requests, n, n]`` bool; entry (i, j) lets row i see row j.
        scale: what the products are multiplied with.

    Returns:
        ``[requests, n, heads, size of a value]``.
    """
    requests, n, heads, size = query.shape
    key_heads = keys.shape[1]
    shared = heads // key_heads
    position = torch.arange(slots.shape[1])
    mask = (position < committed[:, None])[:, None].repeat(1, n, 1)  # [requests, n, slots]
    rows = committed[:, None] + torch.arange(n)
    mask.scatter_(2, rows[:, None, :].expand(-1, n, -1), tail)
    # Heads that share keys become further rows: one product per key head, nothing is repeated in memory.
    folded = query.view(requests, n, key_heads, shared, size).permute(0, 2, 3, 1, 4)
    key, value = (kind[slots].transpose(1, 2).to(query.dtype) for kind in (keys, values))
    out = scaled_dot_product_attention(
        folded.reshape(requests, key_heads, shared * n, size),
        key,
        value,
        attn_mask=mask.repeat(1, shared, 1)[:, None],
        scale=scale,
    )
    out = out.view(requests, key_heads, shared, n, -1).permute(0, 3, 1, 2, 4)
    return out.reshape(requests, n, heads, -1)


def _serve(
    backend: Any,
    query: torch.Tensor,
    layer: Any,
    batch: Any,
    committed: list[int],
    tail: torch.Tensor,
) -> torch.Tensor:
    """Attention of equally many rows per request; ``query`` is ``[requests * n, heads * size]``."""
    requests, n = tail.shape[:2]
    query = query.reshape(requests, n, layer.tp_q_head_num, layer.qk_head_dim)
    keys = backend.token_to_kv_pool.get_key_buffer(layer.layer_id)
    values = backend.token_to_kv_pool.get_value_buffer(layer.layer_id)
    table = backend.req_to_token_pool.req_to_token
    out = query.new_empty((requests, n, layer.tp_q_head_num, layer.v_head_dim))
    for group in groups([length + n for length in committed]):
        rows = torch.tensor(group)
        lengths = torch.tensor([committed[request] for request in group])
        slots = table[batch.req_pool_indices[rows], : int(lengths[-1]) + n].long()
        out[rows] = attend(query[rows], keys, values, slots, lengths, tail[rows], layer.scaling)
    return out.view(requests * n, -1)


def _is_ordinary(layer: Any) -> bool:
    """Neither a sliding window nor cross attention; the tested models have neither."""
    window = layer.sliding_window_size
    return not layer.is_cross_attention and (window is None or window < 0)


def _store(backend: Any, k: Any, v: Any, layer: Any, batch: Any) -> None:
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    where = KVWriteLoc(batch.out_cache_loc, backend.swa_out_cache_loc)
    backend.token_to_kv_pool.set_kv_buffer(layer, where, k, v)


def extend(
    original: Callable[..., torch.Tensor],
    backend: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layer: Any,
    forward_batch: Any,
    save_kv_cache: bool = True,
    **more: Any,
) -> torch.Tensor:
    """``forward_extend``: as it was, but for the verification of drafts."""
    if not forward_batch.forward_mode.is_target_verify():
        return original(backend, q, k, v, layer, forward_batch, save_kv_cache, **more)
    if not _is_ordinary(layer):
        raise NotImplementedError("tests/sglang_cpu verifies drafts in plain causal attention only")
    if save_kv_cache and k is not None:
        _store(backend, k, v, layer, forward_batch)
    requests, n = forward_batch.batch_size, forward_batch.spec_info.draft_token_num
    mask = forward_batch.spec_info.custom_mask
    if mask is None or mask.numel() != requests * n * n:
        # Without a mask, or with one over all tokens, the drafts are a chain.
        tail = torch.ones(n, n, dtype=torch.bool).tril().expand(requests, n, n)
    else:
        tail = mask.view(requests, n, n).bool()
    # While drafts are verified, seq_lens counts the committed tokens only.
    return _serve(backend, q, layer, forward_batch, forward_batch.seq_lens.tolist(), tail)


def decode(
    original: Callable[..., torch.Tensor],
    backend: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layer: Any,
    forward_batch: Any,
    save_kv_cache: bool = True,
    **more: Any,
) -> torch.Tensor:
    """``forward_decode``, the requests of a batch together."""
    if not _is_ordinary(layer):
        return original(backend, q, k, v, layer, forward_batch, save_kv_cache, **more)
    if save_kv_cache and k is not None:
        _store(backend, k, v, layer, forward_batch)
    # In decoding seq_lens counts the row itself.
    committed = [length - 1 for length in forward_batch.seq_lens.tolist()]
    tail = torch.ones(len(committed), 1, 1, dtype=torch.bool)
    return _serve(backend, q, layer, forward_batch, committed, tail)


def register() -> None:
    """SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{BACKEND}.forward_extend", extend, HookType.AROUND)
    HookRegistry.register(f"{BACKEND}.forward_decode", decode, HookType.AROUND)
