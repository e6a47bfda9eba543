"""Verification of a step on the target's logits, for every platform and every sampling parameter.

SGLang's own verification is greedy on CPU, XPU and HIP whatever the temperature, ignores min-p, and applies the
penalties of the committed text to all draft positions. This one keeps the law of SGLang's own sampler, position by
position; the maths are :mod:`specplug.adapters.sglang_srt.accept` and :mod:`specplug.adapters.sglang_srt.laws`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from specplug.adapters.sglang_srt import accept, laws
from specplug.adapters.sglang_srt.drafting import Drafts
from specplug.adapters.sglang_srt.requests import stop_ids
from specplug.types import TokenArray


class Step(NamedTuple):
    """One verification step.

    Attributes:
        batch: SGLang's ``ScheduleBatch``.
        logits: floats ``[B, w, V]``, a view of the target's output; changed in place, as log-probabilities are
            taken from it afterwards.
        drafts: of the step, on the host, cut to ``w - 1`` columns.
        tokens: int64 ``[B, w - 1]``: the same on the device.
        lengths: int64 ``[B]``: the same on the device.
        histories: all tokens of each row.
        grammar_mask: of SGLang, over ``[B * w]`` positions, or None.
    """

    batch: Any
    logits: Any
    drafts: Drafts
    tokens: Any
    lengths: Any
    histories: Sequence[TokenArray]
    grammar_mask: Any = None


def verify(step: Step, sampler: Any, backend: str) -> accept.Kept:
    """The tokens that the step emits.

    Args:
        step: logits and drafts.
        sampler: SGLang's, used where it draws with seeds.
        backend: name of SGLang's sampling backend, which decides the order of top-k and top-p.
    """
    transform(step)
    return choose(step, sampler, backend)


def transform(step: Step) -> None:
    """Penalties, grammar, bias and custom processors, in place and in SGLang's order."""
    info = step.batch.sampling_info
    for row, req in enumerate(step.batch.reqs):
        penalties = penalties_of(req)
        if penalties is not None:
            n = int(step.drafts.lengths[row])
            output = step.histories[row][len(req.origin_input_ids) :]
            parents = None if step.drafts.parents is None else step.drafts.parents[row, :n]
            draft = step.drafts.tokens[row, :n]
            laws.apply_penalties(step.logits[row, : n + 1], penalties, output, draft, parents)
    rows, width, vocab_size = step.logits.shape
    if step.grammar_mask is not None:
        step.grammar_mask.apply(step.logits.view(rows * width, vocab_size))
    if info.logit_bias is not None:
        step.logits.add_(info.logit_bias[:, None])
    if info.has_custom_logit_processor:
        _custom(step, info)


def penalties_of(req: Any) -> laws.Penalties | None:
    """The penalties of a request, or None if it has none."""
    params = req.sampling_params
    found = laws.Penalties(
        float(params.frequency_penalty),
        float(params.presence_penalty),
        float(params.repetition_penalty),
        int(params.min_new_tokens),
        frozenset(),
    )
    if found == (0.0, 0.0, 1.0, 0, frozenset()):
        return None
    return found._replace(stop_ids=frozenset(stop_ids(req))) if found.min_tokens else found


def _custom(step: Step, info: Any) -> None:
    """Custom processors see the committed tokens, so they are right at the first position, the only one in use."""
    for entry in info.custom_logit_processor.values():
        chosen = step.logits[entry.indices, 0]
        result = entry.processor(chosen, [info.custom_params[row] for row in entry.rows])
        step.logits[entry.indices, 0] = result.to(step.logits.dtype)


