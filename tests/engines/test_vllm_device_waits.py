"""What look-ups on the device ask of it: nothing that the host waits for. And they compile for GPUs, without one."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specplug.adapters.device.lookup import DeviceLookup, LookupSettings
from specplug.adapters.vllm_v2.speculator import Exchange

from .three_lookups import interpreted as interpreted
from .triton_cpu.engine_test_device import Waits


class Launches:
    """In place of the kernels: what is launched, with what grid."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[str, tuple[int, ...]]] = []
        from specplug.adapters.device import kernels

        for name in ("scan_requests", "scan_ring", "write_drafts", "append_outputs"):
            monkeypatch.setattr(kernels, name, self._stub(name))

    def _stub(self, name: str) -> Any:
        def launch(grid: tuple[int, ...]) -> Any:
            return lambda *_: self.found.append((name, grid))

        return type("Stub", (), {"__getitem__": lambda _, grid: launch(grid)})()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, interpreted: None) -> Launches:
    """See there."""
    return Launches(monkeypatch)


@pytest.fixture
def lookup() -> DeviceLookup:
    """A table as vLLM's V2 runner keeps it for 256 requests of 8192 tokens, and a store of 4 MB."""
    tokens = torch.zeros((256, 8192), dtype=torch.int32)
    return DeviceLookup(tokens, torch.zeros(256, dtype=torch.int32), 256, 8)


@pytest.mark.parametrize("rows", [1, 32, 256])
def test_no_step_waits_for_the_device(launches: Launches, lookup: DeviceLookup, rows: int) -> None:
    ids = torch.arange(rows, dtype=torch.int32)
    with Waits() as waits:
        lookup.arrive(range(rows), [0] * rows, [8] * rows)
        for _ in range(3):
            lookup.look_up(ids, ids, 8)
        lookup.append(range(rows), [0] * rows)
        lookup.empty(rows)
    assert waits.found == []
    tiles = -(-rows // 16)
    step = [("scan_requests", (rows, 8)), ("scan_ring", (tiles, 964)), ("write_drafts", (rows,))]
    assert launches.found == step * 3 + [("append_outputs", (rows, 9))]


@pytest.mark.parametrize("store_mb", [0.0, 4.0, 68.0, 4096.0])
@pytest.mark.parametrize(("requests", "longest"), [(1, 1024), (256, 131_072), (65_536, 1 << 22)])
def test_a_large_store_starts_on_cuda(
    launches: Launches,
    monkeypatch: pytest.MonkeyPatch,
    store_mb: float,
    requests: int,
    longest: int,
) -> None:
    """Whose grids have at most 65,535 programs on any axis but the first; and work memory does not grow with it."""
    tokens = torch.empty((requests, longest), dtype=torch.int32, device="meta")
    lengths = torch.empty(requests, dtype=torch.int32, device="meta")
    monkeypatch.setattr(
        DeviceLookup, "_sent", lambda _, values, dtype: torch.empty(len(values), device="meta")
    )
    lookup = DeviceLookup(tokens, lengths, requests, 8, LookupSettings(store_mb))
    lookup.look_up(lengths, lengths, 8)
    lookup.append(range(requests), [0] * requests)
    for name, grid in launches.found:
        assert grid[0] < 2**31, name
        assert max(grid[1:], default=0) <= 65_535, name
    found = lookup.memory()
    assert found["ring"] <= max(store_mb * 2**20, 4 * 68)
    assert found["other"] <= requests * (8 * (longest // 1024 + 1024) + 8 * 8 + 12)


def test_the_counter_sees_what_would_wait() -> None:
    """Among it, look-ups on the host, which read the new tokens once per step, where the scheduler takes drafts."""
    recorder: Any = SimpleNamespace(drafts=lambda ids, *_: [[] for _ in ids], stopped=False)
    states = SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=torch.zeros((2, 8), dtype=torch.int32)),
        total_len=SimpleNamespace(gpu=torch.ones(2, dtype=torch.int32)),
        draft_tokens=torch.zeros((2, 4), dtype=torch.int64),
    )
    ids = torch.arange(2, dtype=torch.int32)
    exchange = Exchange(recorder, 2, 4, "cpu", states)
    batch = SimpleNamespace(num_reqs=2, req_ids=["a", "b"], idx_mapping=ids)
    with Waits() as waits:
        exchange.step(batch, ids, 4)
    assert waits.found == [], "while the runner finishes the step, the copy is only under way"
    with Waits() as waits:
        exchange.take()
    assert waits.found == ["numpy"]
    for cause in (
        lambda: ids[0].item(),
        lambda: bool(ids[0] > 0),
        lambda: ids.tolist(),
        lambda: ids.cpu(),
        lambda: ids.to("cpu"),
        lambda: ids[ids > 0],
        lambda: torch.nonzero(ids),
        lambda: torch.zeros(2, dtype=torch.int32).copy_(ids),
    ):
        with Waits() as waits:
            cause()
        assert waits.found, "not seen"


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from specplug.adapters.device import kernels

POINTERS = {"tokens": "i32", "lengths": "i32", "limits": "i32", "rows": "i64", "sampled": "i32", "namespaces": "i32",
            "ring": "i32", "owners": "i32", "counts": "i32", "starts": "i32", "end": "i64", "best": "i64",
            "drafts": "i64", "grown": "i64"}
CONSTANTS = {"shortest": 1, "longest": 16, "block": 16, "padding": 0, "padded": 8, "chunk": 1024, "many": 4}
# Numbers that Triton compiles in because they are 1 in every launch: one draft token, one column, no text of one's own
# beside the ring, a limit of growth, a ring that needs one span per program.
ONES = {
    "write_drafts": [{"width": 1, "padded": 1, "columns": 1, "chunk": 1, "growth": 1}, {"padded": 128, "growth": 1}],
    "scan_requests": [{"columns": 1, "longest": 1}],
    "scan_ring": [{"first": 1, "spans": 1, "longest": 1}],
}
TILES = {"write_drafts": (1, 1), "scan_requests": (1, 1024), "scan_ring": (16, 256)}
for target in (GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)):
    for name in ("scan_requests", "scan_ring", "write_drafts", "append_outputs"):
        kernel = getattr(kernels, name)
        pointers = {**POINTERS, "rows": "i32"} if name == "append_outputs" else POINTERS
        rows, span = TILES.get(name, (1, 1024))
        # The variants once per maker.
        for ones in [{}] + (ONES.get(name, []) if target.arch != 80 else []):
            known = {**CONSTANTS, "tile_rows": rows, "span": span, **ones}
            constants = {p.name: known[p.name] for p in kernel.params if p.is_constexpr or p.name in ones}
            signature = {
                p.name: "constexpr" if p.name in constants else "*" + pointers.get(p.name, "") if p.name in pointers
                else "i32"
                for p in kernel.params
            }
            made = triton.compile(ASTSource(kernel, signature, constants), target=target)
            binary = made.asm["cubin" if target.backend == "cuda" else "hsaco"]
            print(target.backend, target.arch, name, ones, len(binary), made.metadata.shared, flush=True)
"""


def test_the_kernels_compile_for_gpus() -> None:
    """Down to machine code, which nobody has run."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        *([sys.executable, "-P", "-c", COMPILE],),
        **{"env": environment, "capture_output": True, "text": True},  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    assert len(done.stdout.splitlines()) == 12 + 2 * 4
