"""The stand-in for SGLang's CPU operations, each against a slow loop, and its attention against a plain one."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import sgl_kernel
import torch

SEEDS = range(20)


@pytest.fixture(params=SEEDS)
def ragged(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Requests with random ranges of columns, some empty, in random rows of a table."""
    torch.manual_seed(request.param)
    count = int(torch.randint(1, 7, ()))
    rows = torch.randperm(9)[:count]
    starts = torch.randint(0, 10, (count,))
    ends = starts + torch.randint(0, 6, (count,))
    total = int((ends - starts).sum())
    return SimpleNamespace(
        rows=rows,
        starts=starts,
        ends=ends,
        table=torch.randint(0, 1000, (9, 16), dtype=torch.int32),
        slots=torch.randint(0, 1000, (total,)),
    )


def test_the_stand_in_is_the_one_of_this_checkout() -> None:
    assert "tests/sglang_cpu" in str(sgl_kernel.__file__)


def test_assign_req_to_token_pool(ragged: SimpleNamespace) -> None:
    ref_table, at = ragged.table.clone(), 0
    for row, start, end in zip(ragged.rows, ragged.starts, ragged.ends, strict=True):
        for column in range(start, end):
            ref_table[row, column] = ragged.slots[at]
            at += 1
    sgl_kernel.assign_req_to_token_pool_cpu(
        ragged.rows, ragged.table, ragged.starts, ragged.ends, ragged.slots, 16
    )
    assert torch.equal(ragged.table, ref_table)


def test_assign_extend_cache_locs(ragged: SimpleNamespace) -> None:
    ref_out = [
        int(ragged.table[row, column])
        for row, start, end in zip(ragged.rows, ragged.starts, ragged.ends, strict=True)
        for column in range(start, end)
    ]
    got_out = torch.full((len(ref_out) + 2,), -7)
    sgl_kernel.assign_extend_cache_locs_cpu(
        ragged.rows, ragged.table, ragged.starts, ragged.ends, got_out, 16
    )
    assert got_out.tolist() == [*ref_out, -7, -7]


def test_fill_accept_out_cache_loc() -> None:
    index = torch.tensor([[4, 5, -1], [0, -1, -1], [8, 7, 6]], dtype=torch.int32)
    out = torch.zeros(9, dtype=torch.int64)
    sgl_kernel.fill_accept_out_cache_loc_cpu(index, torch.arange(100, 109), out)
    assert out.tolist() == [104, 105, 100, 108, 107, 106, 0, 0, 0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_copy_all_layer_kv_cache(dtype: str) -> None:
    buffers = [torch.randn(12, 3, size).to(getattr(torch, dtype)) for size in (4, 4, 8)]
    target, source = torch.tensor([3, 4, 9, 5]), torch.tensor([4, 8, 9, 2])
    ref = [buffer.clone() for buffer in buffers]
    for reference, buffer in zip(ref, buffers, strict=True):
        # Rows that are moved may be targets of others: the old contents count.
        for t, s in zip(target, source, strict=True):
            reference[t] = buffer[s]
    pointers = torch.tensor([b.data_ptr() for b in buffers], dtype=torch.uint64)
    strides = torch.tensor([b[0].numel() * b.element_size() for b in buffers])
    sgl_kernel.copy_all_layer_kv_cache_cpu(pointers, strides, target, source)
    for reference, buffer in zip(ref, buffers, strict=True):
        assert torch.equal(reference, buffer)


def random_tree(n: int) -> tuple[list[int], Any]:
    """Parents of ``n`` nodes (node 0 has none) and the mask of nodes and their ancestors."""
    parents = [-1] + [int(torch.randint(0, i, ())) for i in range(1, n)]
    mask = torch.zeros(n, n, dtype=torch.bool)
    for node in range(n):
        above = node
        while above >= 0:
            mask[node, above] = True
            above = parents[above]
    return parents, mask


@pytest.mark.parametrize("seed", SEEDS)
def test_reconstruct_indices_from_tree_mask(seed: int) -> None:
    torch.manual_seed(seed)
    n, requests = int(torch.randint(1, 9, ())), 3
    trees = [random_tree(n) for _ in range(requests)]
    lengths = torch.tensor([5, 0, 17])
    positions = torch.empty(requests * n, dtype=torch.int64)
    index, child, sibling = (torch.empty(requests, n, dtype=torch.int64) for _ in range(3))
    reconstruct = importlib.import_module("sgl_kernel.speculative")
    reconstruct.reconstruct_indices_from_tree_mask(
        torch.stack([mask for _, mask in trees]).flatten(),
        lengths,
        positions,
        index,
        child,
        sibling,
        requests,
        n,
    )
    assert index.flatten().tolist() == list(range(requests * n))
    for request, (parents, mask) in enumerate(trees):
        depth = mask.sum(1) - 1
        assert positions.view(requests, n)[request].tolist() == (depth + lengths[request]).tolist()
        for node in range(n):
            children = [k for k in range(n) if parents[k] == node]
            assert int(child[request, node]) == (children[0] if children else -1)
            after = [k for k in range(node + 1, n) if parents[k] == parents[node] >= 0]
            assert int(sibling[request, node]) == (after[0] if after else -1)


@pytest.mark.parametrize("seed", SEEDS)
def test_verify_tree_greedy(seed: int) -> None:
    torch.manual_seed(seed)
    n, requests = 7, 4
    trees = [random_tree(n) for _ in range(requests)]
    tokens = torch.randint(0, 3, (requests, n))
    best = torch.randint(0, 3, (requests, n))
    index = torch.arange(requests * n).view(requests, n)
    child, sibling = (torch.full((requests, n), -1) for _ in range(2))
    for request, (parents, _) in enumerate(trees):
        for node in reversed(range(1, n)):
            sibling[request, node] = child[request, parents[node]]
            child[request, parents[node]] = node
    predicts = torch.full((requests * n,), -1, dtype=torch.int32)
    accepted = torch.full((requests, n), -1, dtype=torch.int32)
    counts = torch.zeros(requests, dtype=torch.int32)
    sgl_kernel.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accepted,
        accept_token_num=counts,
        candidates=tokens,
        retrive_index=index,
        retrive_next_token=child,
        retrive_next_sibling=sibling,
        target_predict=best,
    )
    for request, (parents, _) in enumerate(trees):
        path = [0]
        while True:
            wanted = best[request, path[-1]]
            next_nodes = [
                k for k in range(n) if parents[k] == path[-1] and tokens[request, k] == wanted
            ]
            if not next_nodes:
                break
            path.append(next_nodes[0])
        assert int(counts[request]) == len(path) - 1
        assert accepted[request, : len(path)].tolist() == [request * n + node for node in path]
        for node in path:
            assert predicts[request * n + node] == best[request, node]


