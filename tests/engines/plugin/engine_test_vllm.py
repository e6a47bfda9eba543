"""What tests do inside vLLM's process; imported before vLLM's sampler is repaired."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample import rejection_sampler

from specplug.adapters.vllm_v1 import host_faults

HOST_EXPAND = rejection_sampler.expand_batch_to_tokens


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
