"""``sgl_kernel.speculative``."""

from __future__ import annotations

from typing import Any

from sgl_kernel.absent import Absent
from sgl_kernel.trees import reconstruct_indices_from_tree_mask

__all__ = ["reconstruct_indices_from_tree_mask"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(f"{__name__}.{name}")
