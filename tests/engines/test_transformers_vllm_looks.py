"""How vLLM's layers are taken apart, on modules of torch that stand in for its models: no engine starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from specplug.adapters.vllm_v1 import looking  # noqa: E402  needs torch
from specplug.adapters.vllm_v1.sublayers import Call  # noqa: E402
from specplug.errors import SkipPlanError  # noqa: E402

LAYERS, SIZE = 4, 8


class Part(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A sublayer; ``whole`` adds what it was given, as BLOOM's MLP does."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.linear, self.whole = torch.nn.Linear(SIZE, SIZE), whole

    def forward(self, hidden_states: Any, residual: Any = None) -> Any:
        found = self.linear(hidden_states)
        return found + residual if self.whole else found


class Layer(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """``alone`` gives a state, ``pair`` a state and a residual, ``three`` what the next needs; ``whole``: see above."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.self_attn, self.mlp, self.kind = Part(), Part(kind == "whole"), kind

    def forward(
        self, positions: Any, hidden_states: Any, residual: Any = None, scale: Any = None
    ) -> Any:
        if self.kind == "three":
            return hidden_states + self.self_attn(hidden_states) * scale, None, scale
        if self.kind == "pair":
            residual = hidden_states if residual is None else hidden_states + residual
            residual = residual + self.self_attn(residual)
            return self.mlp(residual), residual
        states = hidden_states + self.self_attn(hidden_states)
        if self.kind == "whole":
            return self.mlp(states, states)
        return states + self.mlp(states)


class Model(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A tower of as many layers, which is never run, and the decoder."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.vpm = torch.nn.Module()
        self.vpm.layers = torch.nn.ModuleList(Layer("alone") for _ in range(LAYERS))
        self.visual_text = torch.nn.Module()
        self.visual_text.h = torch.nn.ModuleList(Layer(kind) for _ in range(LAYERS))
        self.embed, self.kind = torch.nn.Embedding(8, SIZE), kind
        with torch.no_grad():
            self.embed.weight[:2] = 0.0

    def forward(self, token: int) -> Any:
        states, residual = self.embed(torch.tensor([token])), None
        scale = torch.ones(1)
        for layer in self.visual_text.h:
            if self.kind == "pair":
                states, residual = layer(0, states, residual)
            elif self.kind == "three":
                states, _, scale = layer(0, states, scale=scale)
            else:
                states = layer(0, hidden_states=states)
        return states


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(runner: Any, model: Any, token: int) -> None:
        with torch.inference_mode():
            model(token)

    monkeypatch.setattr(looking, "one_token", run)


def runner(names: list[str]) -> Any:
    group = SimpleNamespace(layer_names=names)
    return SimpleNamespace(kv_cache_config=SimpleNamespace(kv_cache_groups=[group]))


NAMES = [f"visual_text.h.{layer}.self_attn.attn" for layer in range(LAYERS)]


@pytest.mark.parametrize(
    ("kind", "call", "apart"),
    [
        ("alone", Call("hidden_states", None, 0), True),
        ("pair", Call(1, 2, 2), True),
        ("whole", Call("hidden_states", None, 0), False),
    ],
)
def test_what_adds_to_the_state_is_told_from_what_does_not(
    kind: str, call: Call, apart: bool
) -> None:
    """Also where the first tokens are padding, from whose zeros nothing could be told."""
    model = Model(kind)
    parts = looking.take_apart(runner(NAMES), model)
    assert [part.block for part in parts] == list(model.visual_text.h)
    for part in parts:
        assert part.call == call
        assert (part.attention is part.block.self_attn) == apart
        assert (part.mlp is part.block.mlp) == apart


def test_a_layer_whose_absence_breaks_the_next_one_is_refused() -> None:
    """It hands on a third thing, which nobody gives while it is left out."""
    with pytest.raises(SkipPlanError, match="cannot be run one without the other"):
        looking.take_apart(runner(NAMES), Model("three"))


def test_layers_are_found_by_the_names_of_their_caches() -> None:
    model = Model("alone")
    assert looking.find_stack(model, NAMES) == list(model.visual_text.h)
    unnamed = [f"{layer}.attn" for layer in range(LAYERS)]
    assert looking.find_stack(model, unnamed) == list(model.vpm.layers)
    with pytest.raises(SkipPlanError, match="has no list of 3 decoder layers"):
        looking.find_stack(model, NAMES[:3])


def test_layers_that_no_token_passes_are_refused() -> None:
    names = [f"vpm.layers.{layer}.self_attn.attn" for layer in range(LAYERS)]
    with pytest.raises(SkipPlanError, match="not two or more are run for a token"):
        looking.take_apart(runner(names), Model("alone"))
