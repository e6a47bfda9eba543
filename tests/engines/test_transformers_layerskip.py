"""Self-speculative decoding with transformers on tiny random models: the law of the output, exactly.

The models are in float64, so that a pass over one token and one over several differ by rounding far below the bound of
the kit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from specplug import verify
from specplug.adapters.transformers_hf import Decoder, SelfSpeculation, TextDrafts
from specplug.errors import InvalidRequestError, SkipPlanError, UnknownProposerError
from specplug.layers.exit_head import ExitHead
from specplug.layers.plan import Plan
from specplug.layers.policy import LayerPolicy, StopRule
from specplug.proposers.layerskip.clasp import Clasp
from specplug.proposers.layerskip.conflayers import ConfLayers, ConfLayersOptions
from specplug.proposers.layerskip.early_exit import EarlyExit, Fixed
from specplug.proposers.layerskip.stopping import Always, Paying, Threshold
from specplug.proposers.layerskip.swift import Swift, SwiftOptions
from specplug.reference.enumerate_law import plain_law, side_by_side, total_variation
from specplug.testing.cells import emitted_cells
from specplug.testing.paths import Oracle, explore
from specplug.testing.targets import DraftRow
from specplug.testing.verifiers import GREEDY, SAMPLED
from specplug.types import TOKEN_DTYPE

pytestmark = pytest.mark.vllm  # torch and transformers are in vLLM's environment

VOCAB = 3
LAYERS = 3
PROMPT = (1, 2, 0)

Policies = dict[str, Callable[[], LayerPolicy]]

POLICIES: Policies = {
    "early exit": lambda: EarlyExit(LAYERS, 2),
    "whole model": lambda: Fixed(Plan.full(LAYERS)),
    "sublayers": lambda: Fixed(Plan.skipping(LAYERS, attention=[1], mlp=[0, 2])),
    "swift": lambda: Swift(LAYERS, SwiftOptions(ratio=0.5, random_trials=2, good_enough=9.0)),
    "clasp": lambda: Clasp(LAYERS, 1, interval=1),
    "conflayers": lambda: ConfLayers(LAYERS, ConfLayersOptions(interval=1)),
}


def tiny(kind: str = "Llama", vocab: int = VOCAB, layers: int = LAYERS, **changed: Any) -> Any:
    import torch
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.6,
        pad_token_id=None,
        bos_token_id=0,
        eos_token_id=None,
        **changed,
    )
    torch.manual_seed(7)
    return getattr(transformers, f"{kind}ForCausalLM")(config).double()


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(tiny())


def next_law(decoder: Decoder, params: verify.SamplingParams) -> Callable[[tuple[int, ...]], Any]:
    """Plain decoding: every history from scratch."""
    known: dict[tuple[int, ...], Any] = {}

    def law(history: tuple[int, ...]) -> Any:
        if history not in known:
            logits = decoder.logits(history, decoder.new_cache())[None, -1:]
            past = verify.Past(history[: len(PROMPT)], history[len(PROMPT) :])
            none = np.zeros((1, 0), TOKEN_DTYPE)
            known[history] = verify.target_probs(logits, [params], [past], none, [0])[0, 0]
        return known[history]

    return law


def output_law(
    decoder: Decoder,
    policy: Callable[[], LayerPolicy],
    stop: Callable[[], StopRule],
    params: verify.SamplingParams,
    limit: int,
) -> dict[tuple[int, ...], float]:
    """Every path through the real loop; the real kernels judge each draft, in all of their decisions."""
    greedy = params == verify.SamplingParams(temperature=0.0)
    known: dict[Any, Any] = {}

    def run(oracle: Oracle) -> tuple[int, ...]:
        def judge(target: Any, laws: Any, drafts: list[int]) -> list[int]:
            key = (target.tobytes(), laws.tobytes(), tuple(drafts))
            if key not in known:
                row = DraftRow(np.array(drafts, TOKEN_DTYPE), None, None if greedy else laws)
                known[key] = emitted_cells(GREEDY if greedy else SAMPLED, target, row)
            cells = known[key]
            return list(list(cells)[oracle.choose(list(cells.values()))])

        engine = SelfSpeculation(decoder, policy(), stop(), max_draft=2)
        done = engine.generate(
            PROMPT, limit, params, draw=lambda law: oracle.choose(law.tolist()), judge=judge
        )
        return tuple(done.tokens)

    return explore(run)


RULES: dict[str, Callable[[], StopRule]] = {
    "always": Always,
    "threshold": lambda: Threshold(0.5, step=0.2),
    "paying": lambda: Paying(0.2),
}
CASES = [
    (name, rule)
    for name in POLICIES
    for rule in (RULES if name in ("early exit", "sublayers") else ["always"])
]


@pytest.mark.parametrize(("name", "rule"), CASES)
def test_the_law_of_the_output_is_that_of_plain_sampling(
    decoder: Decoder, name: str, rule: str
) -> None:
    """Within 1e-12 in total variation, over all outputs, through cache, cropping, policy and all."""
    params = verify.SamplingParams(temperature=0.8, repetition_penalty=1.2)
    got = output_law(decoder, POLICIES[name], RULES[rule], params, 3)
    expected = plain_law(next_law(decoder, params), PROMPT, 3)
    assert len(expected) == VOCAB**3
    assert total_variation(got, expected) < 1e-12, side_by_side(expected, got)


def test_text_comes_first_and_does_not_change_the_law(decoder: Decoder) -> None:
    """Drafts from the suffix index where it has any, from the model where not, in one sequence."""
    params = verify.SamplingParams(temperature=0.7)
    prompt = (0, 1)
    drafted = np.zeros(2, int)
    known: dict[Any, Any] = {}

    def run(oracle: Oracle) -> tuple[int, ...]:
        def judge(target: Any, laws: Any, drafts: list[int]) -> list[int]:
            key = (target.tobytes(), laws.tobytes(), tuple(drafts))
            if key not in known:
                row = DraftRow(np.array(drafts, TOKEN_DTYPE), None, laws)
                known[key] = emitted_cells(SAMPLED, target, row)
            return list(list(known[key])[oracle.choose(list(known[key].values()))])

        text = TextDrafts(decoder, "suffix", {"store_mb": 0}, 2)
        engine = SelfSpeculation(decoder, EarlyExit(LAYERS, 1), Always(), max_draft=2, text=text)
        done = engine.generate(
            prompt, 3, params, draw=lambda law: oracle.choose(law.tolist()), judge=judge
        )
        drafted[:] += done.drafted, done.text_drafted
        return tuple(done.tokens)

    got = explore(run)
    expected = plain_law(next_law(decoder, params), prompt, 3)
    assert total_variation(got, expected) < 1e-12, side_by_side(expected, got)
    assert drafted.all(), "both sources drafted somewhere"


def test_text_of_one_sequence_serves_the_next(larger: Decoder) -> None:
    text = TextDrafts(larger)
    engine = SelfSpeculation(larger, EarlyExit(6, 2), Always(), text=text)
    first = engine.generate([1, 2, 3, 4], 30)
    second = engine.generate([1, 2, 3, 4], 30)
    plain = SelfSpeculation(larger, Fixed(Plan.full(6)), Always(), max_draft=0)
    assert first.tokens == second.tokens == plain.generate([1, 2, 3, 4], 30).tokens
    assert second.text_accepted > 20
    assert second.steps < 8
    with pytest.raises(UnknownProposerError, match=r"unknown proposer 'specplug\.sufix'"):
        TextDrafts(larger, "sufix")


def test_a_rule_that_sees_the_drawn_token_is_caught(decoder: Decoder) -> None:
    """The proof can fail: a token that came out unlikely ends the draft before it, which the rule forbids."""
    params = verify.SamplingParams(temperature=1.0)

    engine_law = _peeking_law(decoder, params)
    expected = plain_law(next_law(decoder, params), PROMPT, 2)
    assert total_variation(engine_law, expected) > 1e-3


def _peeking_law(decoder: Decoder, params: verify.SamplingParams) -> dict[tuple[int, ...], float]:
    def run(oracle: Oracle) -> tuple[int, ...]:
        drawn: list[Any] = []

        def draw(law: Any) -> int:
            token = oracle.choose(law.tolist())
            drawn.append(law[token])
            return token

        def judge(target: Any, laws: Any, drafts: list[int]) -> list[int]:
            count = next((i for i, chance in enumerate(drawn) if chance < 0.3), len(drafts))
            drawn.clear()
            row = DraftRow(np.array(drafts[:count], TOKEN_DTYPE), None, laws[:count])
            cells = emitted_cells(SAMPLED, target[: count + 1], row)
            return list(list(cells)[oracle.choose(list(cells.values()))])

        engine = SelfSpeculation(decoder, EarlyExit(LAYERS, 2), Always(), max_draft=2)
        return tuple(engine.generate(PROMPT, 2, params, draw=draw, judge=judge).tokens)

    return explore(run)


@pytest.fixture(scope="module")
def larger() -> Decoder:
    return Decoder(tiny(vocab=50, layers=6))


@pytest.mark.parametrize("name", list(POLICIES))
def test_greedy_output_is_that_of_generate(larger: Decoder, name: str) -> None:
    import torch

    build: Policies = {
        "early exit": lambda: EarlyExit(6, 3),
        "whole model": lambda: Fixed(Plan.full(6)),
        "sublayers": lambda: Fixed(Plan.skipping(6, attention=[1, 3], mlp=[0, 2])),
        "swift": lambda: Swift(6),
        "clasp": lambda: Clasp(6, 2, interval=2),
        "conflayers": lambda: ConfLayers(6, ConfLayersOptions(interval=1)),
    }
    accepted = 0
    for seed in range(4):
        prompt = np.random.default_rng(seed).integers(0, 50, 1 + 4 * seed).tolist()
        plain = larger.model.generate(
            torch.tensor([prompt]), max_new_tokens=24, do_sample=False, pad_token_id=0
        )
        report = SelfSpeculation(larger, build[name](), Always(), max_draft=5).generate(prompt, 24)
        assert report.tokens == plain[0, len(prompt) :].tolist()
        assert len(report.tokens) == report.steps + report.accepted == 24
        accepted += report.accepted
    if name == "whole model":
        assert accepted >= 4 * 19, "drafts of the whole model are all right"


def test_a_run_is_the_same_for_the_same_seed(larger: Decoder) -> None:
    params = verify.SamplingParams(temperature=1.0, top_p=0.9)
    engine = SelfSpeculation(larger, EarlyExit(6, 3), Always())
    runs = [engine.generate([1, 2], 20, params, seed=seed).tokens for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("limit", [24, 25, 26, 27, 28])
def test_the_end_of_one_answer_does_not_stop_drafts_of_the_next(
    larger: Decoder, limit: int
) -> None:
    """With one token left nothing can be drafted."""
    rule = Paying(0.1)
    engine = SelfSpeculation(larger, Fixed(Plan.full(6)), rule, max_draft=3)
    drafted = [engine.generate([1, 2, 3], limit).drafted_steps for _ in range(4)]
    # What was learned moves the ends of drafts by a step.
    assert min(drafted) >= drafted[0] - 1 > 0
    assert rule.paused == 0


def test_the_output_ends_at_a_stop_token_in_the_middle_of_a_step(larger: Decoder) -> None:
    engine = SelfSpeculation(larger, Fixed(Plan.full(6)), Always(), max_draft=8)
    full = engine.generate([1, 2, 3], 20).tokens
    token = full[4]
    cut = engine.generate([1, 2, 3], 20, stop_token_ids=[token]).tokens
    assert cut == full[: full.index(token) + 1]


def test_a_pass_leaves_the_model_as_it_was(larger: Decoder) -> None:
    before = larger.logits([1, 2, 3], larger.new_cache())
    forwards = [dict(module.__dict__) for module in larger.model.modules()]
    head = ExitHead(2, (np.ones((16, 16)),), np.ones(16))
    with larger.running(Plan.early_exit(6, 2), head):
        assert not np.allclose(larger.logits([1, 2, 3], larger.new_cache()), before)
    with pytest.raises(IndexError), larger.running(Plan.early_exit(6, 2), head):
        larger.logits([50], larger.new_cache())
    assert [dict(module.__dict__) for module in larger.model.modules()] == forwards
    assert np.array_equal(larger.logits([1, 2, 3], larger.new_cache()), before)


def test_skipping_is_what_it_says(larger: Decoder) -> None:
    """By hand: the residual stream without the sublayers that are left out."""
    import torch

    plan = Plan.skipping(6, attention=[2, 4], mlp=[1, 4])
    model, tokens = larger.model, [5, 6, 7]
    with torch.inference_mode():
        hidden = model.model.embed_tokens(torch.tensor([tokens]))
        angles = model.model.rotary_emb(hidden, torch.arange(3)[None])
        mask = torch.full((1, 1, 3, 3), -torch.inf, dtype=hidden.dtype).triu(1)
        for layer, block in enumerate(model.model.layers):
            if plan.attention[layer]:
                out = block.self_attn(
                    block.input_layernorm(hidden), position_embeddings=angles, attention_mask=mask
                )
                hidden = hidden + out[0]
            if plan.mlp[layer]:
                hidden = hidden + block.mlp(block.post_attention_layernorm(hidden))
        expected = model.lm_head(model.model.norm(hidden))[0].numpy()
    with larger.running(plan):
        got = larger.logits(tokens, larger.new_cache())
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_one_layer_at_one_position_is_what_the_model_computes(larger: Decoder) -> None:
    """What CLaSp asks for: with the model's own states, every layer gives the model's own next state."""
    cache, tokens = larger.new_cache(), [3, 1, 4, 1, 5]
    with larger.watching_inputs() as first, larger.watching(larger.blocks) as seen:
        larger.logits(tokens, cache)
    states = [states[-1] for states in (*first, *seen)]
    for layer in range(6):
        twice = larger.run_layer(layer, states[layer][None].repeat(2, 1), cache, 4)
        np.testing.assert_allclose(twice[0].numpy(), states[layer + 1].numpy(), atol=1e-12)
        np.testing.assert_allclose(twice[1].numpy(), states[layer + 1].numpy(), atol=1e-12)
    assert cache.get_seq_length() == 5


@pytest.mark.parametrize("kind", ["Qwen2", "Qwen3", "Olmo2", "Granite", "Phi3", "Glm"])
def test_other_decoder_stacks_are_taken_apart_too(kind: str) -> None:
    model = tiny(kind, vocab=50)
    prompt = [7, 8, 9]
    plain = SelfSpeculation(model, Fixed(Plan.full(LAYERS)), Always(), max_draft=0).generate(
        prompt, 12
    )
    for policy in (EarlyExit(LAYERS, 2), Clasp(LAYERS, 1, interval=1), POLICIES["sublayers"]()):
        report = SelfSpeculation(model, policy, Always()).generate(prompt, 12)
        assert report.tokens == plain.tokens
        assert report.drafted > 0


def refused() -> Iterator[tuple[str, dict[str, Any], str]]:
    yield "Mistral", {"sliding_window": 8}, "cannot be rolled back"
    yield "Mamba", {}, "keeps recurrent state"


@pytest.mark.parametrize(
    ("kind", "changed", "message"), list(refused()), ids=lambda value: str(value)[:8]
)
def test_models_that_cannot_roll_back_are_refused(
    kind: str, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(SkipPlanError, match=message):
        Decoder(tiny(kind, **changed))


def test_what_does_not_fit_is_refused(larger: Decoder) -> None:
    with pytest.raises(SkipPlanError, match="the policy is for 4 layers, LlamaForCausalLM has 6"):
        SelfSpeculation(larger, EarlyExit(4, 2), Always())
    with pytest.raises(SkipPlanError, match="max_draft must be at least 0, got -1"):
        SelfSpeculation(larger, EarlyExit(6, 2), Always(), max_draft=-1)
    engine = SelfSpeculation(larger, EarlyExit(6, 2), Always())
    with pytest.raises(InvalidRequestError, match="the prompt is empty"):
        engine.generate([], 3)
    with pytest.raises(InvalidRequestError, match="holds id 50, the model's ids are 0 to 49"):
        engine.generate([1, 50], 3)
    with pytest.raises(InvalidRequestError, match="max_new_tokens must be at least 1, got 0"):
        engine.generate([1], 0)
