"""What layer skipping asks of models in torch, whatever engine has loaded them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.layers.exit_head import ExitHead

#: What decoder layers call their two sublayers, by family.
ATTENTION_NAMES = ("self_attn", "attention", "attn", "self_attention")
MLP_NAMES = ("mlp", "feed_forward", "block_sparse_moe")
#: How far states may move where nothing is added to them, in parts of their largest number.
TOLERANCE = 1e-3


def named(owner: Any, names: Sequence[str]) -> Any:
    """What ``owner`` has under the first of ``names`` that it knows, or None."""
    found = (getattr(owner, name, None) for name in names)
    return next((module for module in found if module is not None), None)


def head_tensors(head: ExitHead, device: Any, dtype: Any) -> list[Any]:
    """The factors of a head's slope, then its constant."""
    import torch

    return [
        torch.as_tensor(np.asarray(part, np.float32)).to(device, dtype)
        for part in (*head.slope, head.constant)
    ]


def apply_head(tensors: Sequence[Any], states: Any) -> Any:
    """States behind the last norm, ``[..., d]``, as final ones."""
    *factors, constant = tensors
    change = states
    for factor in factors:
        change = change @ factor
    return states + change + constant


def rows_of(weight: Any) -> Callable[[int], NDArray[np.float32]]:
    """What reads the first so many rows of a weight, or of a slice of a file, for a fingerprint."""
    import torch

    def read(rows: int) -> NDArray[np.float32]:
        found: NDArray[np.float32] = weight[:rows].detach().to(torch.bfloat16).float().cpu().numpy()
        return found

    return read
