"""Our sampling transformations in SGLang's order give the laws that SGLang's own code gives, on random logits.

No model and no engine: SGLang's penalizers and its PyTorch sampler are called by themselves, additive penalties before
the repetition penalty, as its scheduler does when it overlaps steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specplug.verify.params import SGLANG, Order

from .sampling_cases import EACH, ROWS, VOCABULARY, Batch, assert_same, batch

pytestmark = pytest.mark.sglang

#: Far below what any sampling could show.
NEGLIGIBLE = 1e-6
#: It has no bad words.
NAMES = [name for name in EACH if name != "bad_words"]
#: Neighbours in SGLang's order that do not commute.
NEIGHBOURS = [
    ("presence", "repetition"),
    ("repetition", "bias"),
    ("bias", "temperature"),
    ("temperature", "top_p"),
    ("top_p", "top_k"),
]


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    """The same operations without torch's compiler, which takes half a minute to start."""
    import torch

    before, torch._dynamo.config.disable = torch._dynamo.config.disable, True
    yield
    torch._dynamo.config.disable = before


@dataclass(eq=False)  # a SimpleNamespace cannot be referred to weakly
class OneRequest:
    """A batch, as far as the penalizers look at it."""

    reqs: list[Any]
    device: str = "cpu"


def request_of(case: Batch, row: int) -> OneRequest:
    """One row as a batch of its own."""
    p = case.params[row]
    params = SimpleNamespace(
        frequency_penalty=p.frequency_penalty,
        presence_penalty=p.presence_penalty,
        repetition_penalty=p.repetition_penalty,
        min_new_tokens=p.min_tokens,
        stop_token_ids=set(p.stop_token_ids),
    )
    tokenizer = SimpleNamespace(additional_stop_token_ids=None, eos_token_id=None)
    request = SimpleNamespace(sampling_params=params, eos_token_ids=None, tokenizer=tokenizer)
    return OneRequest([request])


def host_law(case: Batch, row: int) -> np.ndarray:
    """SGLang's law of one token."""
    import torch
    from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch
    from sglang.srt.sampling import penaltylib
    from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties

    p, held = case.params[row], request_of(case, row)
    orchestrator = penaltylib.BatchedPenalizerOrchestrator(
        vocab_size=VOCABULARY,
        batch=held,
        penalizers={
            penaltylib.BatchedFrequencyPenalizer,
            penaltylib.BatchedMinNewTokensPenalizer,
            penaltylib.BatchedPresencePenalizer,
            penaltylib.BatchedRepetitionPenalizer,
        },
    )
    for token in case.pasts[row].output:
        orchestrator.cumulate_output_tokens(torch.tensor([token]))
    logits = torch.tensor(case.logits[row, :1])
    additive = torch.zeros_like(logits)
    orchestrator.accumulate_additive_penalties(additive)
    logits.add_(additive)
    scaling = orchestrator.accumulate_scaling_penalties()
    if scaling is not None:
        apply_scaling_penalties(logits, scaling)
    if case.forbidden is not None:
        logits.masked_fill_(torch.tensor(case.forbidden[row]), float("-inf"))
    bias = torch.zeros_like(logits)
    for token, value in p.logit_bias.items():
        bias[0, token] = float(value)
    logits.add_(bias).div_(p.temperature)
    _, kept, ids, _ = top_k_top_p_min_p_sampling_from_probs_torch(
        torch.softmax(logits, dim=-1),
        torch.tensor([p.top_k or VOCABULARY]),
        torch.tensor([float(p.top_p)]),
        torch.tensor([float(p.min_p)]),
        p.min_p > 0,
        None,
        torch.zeros(1),
        return_filtered_probs=True,
    )
    law = torch.zeros_like(kept).scatter_(1, ids.long(), kept / kept.sum())
    found: np.ndarray = law[0].numpy()
    return found


def distance(case: Batch) -> float:
    """The largest total variation distance of any row."""
    rows = range(ROWS)
    return max(float(np.abs(case.law[r, 0] - host_law(case, r)).sum()) / 2 for r in rows)


@pytest.mark.parametrize(
    "names",
    [*([n] for n in NAMES), *map(list, NEIGHBOURS), ["grammar"], [*NAMES, "grammar"]],
    ids="+".join,
)
def test_plain_decoding(names: list[str]) -> None:
    for seed in range(8 if len(names) > 2 else 2):
        case = batch(np.random.default_rng(seed), names, 0, SGLANG)
        for row in range(ROWS):
            ours, host = case.law[row, 0].copy(), host_law(case, row)
            # Its float32 sums go a little above 1, so that even a top-p of 1 cuts the least likely token now and then.
            ours[(host == 0) & (ours < NEGLIGIBLE)] = 0.0
            assert_same(ours, host, case, row)


@pytest.mark.parametrize("pair", NEIGHBOURS, ids="-".join)
def test_another_order_would_show(pair: tuple[str, str]) -> None:
    steps = [step for step in SGLANG.steps if step not in ("bad_words", "grammar")]
    first = steps.index(pair[0])
    steps[first : first + 2] = steps[first + 1], steps[first]
    order = Order("exchanged", (*steps, "bad_words", "grammar"), repetition_sees_prompt=False)
    assert distance(batch(np.random.default_rng(0), list(pair), 0, order)) > 0.01


def test_repetition_does_not_count_the_prompt() -> None:
    order = replace(SGLANG, repetition_sees_prompt=True)
    assert distance(batch(np.random.default_rng(0), ["repetition"], 0, order)) > 0.01
