"""Answers to a sampling seed do not depend on drafts: SGLang's own sampler, with and without. Needs SGLang."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specplug.adapters.sglang_srt.drafting import Drafts

torch = pytest.importorskip("torch")
sampler_module = pytest.importorskip("sglang.srt.layers.sampler")

from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo  # noqa: E402  it needs torch

from specplug.adapters.sglang_srt.verify import Step, verify  # noqa: E402  it needs torch

pytestmark = pytest.mark.sglang

V, WIDTH = 50, 5
SEQ_LENS = [7, 30]


def make_sampler() -> Any:
    """SGLang's sampler outside of a server, where its constructor asks for process groups."""
    sampler = object.__new__(sampler_module.Sampler)
    torch.nn.Module.__init__(sampler)
    sampler.rl_on_policy_target = None
    sampler.enable_deterministic = False
    sampler.use_log_softmax_logprob = False
    sampler.use_ascend_backend = False
    sampler._sync_token_ids_across_tp = lambda *arguments: None
    return sampler


def sampling_info(rows: int) -> Any:
    fields = {f.name: None for f in dataclasses.fields(SamplingBatchInfo)}
    fields.update(
        temperatures=torch.full((rows, 1), 0.9),
        top_ps=torch.ones(rows),
        top_ks=torch.full((rows,), 1 << 30),
        min_ps=torch.zeros(rows),
        is_all_greedy=False,
        is_any_greedy=False,
        need_top_p_sampling=False,
        need_top_k_sampling=False,
        need_min_p_sampling=False,
        vocab_size=V,
        has_custom_logit_processor=False,
        sampling_seed=torch.arange(11, 11 + rows),
        device="cpu",
    )
    return SamplingBatchInfo(**fields)


def some_hash(seeds: Any, positions: Any, columns: Any) -> Any:
    """In place of SGLang's, which has no CPU operation here: a function of seed, position and token, ``[n, m]``."""
    mixed = seeds.long()[:, None] * 7919 + positions[:, None] * 104_729 + columns * 1_299_709
    return (mixed * 2_654_435_761 // 1024) % (2**32 - 1)


def test_the_answer_to_a_seed_does_not_depend_on_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "murmur_hash32", some_hash)
    torch.manual_seed(0)
    rows = len(SEQ_LENS)
    logits = torch.randn(rows, WIDTH, V) * 2
    sampler, info = make_sampler(), sampling_info(rows)
    # Plain decoding: one position after the other, each at its place in the sequence.
    plain = []
    for place in range(WIDTH):
        output = SimpleNamespace(next_token_logits=logits[:, place].clone())
        positions = torch.tensor(SEQ_LENS) + place
        plain.append(
            sampler_module.Sampler.forward(sampler, output, info, False, [], [], positions)
        )
    answers = torch.stack(plain, 1).tolist()
    # Row 0 drafts what will be said; row 1 is right once and then wrong.
    tokens = np.array([a[: WIDTH - 1] for a in answers], np.int32)
    tokens[1, 1] = (tokens[1, 1] + 1) % V
    lengths = np.array([WIDTH - 1, WIDTH - 1], np.int32)
    params = SimpleNamespace(
        **{"top_k": 1 << 30, "frequency_penalty": 0.0, "presence_penalty": 0.0},
        **{"repetition_penalty": 1.0, "min_new_tokens": 0},
    )
    reqs = [SimpleNamespace(sampling_params=params, origin_input_ids=[0]) for _ in SEQ_LENS]
    batch = SimpleNamespace(reqs=reqs, sampling_info=info, seq_lens=torch.tensor(SEQ_LENS))
    step = Step(
        batch,
        logits.clone(),
        Drafts(tokens, lengths),
        torch.from_numpy(tokens.astype(np.int64)),
        torch.from_numpy(lengths.astype(np.int64)),
        [np.zeros(1, np.int32)] * rows,
    )
    kept = verify(step, lambda *a: sampler_module.Sampler.forward(sampler, *a), "pytorch")
    assert kept.accepted.tolist() == [WIDTH - 1, 1]
    assert kept.tokens[0].tolist() == answers[0]
    assert kept.tokens[1, :2].tolist() == answers[1][:2]
