"""A proposer that does as it is told, in a distribution of its own, and what tests do inside the engine.

The functions are called through the driver's ``run`` command, in the engine's process, with the LLM as first argument.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.sample import rejection_sampler

from specplug.adapters.vllm_v1 import host_faults
from specplug.testing.toys import HistoryProposer

#: This module is imported when the method's name is checked, which is before anything is repaired.
HOST_EXPAND = rejection_sampler.expand_batch_to_tokens

#: What to draft after a last token, what after any other, and whether to raise instead.
TABLE: dict[int, list[int]] = {}
ALWAYS: list[int] = []
FAULT = {"raise": False}


class ScriptedProposer(HistoryProposer):
    """Drafts what :data:`TABLE` says after the last token."""

    def guess(self, history: list[int], ceiling: int) -> list[int]:
        if FAULT["raise"]:
            raise RuntimeError("this proposer was told to fail")
        return TABLE.get(history[-1], ALWAYS)[:ceiling]


def script(
    llm: Any, table: dict[str, list[int]], always: list[int] | None = None, fail: bool = False
) -> int:
    """Replace the script (JSON has string keys); returns its size."""
    ALWAYS[:] = always or []
    TABLE.clear()
    TABLE.update({int(token): list(draft) for token, draft in table.items()})
    FAULT["raise"] = fail
    return len(TABLE)


def use_host_sampling(llm: Any, host: bool) -> dict[str, bool]:
    """Put the host's own ``expand_batch_to_tokens`` back, or the repaired one; says which of the two are sound."""
    rejection_sampler.expand_batch_to_tokens = (
        HOST_EXPAND if host else host_faults.expand_batch_to_tokens
    )
    return {
        "host": host_faults.is_sound(HOST_EXPAND),
        "repaired": host_faults.is_sound(host_faults.expand_batch_to_tokens),
    }
