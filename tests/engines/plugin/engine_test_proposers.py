"""A proposer that does as it is told, in a distribution of its own, and what tests do inside the engine.

The functions are called through the driver's ``run`` command, in the engine's process, with the LLM as first argument.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample import rejection_sampler

from specplug.adapters.vllm_v1 import host_faults
from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
)

#: This module is imported when the method's name is checked, which is before anything is repaired.
HOST_EXPAND = rejection_sampler.expand_batch_to_tokens

#: What to draft after a last token, what after any other, and whether to raise instead.
TABLE: dict[int, list[int]] = {}
ALWAYS: list[int] = []
FAULT = {"raise": False}


class ScriptedProposer:
    """Drafts what :data:`TABLE` says after the last token. Written against the protocol alone."""

    capabilities = Capabilities()

    def __init__(self, context: Context) -> None:
        self.last: dict[int, int] = {}

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        self.last[slot] = int(history[-1])

    def observe(self, observed: Observed) -> None:
        for row, slot in enumerate(observed.slots.tolist()):
            first, end = observed.offsets[row : row + 2].tolist()
            if end > first:
                self.last[slot] = int(observed.tokens[end - 1])

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        if FAULT["raise"]:
            raise RuntimeError("this proposer was told to fail")
        for row, (slot, ceiling) in enumerate(zip(slots.tolist(), ceilings.tolist(), strict=True)):
            draft = TABLE.get(self.last[slot], ALWAYS)[:ceiling]
            out.tokens[row, : len(draft)] = draft
            out.survival[row, : len(draft)] = 0.5
            out.lengths[row] = len(draft)

    def finish(self, slot: int, keep: bool) -> None:
        del self.last[slot]


def script(
    llm: Any, table: dict[str, list[int]], always: list[int] | None = None, fail: bool = False
) -> int:
    """Replace the script (JSON has string keys); returns its size."""
    ALWAYS[:] = always or []
    TABLE.clear()
    TABLE.update({int(token): list(draft) for token, draft in table.items()})
    FAULT["raise"] = fail
    return len(TABLE)


def expand_after_others(x: Any, cu_num_tokens: Any, num_tokens: int, **more: Any) -> Any:
    """The host's function, in memory in which something else was computed just before.

    What it returns is whatever the memory held; without this, chance decides how wrong the law is.
    """
    torch.full((num_tokens,), 7, dtype=x.dtype)  # freed at once, to be found by the next allocation
    return HOST_EXPAND(x, cu_num_tokens, num_tokens, **more)


def use_host_sampling(llm: Any, host: bool) -> dict[str, bool]:
    """Put the host's own ``expand_batch_to_tokens`` back, or the repaired one; says which of the two are sound."""
    rejection_sampler.expand_batch_to_tokens = (
        expand_after_others if host else host_faults.expand_batch_to_tokens
    )
    return {
        "host": host_faults.is_sound(HOST_EXPAND),
        "repaired": host_faults.is_sound(host_faults.expand_batch_to_tokens),
    }
