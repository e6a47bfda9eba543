"""Readable verification maths: which drafts the target keeps, and with what law.

Chains of deterministic drafts: :func:`greedy`, :func:`sample_and_compare`, :func:`reject_one_hot`. Chains of drawn
drafts: :func:`reject_sampled`, :func:`verify_block`. Trees: :func:`greedy_tree`, :func:`reject_tree_one_hot`,
:func:`reject_tree_sampled`, :func:`lay_out`. Laws from logits: :func:`target_probs`. The maths stand in
``docs/verification-maths.md``. Names load on first use: numba comes with them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specplug.verify.chain import greedy, reject_one_hot, sample_and_compare
    from specplug.verify.params import (
        ORDERS,
        SGLANG,
        SGLANG_FLASHINFER,
        VLLM,
        Order,
        SamplingParams,
    )
    from specplug.verify.sampled import reject_sampled, verify_block
    from specplug.verify.transform import Past, target_probs
    from specplug.verify.tree import (
        TreeLayout,
        TreeVerdict,
        greedy_tree,
        lay_out,
        reject_tree_one_hot,
        reject_tree_sampled,
    )
    from specplug.verify.verdict import Verdict

_HOME = {
    "ORDERS": "params",
    "Order": "params",
    "Past": "transform",
    "SGLANG": "params",
    "SGLANG_FLASHINFER": "params",
    "SamplingParams": "params",
    "TreeLayout": "tree",
    "TreeVerdict": "tree",
    "VLLM": "params",
    "Verdict": "verdict",
    "greedy": "chain",
    "greedy_tree": "tree",
    "lay_out": "tree",
    "reject_one_hot": "chain",
    "reject_sampled": "sampled",
    "reject_tree_one_hot": "tree",
    "reject_tree_sampled": "tree",
    "sample_and_compare": "chain",
    "target_probs": "transform",
    "verify_block": "sampled",
}

__all__ = [
    "ORDERS",
    "SGLANG",
    "SGLANG_FLASHINFER",
    "VLLM",
    "Order",
    "Past",
    "SamplingParams",
    "TreeLayout",
    "TreeVerdict",
    "Verdict",
    "greedy",
    "greedy_tree",
    "lay_out",
    "reject_one_hot",
    "reject_sampled",
    "reject_tree_one_hot",
    "reject_tree_sampled",
    "sample_and_compare",
    "target_probs",
    "verify_block",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"specplug.verify.{_HOME[name]}"), name)
    raise AttributeError(
        f"module 'specplug.verify' has no attribute {name!r}; public names: {', '.join(__all__)}"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
