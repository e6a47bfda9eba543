"""From logits to the law that a token is drawn from, in torch: :func:`specplug.verify.target_probs` for batches.

The order of the steps is SGLang's: frequency, minimum length, presence, repetition, grammar, bias, custom processors,
temperature, then top-k, top-p and min-p in the order of the sampler that is in use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from specplug.types import TokenArray

Tensor = Any


class Penalties(NamedTuple):
    """The penalties of one request; see :class:`specplug.verify.SamplingParams`."""

    frequency: float
    presence: float
    repetition: float
    min_tokens: int
    stop_ids: frozenset[int]


def apply_penalties(
    logits: Tensor, penalties: Penalties, output: TokenArray, draft: TokenArray, parents: Any = None
) -> None:
    """Penalise the scores of one request in place, each position by what was said before it.

    Args:
        logits: floats ``[n + 1, V]``: after the output, and after each of the ``n`` draft tokens.
        penalties: of the request.
        output: int32 ``[m]``; the prompt does not count in SGLang.
        draft: int32 ``[n]``.
        parents: int32 ``[n]`` for trees, None for chains.
    """
    import torch

    positions, vocab_size = logits.shape
    before = _occurrences(output, draft, parents, vocab_size)
    ids = torch.from_numpy(before.ids).to(logits.device)
    counts = torch.from_numpy(before.counts).to(logits.device, logits.dtype)
    if len(before.ids) and penalties.frequency:
        logits[:, ids] -= penalties.frequency * counts
    stops = [t for t in sorted(penalties.stop_ids) if 0 <= t < vocab_size]
    missing = penalties.min_tokens - len(output)
    for position in range(positions if missing > 0 and stops else 0):
        if before.depths[position] < missing:
            logits[position, stops] = -float("inf")
    if not len(before.ids):
        return
    seen = counts > 0
    if penalties.presence:
        logits[:, ids] -= penalties.presence * seen.to(logits.dtype)
    if penalties.repetition != 1.0:
        scores = logits[:, ids]
        scaled = torch.where(
            scores < 0, scores * penalties.repetition, scores / penalties.repetition
        )
        logits[:, ids] = torch.where(seen, scaled, scores)


class _Occurrences(NamedTuple):
    """How often each of ``ids`` (int64 ``[U]``) occurred before each position (int64 ``[n + 1, U]``), and depths."""

    ids: np.ndarray[Any, np.dtype[np.int64]]
    counts: np.ndarray[Any, np.dtype[np.int64]]
    depths: list[int]


def _occurrences(
    output: TokenArray, draft: TokenArray, parents: Any, vocab_size: int
) -> _Occurrences:
    past = output[(output >= 0) & (output < vocab_size)]
    ids, inverse = np.unique(np.concatenate([past, draft]), return_inverse=True)
    counts = np.zeros((len(draft) + 1, len(ids)), np.int64)
    np.add.at(counts[0], inverse[: len(past)], 1)
    depths = [0]
    for node in range(len(draft)):
        parent = node - 1 if parents is None else int(parents[node])
        counts[node + 1] = counts[parent + 1]
        counts[node + 1, inverse[len(past) + node]] += 1
        depths.append(depths[parent + 1] + 1)
    return _Occurrences(ids.astype(np.int64), counts, depths)


class Filters(NamedTuple):
    """Sampling parameters, one of each per law: floats ``[N]``, ``top_k`` integers ``[N]``."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


#: Likeliest tokens that are looked at first on the CPU, where sorting a vocabulary takes as long as a forward pass.
LEADING = 512


def laws(logits: Tensor, filters: Filters, *, renormalise: bool, filtered: bool) -> Tensor:
    """The distribution of each row, float32 ``[N, V]``.

    Args:
        logits: floats ``[N, V]``.
        filters: per row.
        renormalise: top-p looks at what top-k left (FlashInfer with min-p); otherwise both look at the whole law
            (PyTorch, and FlashInfer without min-p).
        filtered: False if no row has top-k, top-p or min-p, which saves the sorting.
    """
    import torch

    probs = torch.softmax(logits.float() / filters.temperature[:, None], 1)
    if not filtered:
        return probs
    if renormalise or probs.device.type != "cpu" or probs.shape[1] <= 2 * LEADING:
        return _kept(probs, probs.sort(1, descending=True), filters, renormalise)
    leading = probs.topk(LEADING, 1)
    # What comes behind is cut anyway, by top-k or because the mass before it exceeds top-p.
    complete = (filters.top_k <= LEADING) | (leading.values.sum(1) > filters.top_p + 1e-4)
    if complete.all():
        return _kept(probs, leading, filters, renormalise)
    made = torch.empty_like(probs)
    for rows, order in ((complete, leading), (~complete, None)):
        chosen = Filters(*(f[rows] for f in filters))
        ordered = probs[rows].sort(1, descending=True) if order is None else None
        pair = ordered or (leading.values[rows], leading.indices[rows])
        made[rows] = _kept(probs[rows], pair, chosen, renormalise)
    return made


def _kept(probs: Tensor, order: Any, filters: Filters, renormalise: bool) -> Tensor:
    """What the filters leave of ``probs``; ``order`` is its values and their ids, falling, as many as can stay."""
    import torch

    ordered, ids = order
    ranks = torch.arange(ordered.shape[1], device=probs.device)
    within = ranks < filters.top_k[:, None]
    if renormalise:
        ordered = torch.where(within, ordered, 0.0)
        ordered = ordered / ordered.sum(1, keepdim=True)
    before = ordered.cumsum(1) - ordered
    keep = within & (before <= filters.top_p[:, None])
    keep &= ordered >= ordered[:, :1] * filters.min_p[:, None]
    ordered = torch.where(keep, ordered, 0.0)
    ordered = ordered / ordered.sum(1, keepdim=True)
    return torch.zeros_like(probs).scatter_(1, ids, ordered)
