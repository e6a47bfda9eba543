"""Layer skipping in the real vLLM with many architectures: tiny random models, each an engine of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.adapters.transformers_hf import Decoder
from specplug.adapters.transformers_hf.decoder import as_numpy
from specplug.errors import SkipPlanError
from specplug.layers.plan import Plan
from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import EngineProcessError

from .architectures import FAMILIES, LAYERS, RECURRENT, VOCABULARY, save
from .conftest import WITH_PLUGINS, Start

EXIT = Plan.early_exit(LAYERS, LAYERS - 1)
PARTS = Plan.skipping(LAYERS, attention=[2], mlp=[1])
PROMPTS = [
    np.random.default_rng(seed).integers(3, VOCABULARY, 10 + 9 * seed).tolist() for seed in range(6)
]
TOKENS = 40
CONFIG = {
    "method": "specplug.layerskip",
    "num_speculative_tokens": 3,
    "specplug": {"exit_layer": LAYERS - 1, "pays": False, "controller": "fixed"},
}


def run(engine: EngineProcess, target: str, **given: Any) -> dict[str, Any]:
    found: dict[str, Any] = engine.call("run", target=f"engine_test_layers:{target}", **given)
    return dict(found["value"])


def begin(start: Start, name: str, folder: str, **options: Any) -> EngineProcess:
    running = start(
        f"architecture-{name}",
        process={"env": WITH_PLUGINS},
        model=folder,
        max_model_len=512,
        max_num_seqs=8,
        speculative_config=CONFIG,
        **options,
    )
    running.ready()
    return running


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_plain_and_drafts_those_of_transformers(
    start: Start, model: str, tmp_path: Path, name: str
) -> None:
    folder = save(FAMILIES[name], tmp_path / name, model)
    engine = begin(start, name, folder)
    try:
        plain = run(engine, "answers", prompts=PROMPTS, tokens=TOKENS)
        said = []
        for what, plan in (("exit", EXIT), ("parts", PARTS)):
            before = engine.metrics()
            flags = [plan.attention, plan.mlp, plan.exit_layer]
            found = run(engine, "answers", prompts=PROMPTS, tokens=TOKENS, plan=flags)
            gained = engine.metrics() - before
            said.append(f"{what} {gained.accepted_tokens}/{gained.draft_tokens} {found['refused']}")
            if not found["refused"]:
                assert found["answers"] == plain["answers"]
                assert gained.draft_tokens > 100
                said.append(states(folder, engine, plan))
        looked = run(engine, "search", policy="swift", prompts=PROMPTS, tokens=TOKENS)
        said.append(
            f"looks {looked['looks']} {looked['answers'] == [a[: len(b)] for a, b in zip(plain['answers'], looked['answers'])]}"
        )
    finally:
        engine.close()
    print(
        name,
        len({*map(tuple, plain["answers"])}),
        len({t for a in plain["answers"] for t in a}),
        *said,
        sep=" | ",
    )


def states(folder: str, engine: EngineProcess, plan: Plan) -> str:
    """Of vLLM's first draft, beside those of the transformers executor."""
    import transformers

    try:
        decoder = Decoder(
            transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
        )
    except SkipPlanError:
        return "transformers refuses"
    flags = {"attention": plan.attention, "mlp": plan.mlp, "exit_layer": plan.exit_layer}
    found = run(engine, "draft_states", prompt=PROMPTS[1], **flags)
    assert len(found["tokens"]) == 3
    cache = decoder.new_cache()
    decoder.fill(PROMPTS[1], cache)
    with decoder.running(plan), decoder.watching([decoder.norm]) as seen:
        for token, have in zip(found["tokens"], found["states"], strict=True):
            decoder.logits([token], cache)
            want = as_numpy(seen[0][0])
            np.testing.assert_allclose(have, want, atol=2e-3 * np.abs(want).max())
    return "states equal"


@pytest.mark.long
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_state_is_refused_before_the_model_loads(
    start: Start, model: str, tmp_path: Path, name: str
) -> None:
    folder = save(RECURRENT[name], tmp_path / name, model)
    with pytest.raises(EngineProcessError, match="the model keeps recurrent state, which cannot"):
        begin(start, name, folder)
