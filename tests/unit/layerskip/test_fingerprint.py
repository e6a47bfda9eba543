"""What an exit head knows its model by: the same in engines that call and pack weights differently."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from specplug.errors import ExitHeadError
from specplug.layers.fingerprint import common_name, fingerprint

Weight = tuple[str, tuple[int, ...], Callable[[int], np.ndarray]]


def weights(prefix: str = "", **changed: float) -> list[Weight]:
    generator = np.random.default_rng(0)
    names = ["embed_tokens", "norm", "layers.0.self_attn.q_proj", "layers.1.mlp.down_proj"]
    found = []
    for name in [*names, "layers.0.input_layernorm", "layers.0.self_attn.k_norm"]:
        shape = (8,) if "norm" in name else (100, 8)
        array = generator.normal(size=shape).astype(np.float32) + changed.get(
            name.split(".")[-1], 0.0
        )
        found.append((f"{prefix}{name}.weight", shape, lambda rows, array=array: array[:rows]))
    return found


def test_prefix_and_order_do_not_matter() -> None:
    name = fingerprint(weights())
    assert len(name) == 32
    assert fingerprint(weights("model.")[::-1]) == name
    assert fingerprint(weights("language_model.model.")) == name


@pytest.mark.parametrize(
    "changed", ["embed_tokens", "norm", "q_proj", "down_proj", "input_layernorm", "k_norm"]
)
def test_every_kind_of_weight_counts(changed: str) -> None:
    assert fingerprint(weights(**{changed: 1.0})) != fingerprint(weights())


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("model.layers.12.mlp.gate_proj.weight", "layers.12.mlp.gate_proj.weight"),
        (
            "model.layers.3.post_attention_layernorm.weight",
            "layers.3.post_attention_layernorm.weight",
        ),
        ("model.norm.weight", "norm.weight"),
        ("lm_head.weight", ""),  # in the file only if it is not the embedding
        ("model.layers.3.self_attn.k_proj.weight", ""),
        ("model.layers.3.self_attn.q_proj.bias", ""),
        ("vision_tower.encoder.layers.0.self_attn.q_proj.weight", ""),
        ("model.visual.norm.weight", ""),
    ],
)
def test_names(name: str, known: str) -> None:
    assert common_name(name) == known


def test_a_model_of_other_names_is_refused() -> None:
    with pytest.raises(ExitHeadError, match="no weights with the names"):
        fingerprint([("transformer.h.0.attn.c_attn.weight", (2, 2), lambda rows: np.ones((2, 2)))])
