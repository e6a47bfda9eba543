"""Tokens that SGLang has sampled but not yet put into the outputs of its requests."""

from __future__ import annotations

from typing import Any


def late_tokens(batch: Any, overlap: bool) -> tuple[list[list[int]], list[bool]]:
    """Per row the tokens that are missing in its output, and whether the row adds up.

    With overlap scheduling outputs lag one step behind, and the missing tokens come with the batch; to read them is to
    wait for the last step. A row adds up if prompt, output and those tokens are as many as the cache says.
    """
    rows = len(batch.reqs)
    relayed = batch.spec_info if overlap else None
    if relayed is None or relayed.accept_tokens is None:
        return [[] for _ in range(rows)], [True] * rows
    tokens = relayed.accept_tokens.view(rows, -1).tolist()
    lengths = relayed.accept_lens.tolist()
    on_host = getattr(batch, "seq_lens_cpu", None)
    cached = (batch.seq_lens if on_host is None else on_host).tolist()
    extras, sound = [], []
    for i, req in enumerate(batch.reqs):
        new = tokens[i][: lengths[i]]
        missing = cached[i] + 1 - len(req.origin_input_ids) - len(req.output_ids)
        # 0: the last result was processed before this step began, as happens with structured output.
        extras.append(new if missing else [])
        sound.append(missing in (0, len(new)))
    return extras, sound