def choose(step: Step, sampler: Any, backend: str) -> accept.Kept:
    """Judge the drafts on logits that are ready."""
    import torch

    info = step.batch.sampling_info
    rows, width, _ = step.logits.shape
    device = step.logits.device
    parents = None
    if step.drafts.parents is not None:
        parents = torch.from_numpy(step.drafts.parents).to(device, torch.int64)
    drawn = [i for i, req in enumerate(step.batch.reqs) if int(req.sampling_params.top_k) != 1]
    # SGLang's own flag stays False when the requests that were sampled have left the batch.
    if info.is_all_greedy or not drawn:
        return _compared(step.logits.argmax(2), step, parents)
    if info.sampling_seed is not None:
        return _compared(draw_by_host(step, sampler), step, parents)
    packed = _packed_laws(step, drawn, backend)
    coins = torch.rand(len(drawn), width, dtype=torch.float64, device=device)
    chosen = torch.tensor(drawn, device=device)
    if parents is None:
        part = accept.accept_one_hot(
            packed.laws, packed.starts, step.tokens[chosen], step.lengths[chosen], coins
        )
        if len(drawn) == rows:
            return part
        greedy = _compared(step.logits.argmax(2), step, None)
        greedy.tokens[chosen] = part.tokens
        greedy.accepted[chosen] = part.accepted
        return greedy
    samples = step.logits.argmax(2)
    places = torch.arange(width, device=device)
    used = places <= step.lengths[chosen][:, None]
    drawn_tokens = torch.zeros_like(samples[chosen])
    drawn_tokens[used] = accept.draw(packed.laws.double(), coins[used])
    samples[chosen] = drawn_tokens
    return _compared(samples, step, parents)


def _compared(samples: Any, step: Step, parents: Any) -> accept.Kept:
    if parents is None:
        return accept.accept_by_comparison(samples, step.tokens, step.lengths)
    return accept.accept_tree(samples, step.tokens, parents, step.lengths)


class _Packed(NamedTuple):
    laws: Any
    starts: Any


def _packed_laws(step: Step, drawn: list[int], backend: str) -> _Packed:
    """The laws of the positions in use of the rows that are drawn, one after the other."""
    import torch

    info = step.batch.sampling_info
    width = step.logits.shape[1]
    device = step.logits.device
    counts = step.drafts.lengths[drawn].astype(np.int64) + 1
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    row_of = np.repeat(np.array(drawn, np.int64), counts)
    place_of = np.arange(int(counts.sum())) - np.repeat(starts, counts)
    index = torch.from_numpy(row_of * width + place_of).to(device)
    rows = torch.from_numpy(row_of).to(device)
    params = [step.batch.reqs[i].sampling_params for i in drawn]
    vocab_size = step.logits.shape[2]
    filtered = any(p.top_k < vocab_size or p.top_p < 1.0 or p.min_p > 0.0 for p in params)
    filters = laws.Filters(
        info.temperatures[rows, 0], info.top_ks[rows], info.top_ps[rows], info.min_ps[rows]
    )
    # FlashInfer's fused sampler looks at the whole law for both; with min-p SGLang renormalises step by step.
    renormalise = backend != "pytorch" and bool(info.need_min_p_sampling)
    chosen = step.logits.reshape(-1, vocab_size)[index]
    made = laws.laws(chosen, filters, renormalise=renormalise, filtered=filtered)
    return _Packed(made, torch.from_numpy(starts.astype(np.int64)).to(device))


def draw_by_host(step: Step, sampler: Any) -> Any:
    """Every position drawn by SGLang's own sampler, int64 ``[B, w]``, on logits that are ready (and stay as they are).

    In deterministic mode its coins are a function of seed and position, the one that plain decoding would use there,
    so the answer to a seed does not depend on the drafts.
    """
    import torch
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput

    info = step.batch.sampling_info
    rows, width, vocab_size = step.logits.shape
    repeated = {
        name: getattr(info, name).repeat_interleave(width, 0)
        for name in ("temperatures", "top_ks", "top_ps", "min_ps", "sampling_seed")
        if getattr(info, name) is not None
    }
    wide = dataclasses.replace(
        info, has_custom_logit_processor=False, sampling_mask_batch_indices=None, **repeated
    )
    output = LogitsProcessorOutput(next_token_logits=step.logits.reshape(-1, vocab_size).clone())
    places = torch.arange(width, device=step.logits.device)
    positions = (step.batch.seq_lens[:, None] + places).flatten()
    samples = sampler(output, wide, False, [], [], positions)
    return samples.view(rows, width).long()
