"""The arrays of a verification step: what SGLang's attention backends and grammar walk want to know of the drafts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.adapters.sglang_srt.drafting import Drafts

#: Attention backends that keep the configured width whatever a step says.
FIXED_WIDTH_BACKENDS = ("fa3", "fa4", "trtllm_mha", "trtllm_mla", "flashmla", "cutlass_mla")
#: Attention backends that look at the mask of a verification.
TREE_BACKENDS = ("torch_native", "triton", "flashinfer")


class Layout(NamedTuple):
    """Host arrays over ``[B, w]`` positions; position 0 holds the last token, ``j + 1`` holds draft node ``j``.

    Attributes:
        tokens: int64, the last token and the drafts, padded by the last token.
        depths: int64, how far behind the last token each position is; padding stands at its row's last depth.
        next_token: int64, the first child of each position, -1 for none.
        next_sibling: int64, the next child of its parent, -1 for none.
        sees: bool ``[B, w, w]``, which positions of its row each position looks at; None for chains.
    """

    tokens: NDArray[np.int64]
    depths: NDArray[np.int64]
    next_token: NDArray[np.int64]
    next_sibling: NDArray[np.int64]
    sees: NDArray[np.bool_] | None


def lay_out(roots: NDArray[np.int64], drafts: Drafts) -> Layout:
    """Lay out a step. ``roots`` is int64 ``[B]``, the last token of each row."""
    width = drafts.tokens.shape[1]
    tokens = np.repeat(roots[:, None], width + 1, axis=1)
    places = np.arange(width)
    used = places < drafts.lengths[:, None]
    np.copyto(tokens[:, 1:], drafts.tokens, where=used)
    if drafts.parents is not None:
        return _tree(tokens, drafts)
    lengths = drafts.lengths[:, None].astype(np.int64)
    steps = np.arange(width + 1)
    # Padding is not looked at by anybody; its positions stay inside the model's context.
    depths = np.minimum(steps, lengths)
    next_token = np.where(steps < lengths, steps + 1, -1)
    return Layout(tokens, depths, next_token, np.full_like(next_token, -1), None)


def _tree(tokens: NDArray[np.int64], drafts: Drafts) -> Layout:
    from specplug.verify import lay_out as lay_out_tree

    made = lay_out_tree(drafts.parents, drafts.lengths)
    depths = np.zeros(tokens.shape, np.int64)
    depths[:, 1:] = made.depths
    next_sibling = np.full(tokens.shape, -1, np.int64)
    # The library numbers nodes; here they stand one place behind their number.
    next_sibling[:, 1:] = np.where(made.next_sibling >= 0, made.next_sibling + 1, -1)
    next_token = np.where(made.first_child >= 0, made.first_child + 1, -1).astype(np.int64)
    # Padding looks at the last token and itself: a row that looks at nothing is NaN, and NaN spreads.
    sees = made.mask | np.eye(tokens.shape[1], dtype=bool)
    sees[:, :, 0] = True
    return Layout(tokens, depths, next_token, next_sibling, sees)


def chain_mask(rows: int, width: int) -> NDArray[np.bool_]:
    """bool ``[B, w, w]``: every position looks at those before it and at itself."""
    return np.tile(np.tril(np.ones((width, width), bool)), (rows, 1, 1))


def full_mask(sees: Any, lengths: Any, total: int) -> Any:
    """The mask that GPU backends take: per row ``[w, length + w]``, flattened, one row after the other.

    Args:
        sees: bool tensor ``[B, w, w]``.
        lengths: int64 tensor ``[B]``, committed tokens.
        total: the sum of ``(length + w) * w``, known on the host, so that nothing waits for the device.
    """
    import torch

    rows, width, _ = sees.shape
    sizes = (lengths + width) * width
    ends = sizes.cumsum(0)
    row = torch.repeat_interleave(torch.arange(rows, device=sees.device), sizes, output_size=total)
    inside = torch.arange(total, device=sees.device) - (ends - sizes)[row]
    columns = (lengths + width)[row]
    line = torch.div(inside, columns, rounding_mode="floor")
    place = inside - line * columns - lengths[row]
    return (place < 0) | sees[row, line, place.clamp(min=0)]
