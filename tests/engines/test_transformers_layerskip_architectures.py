"""Layer skipping with transformers on tiny random models of many architectures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specplug.adapters.transformers_hf import Decoder, SelfSpeculation
from specplug.errors import SkipPlanError
from specplug.layers.plan import Plan
from specplug.layers.policy import LayerPolicy
from specplug.proposers.layerskip.clasp import Clasp
from specplug.proposers.layerskip.conflayers import ConfLayers
from specplug.proposers.layerskip.early_exit import EarlyExit, Fixed
from specplug.proposers.layerskip.stopping import Always
from specplug.proposers.layerskip.swift import Swift

from .architectures import FAMILIES, LAYERS, RECURRENT, VOCABULARY, build

PROMPT = np.random.default_rng(1).integers(3, VOCABULARY, 40).tolist()
TOKENS = 40
#: By what is wrong; the others draft.
REFUSED = {
    "opt": "has no MLP among mlp",
    "bloom": "changes its states although its attention and its MLP add nothing",
    "gemma2": "sliding windows cannot",
    "gemma3_text": "sliding windows cannot",
    "cohere2": "sliding windows cannot",
    "gpt_oss": "sublayers return other things",
}
#: Layers that are unlike Llama's, each in its own way; the others take longer together than these are worth every time.
ALWAYS = ("falcon", "gpt2")
RECURRENT_REFUSED = {
    name: "no list of decoder layers" if name == "lfm2" else "keeps recurrent state"
    for name in RECURRENT
}


@pytest.mark.parametrize(
    "name",
    [
        name if name in ALWAYS else pytest.param(name, marks=pytest.mark.long)
        for name in FAMILIES
        if name not in REFUSED
    ],
)
def test_every_policy_leaves_the_answer_as_it_is(name: str) -> None:
    torch = pytest.importorskip("torch")
    model = build(FAMILIES[name])
    decoder = Decoder(model)
    ids = torch.tensor([PROMPT])
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(ids, max_new_tokens=TOKENS, **options)[0, len(PROMPT) :].tolist()
    policies: list[LayerPolicy] = [
        EarlyExit(LAYERS, LAYERS - 1),
        Fixed(Plan.skipping(LAYERS, attention=[2], mlp=[3])),
        Clasp(LAYERS, 1),
        Swift(LAYERS),
        ConfLayers(LAYERS),
    ]
    for policy in policies:
        report = SelfSpeculation(decoder, policy, Always()).generate(PROMPT, max_new_tokens=TOKENS)
        assert report.tokens == expected, policy
        assert report.accepted > 0, policy


@pytest.mark.parametrize("name", [*REFUSED, *RECURRENT])
def test_what_cannot_be_left_out_or_rolled_back_is_refused(name: str) -> None:
    pytest.importorskip("torch")
    reason = {**REFUSED, **RECURRENT_REFUSED}[name]
    with pytest.raises(SkipPlanError, match=reason):
        Decoder(build({**FAMILIES, **RECURRENT}[name]))


def llava(tower: int) -> Any:
    """Text of two layers behind a tower for images of ``tower`` layers."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            **sizes, num_hidden_layers=tower, image_size=28, patch_size=14
        ),
        text_config=transformers.LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=64),
        image_token_index=63,
    )
    return transformers.LlavaForConditionalGeneration(config)


def test_a_tower_for_images_that_is_deeper_than_the_text_is_not_taken_for_it() -> None:
    decoder = Decoder(llava(tower=5))
    assert decoder.layers == 2


def test_a_layer_that_is_given_more_than_is_known_is_refused_before_it_is_run_alone() -> None:
    """With ALiBi each layer needs a bias that depends on the position, and CLaSp died in the middle of an answer."""
    pytest.importorskip("torch")
    falcon = FAMILIES["falcon"]
    changed = {"new_decoder_architecture": False, "multi_query": True, "alibi": True}
    with pytest.raises(SkipPlanError, match=r"its layers are given \['alibi'\]"):
        Decoder(build(falcon._replace(more={**falcon.more, **changed})))


def test_padding_whose_embedding_is_zero_does_not_hide_what_a_layer_does() -> None:
    """From zeros everything seems to add nothing."""
    torch = pytest.importorskip("torch")
    model = build(FAMILIES["bloom"])
    with torch.no_grad():
        model.get_input_embeddings().weight[0] = 0.0
    with pytest.raises(SkipPlanError, match="changes its states although"):
        Decoder(model)
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(SkipPlanError, match="changes its states although"):
        Decoder(model)
