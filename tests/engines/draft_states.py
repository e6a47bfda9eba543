"""The states of a draft pass in vLLM, held against those of the transformers executor."""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.adapters.transformers_hf.decoder import as_numpy
from specplug.layers.exit_head import ExitHead
from specplug.layers.plan import Plan
from specplug.testing.engine_process import EngineProcess


def first_draft(engine: EngineProcess, plan: Plan, prompt: list[int]) -> dict[str, Any]:
    """The first draft after a prompt, see ``draft_states`` of the plugin, and the prompt."""
    flags = {"attention": plan.attention, "mlp": plan.mlp, "exit_layer": plan.exit_layer}
    target = "engine_test_layers:draft_states"
    found: dict[str, Any] = engine.call("run", target=target, prompt=prompt, **flags)["value"]
    return {**found, "prompt": prompt}


def check_states(
    decoder: Any, plan: Plan, found: dict[str, Any], head: ExitHead | None = None
) -> None:
    """The states of vLLM's first draft are those of the transformers executor, pass by pass."""
    assert len(found["tokens"]) == 3
    cache = decoder.new_cache()
    decoder.fill(found["prompt"], cache)
    with decoder.running(plan, head), decoder.watching([decoder.norm]) as seen:
        for token, states in zip(found["tokens"], found["states"], strict=True):
            decoder.logits([token], cache)
            want = as_numpy(seen[0][0])
            np.testing.assert_allclose(states, want, atol=2e-3 * np.abs(want).max())