def test_an_operation_that_is_missing_says_so() -> None:
    with pytest.raises(NotImplementedError, match=r"sgl_kernel.gelu_and_mul .* write it there"):
        sgl_kernel.gelu_and_mul(1)
    module = importlib.import_module("sgl_kernel.no.such.module")
    with pytest.raises(NotImplementedError, match=r"sgl_kernel.no.such.module.operation"):
        module.operation()


def plain_attention(
    query: Any, keys: Any, values: Any, seen: list[list[int]], scale: float
) -> list[Any]:
    """Softmax attention of every row over the slots that it sees; heads share keys in groups."""
    heads, key_heads = query.shape[1], keys.shape[1]
    rows = []
    for row, slots in zip(query, seen, strict=True):
        out = []
        for head in range(heads):
            of = head // (heads // key_heads)
            weights = torch.softmax(keys[slots, of].double() @ row[head].double() * scale, 0)
            out.append(weights @ values[slots, of].double())
        rows.append(torch.stack(out))
    return rows


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_attention(n: int, seed: int) -> None:
    torch.manual_seed(seed)
    attention = importlib.import_module("sglang_cpu_attention")
    heads, key_heads, size, requests = 6, 2, 8, 5
    keys, values = torch.randn(2, 300, key_heads, size)
    committed = [0, 3, 40, 41, 7]
    table = torch.stack([torch.randperm(300)[:60] for _ in range(requests)]).int()
    tail = torch.stack([random_tree(n)[1] for _ in range(requests)])
    query = torch.randn(requests, n, heads, size)
    layer = SimpleNamespace(
        tp_q_head_num=heads, qk_head_dim=size, v_head_dim=size, layer_id=0, scaling=0.3
    )
    pool = SimpleNamespace(get_key_buffer=lambda _: keys, get_value_buffer=lambda _: values)
    backend = SimpleNamespace(
        token_to_kv_pool=pool, req_to_token_pool=SimpleNamespace(req_to_token=table)
    )
    batch = SimpleNamespace(req_pool_indices=torch.tensor([2, 0, 4, 1, 3]))
    got = attention._serve(backend, query.view(requests * n, -1), layer, batch, committed, tail)
    seen = []
    for request, length in enumerate(committed):
        slots = table[batch.req_pool_indices[request]].tolist()
        for row in range(n):
            own = [slots[length + k] for k in range(n) if tail[request, row, k]]
            seen.append(slots[:length] + own)
    ref = plain_attention(query.view(requests * n, heads, size), keys, values, seen, 0.3)
    assert torch.allclose(got.view(requests * n, heads, size).double(), torch.stack(ref), atol=1e-5)


def test_groups_pad_little_and_lose_nobody() -> None:
    attention = importlib.import_module("sglang_cpu_attention")
    lengths = [3, 2000, 5, 4, 1900, 64, 3, 1200, 2]
    groups = list(attention.groups(lengths))
    assert sorted(request for group in groups for request in group) == list(range(len(lengths)))
    for group in groups:
        own = [lengths[request] for request in group]
        assert max(own) * len(own) <= attention.PADDING * sum(own) + 64
