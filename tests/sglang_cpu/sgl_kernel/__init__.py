"""A pure-torch stand-in for the CPU build of ``sgl_kernel``, which is not published; test equipment.

It has exactly the operations that SGLang 0.5.23 calls on a CPU with torch's own attention, without and with
speculation. SGLang imports many more names when its modules load; those are placeholders that raise when called.
"""

from __future__ import annotations

from typing import Any

from sgl_kernel.absent import Absent, serve_submodules
from sgl_kernel.slots import (
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
)
from sgl_kernel.trees import verify_tree_greedy_cpu

#: The release that SGLang 0.5.23 asks for.
__version__ = "0.4.10"
__all__ = [
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "verify_tree_greedy_cpu",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(f"sgl_kernel.{name}")


serve_submodules()
