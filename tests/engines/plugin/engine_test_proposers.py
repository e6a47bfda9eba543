"""A proposer that does as it is told, in a distribution of its own, and what tests do inside the engine.

The functions are called through the driver's ``run`` command, where the engine's scheduler lives, with vLLM's LLM or
SGLang's scheduler as first argument.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
)

# This module is imported when the method's name is checked, which is before anything of vLLM is repaired.
if importlib.util.find_spec("vllm") is not None:
    importlib.import_module("engine_test_vllm")

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
    host: Any, table: dict[str, list[int]], always: list[int] | None = None, fail: bool = False
) -> int:
    """Replace the script (JSON has string keys); returns its size."""
    ALWAYS[:] = always or []
    TABLE.clear()
    TABLE.update({int(token): list(draft) for token, draft in table.items()})
    FAULT["raise"] = fail
    return len(TABLE)


def die(host: Any) -> None:
    """End the process at once, as a crash in compiled code would."""
    os._exit(3)
