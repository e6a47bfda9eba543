"""vLLM's forward context for passes that no scheduler planned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def forward_context(runner: Any, common: Any) -> Iterator[None]:
    """Passes inside run eagerly over the tokens that ``common`` (vLLM's ``CommonAttentionMetadata``) describes.

    Args:
        runner: vLLM's model runner, whose cache is one group.
        common: block table in blocks of the cache; where the kernel's are smaller, vLLM's groups map it.
    """
    from vllm.forward_context import set_forward_context

    metadata, mapping = {}, {}
    for group in runner.attn_groups[0]:
        built = group.build_metadata(common)
        for name in group.layer_names:
            metadata[name], mapping[name] = built, common.slot_mapping
    with set_forward_context(
        metadata,
        runner.vllm_config,
        num_tokens=common.num_actual_tokens,
        slot_mapping=mapping,
        skip_compiled=True,
    ):
        yield
