"""Two tensor-parallel ranks over gloo: both verify rank 0's drafts and emit rank 0's tokens. Needs torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.adapters.sglang_srt.drafting import Drafts, no_drafts
from specplug.adapters.sglang_srt.parallel import Ranks

pytest.importorskip("torch")

pytestmark = pytest.mark.sglang

RANK = """
import json, sys
import numpy as np
import torch
import torch.distributed as dist
from specplug.adapters.sglang_srt.drafting import Drafts
from specplug.adapters.sglang_srt.parallel import Ranks

rank, store, trees = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "1"
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)


class Group:
    world_size, rank_in_group, ranks, cpu_group = 2, rank, [0, 1], dist.group.WORLD

    def broadcast(self, tensor, src=0):
        dist.broadcast(tensor, src=self.ranks[src])


# Every rank has drafts of its own, as two drafters would.
rng = np.random.default_rng(rank)
parents = np.tile(np.arange(-1, 3, dtype=np.int32), (2, 1)) if rank == 0 and trees else None
own = Drafts(rng.integers(0, 99, (2, 4)).astype(np.int32), rng.integers(0, 5, 2).astype(np.int32), parents)
ranks = Ranks(Group())
shared = ranks.share(own, trees)
outcome = torch.full((2,), rank)
ranks.agree(outcome)
print(json.dumps({
    "tokens": shared.tokens.tolist(),
    "lengths": shared.lengths.tolist(),
    "parents": None if shared.parents is None else shared.parents.tolist(),
    "outcome": outcome.tolist(),
    "drafts_here": ranks.drafts_here,
}))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("trees", [False, True], ids=["chain", "tree"])
def test_both_ranks_verify_the_same_drafts(trees: bool, tmp_path: Path) -> None:
    arguments = [sys.executable, "-P", "-c", RANK]
    processes = [
        subprocess.Popen(
            [*arguments, str(rank), str(tmp_path / "store"), str(int(trees))],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    first, second = (json.loads(p.communicate(timeout=120)[0]) for p in processes)
    assert [first.pop("drafts_here"), second.pop("drafts_here")] == [True, False]
    assert first == second
    assert first["outcome"] == [0, 0]
    assert (first["parents"] is not None) == trees
    rng = np.random.default_rng(0)
    assert first["tokens"] == rng.integers(0, 99, (2, 4)).tolist(), "rank 0's"


class Alone:
    world_size, rank_in_group = 1, 0

    def broadcast(self, *arguments: Any) -> None:
        raise AssertionError("there is nobody to send to")


def test_one_rank_sends_nothing() -> None:
    ranks = Ranks(Alone())
    drafts = no_drafts(2, 3)
    assert ranks.share(drafts, trees=True) is drafts
    ranks.agree(object())
    assert isinstance(drafts, Drafts)
