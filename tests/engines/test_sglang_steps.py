"""Whole verification steps of the SGLang adapter on stand-in batches: mixed requests, trees, the law. Needs torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specplug.adapters.sglang_srt.drafting import Drafts
from specplug.verify import SGLANG, Past, SamplingParams, target_probs

torch = pytest.importorskip("torch")

from specplug.adapters.sglang_srt import laws  # noqa: E402  torch first: without it there is nothing to test
from specplug.adapters.sglang_srt.verify import Step, verify  # noqa: E402

pytestmark = pytest.mark.sglang

V = 6
ALL = 1 << 30
#: Chi-square statistics above this have p < 1e-6 for up to 40 degrees of freedom; all seeds are fixed.
BOUND = 100.0


def make_step(
    logits: Any, drafts: list[list[int]], params: list[dict[str, Any]], **more: Any
) -> Step:
    """A batch of requests with the prompt (0,) and the output of ``more['outputs']``; logits are ``[B, w, V]``."""
    rows, width, _ = logits.shape
    tokens = np.zeros((rows, width - 1), np.int32)
    lengths = np.array([len(d) for d in drafts], np.int32)
    for row, draft in enumerate(drafts):
        tokens[row, : len(draft)] = draft
    outputs = more.get("outputs", [[1]] * rows)
    base = {"top_k": ALL, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0, "min_new_tokens": 0}
    none = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
    all_params = [SimpleNamespace(**{**base, **none, "stop_token_ids": {5}, **p}) for p in params]
    reqs = [SimpleNamespace(origin_input_ids=[0], sampling_params=p) for p in all_params]
    info = SimpleNamespace(
        temperatures=torch.tensor([[p.temperature] for p in all_params]),
        top_ks=torch.tensor([p.top_k for p in all_params]),
        top_ps=torch.tensor([p.top_p for p in all_params]),
        min_ps=torch.tensor([p.min_p for p in all_params]),
        is_all_greedy=all(p.top_k == 1 for p in all_params),
        need_min_p_sampling=any(p.min_p > 0 for p in all_params),
        sampling_seed=None,
        logit_bias=more.get("bias"),
        has_custom_logit_processor="processors" in more,
        custom_logit_processor=more.get("processors"),
        custom_params=[None] * rows,
    )
    parents = more.get("parents")
    return Step(
        SimpleNamespace(reqs=reqs, sampling_info=info),
        torch.tensor(logits, dtype=torch.float32),
        Drafts(tokens, lengths, None if parents is None else np.array(parents, np.int32)),
        torch.from_numpy(tokens.astype(np.int64)),
        torch.from_numpy(lengths.astype(np.int64)),
        [np.array([0, *o], np.int32) for o in outputs],
        more.get("mask"),
    )


def emitted(step: Step) -> list[list[int]]:
    kept = verify(step, None, "pytorch")
    return [t[: n + 1] for t, n in zip(kept.tokens.tolist(), kept.accepted.tolist(), strict=True)]


def peaked(*best: int) -> Any:
    logits = np.zeros((len(best), V), np.float32)
    logits[np.arange(len(best)), best] = 9.0
    return logits


def test_greedy_and_sampled_requests_share_a_batch() -> None:
    logits = np.stack([peaked(2, 3, 4)] * 3)
    drafts = [[2, 3], [2, 5], []]
    params = [{"top_k": 1}, {"temperature": 0.01}, {"top_k": 1}]
    assert emitted(make_step(logits, drafts, params)) == [[2, 3, 4], [2, 3], [2]]


def test_greedy_requests_left_behind_by_sampled_ones() -> None:
    """SGLang goes on to say that not all are greedy, though the others have left."""
    step = make_step(np.stack([peaked(2, 3)]), [[2]], [{"top_k": 1}])
    step.batch.sampling_info.is_all_greedy = False
    assert emitted(step) == [[2, 3]]


def test_penalties_see_the_drafts_before_them() -> None:
    # 2 wins everywhere by less than the penalty: without it all drafts would be kept.
    logits = np.zeros((1, 3, V), np.float32)
    logits[..., 2], logits[..., 3] = 2.0, 1.5
    step = make_step(logits, [[2, 2]], [{"top_k": 1, "presence_penalty": 1.0}])
    assert emitted(step) == [[2, 3]]
    step = make_step(logits, [[2, 2]], [{"top_k": 1, "repetition_penalty": 1.5}])
    assert emitted(step) == [[2, 3]]
    assert emitted(make_step(logits, [[2, 2]], [{"top_k": 1}])) == [[2, 2, 2]]


def test_ends_are_banned_until_the_output_is_long_enough() -> None:
    logits = np.stack([peaked(5, 5, 5, 5)])
    logits[..., 1] = 1.0
    step = make_step(logits, [[1, 1, 1]], [{"top_k": 1, "min_new_tokens": 3}])
    assert emitted(step) == [[1, 1, 5]], "the output has one token already"


def test_bias_and_grammar_hold_at_every_position() -> None:
    logits = np.stack([peaked(2, 2, 2)])
    bias = torch.zeros(1, V)
    bias[0, 3] = 20.0
    assert emitted(make_step(logits, [[3, 2]], [{"top_k": 1}], bias=bias)) == [[3, 3]]

    class Mask:
        def apply(self, flat: Any) -> None:
            flat[1, 2] = -float("inf")
            flat[1, 4] += 1.0

    step = make_step(logits, [[2, 2]], [{"top_k": 1}], mask=Mask())
    assert emitted(step) == [[2, 4]]


def test_custom_processors_are_applied_to_their_requests() -> None:
    def force(chosen: Any, params: list[Any]) -> Any:
        assert len(params) == 1
        return chosen * 0 + torch.nn.functional.one_hot(torch.tensor(4), V)

    entry = SimpleNamespace(rows=[1], indices=torch.tensor([1]), processor=force)
    step = make_step(
        np.stack([peaked(2, 3), peaked(2, 3)]),
        [[2], []],
        [{"top_k": 1}] * 2,
        processors={0: entry},
    )
    assert emitted(step) == [[2, 3], [4]]


SETTINGS = {
    "temperature": {"temperature": 1.3},
    "top-p": {"top_p": 0.8},
    "top-k": {"top_k": 3},
    "min-p": {"min_p": 0.3, "temperature": 1.5},
    "penalties": {"frequency_penalty": 0.9, "repetition_penalty": 1.4},
    "all": {"top_k": 4, "top_p": 0.9, "min_p": 0.1, "presence_penalty": 0.5, "min_new_tokens": 2},
}
SAME_NAME = {"min_new_tokens": "min_tokens"}


def exact_pairs(logits: Any, nodes: list[int], parents: list[int], params: Any) -> Any:
    """The law of the first two tokens, ``[V, V]``, where the second position exists; first-token law ``[V]``."""
    named = {SAME_NAME.get(k, k): v for k, v in params.items()}
    sampling = SamplingParams(**named, stop_token_ids=frozenset({5}))
    n = len(nodes)
    return target_probs(
        logits[None].astype(np.float64),
        [sampling],
        [Past([0], [1])],
        np.array([nodes]),
        [n],
        parents=np.array([parents]),
        order=SGLANG,
    )[0]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("trees", [False, True], ids=["chain", "tree"])
def test_the_law_of_the_output_is_the_samplers(name: str, trees: bool) -> None:
    """5,000 rows; the first token by its law, the second by its law given the first, wherever there was one."""
    torch.manual_seed(3)
    rng = np.random.default_rng(3)
    rows, params = 5_000, SETTINGS[name]
    nodes = [2, 3, 1] if trees else [2, 1, 4]
    parents = [-1, -1, 0] if trees else [-1, 0, 1]
    logits = rng.normal(0, 1, (4, V)).astype(np.float32)
    law = exact_pairs(logits, nodes, parents, params)
    step = make_step(
        np.repeat(logits[None], rows, 0),
        [nodes] * rows,
        [params] * rows,
        parents=[parents] * rows if trees else None,
    )
    found = emitted(step)
    firsts = np.bincount([e[0] for e in found], minlength=V)
    assert chi_square(firsts, law[0]) < BOUND
    for node, parent in enumerate(parents):
        if parent != -1:
            continue
        after = [e for e in found if e[0] == nodes[node]]
        assert all(len(e) >= 2 for e in after), "a sampled child must be followed"
        seconds = np.bincount([e[1] for e in after], minlength=V)
        assert chi_square(seconds, law[node + 1]) < BOUND


def chi_square(counts: Any, law: Any) -> float:
    expected = law * counts.sum()
    assert not counts[expected < 1e-12].any(), "a token of probability zero came out"
    used = expected > 0
    return float(((counts - expected)[used] ** 2 / expected[used]).sum())


def test_a_wrong_law_is_noticed() -> None:
    """The same statistic, on the law of a verification that forgets temperature."""
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.normal(0, 1, (1, V)).astype(np.float32))
    one = torch.ones(1)
    right = laws.laws(
        logits,
        laws.Filters(one * 1.3, torch.tensor([ALL]), one, 0 * one),
        renormalise=False,
        filtered=False,
    )
    counts = np.round(torch.softmax(logits, 1).numpy()[0] * 5_000)
    assert chi_square(counts, right.numpy()[0].astype(np.float64)) > BOUND
