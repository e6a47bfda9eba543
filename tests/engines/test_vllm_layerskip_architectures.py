"""Layer skipping in the real vLLM with many architectures: tiny random models, each an engine of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.adapters.transformers_hf import Decoder
from specplug.errors import SkipPlanError
from specplug.layers.exit_file import save_heads
from specplug.layers.exit_head import ExitHead
from specplug.layers.plan import Plan
from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import EngineRequestError

from .architectures import FAMILIES, HIDDEN, LAYERS, RECURRENT, VOCABULARY, save
from .conftest import WITH_PLUGINS, Start
from .draft_states import check_states, first_draft

EXIT = Plan.early_exit(LAYERS, LAYERS - 1)
PARTS = Plan.skipping(LAYERS, attention=[2], mlp=[1])
PROMPTS = [
    np.random.default_rng(seed).integers(3, VOCABULARY, 10 + 9 * seed).tolist() for seed in range(6)
]
TOKENS = 40
CONFIG: dict[str, Any] = {
    "method": "specplug.layerskip",
    "num_speculative_tokens": 3,
    "specplug": {"exit_layer": LAYERS - 1, "pays": False, "controller": "fixed"},
}

#: Families of which only whole layers can be left out.
WHOLE_LAYERS = ("opt",)
#: Their windows get a cache of their own, unless vLLM is told otherwise.
WINDOWS = ("gemma2", "gemma3_text", "cohere2", "gpt_oss")


def run(engine: EngineProcess, target: str, **given: Any) -> dict[str, Any]:
    found: dict[str, Any] = engine.call("run", target=f"engine_test_layers:{target}", **given)
    return dict(found["value"])


def begin(
    start: Start,
    name: str,
    folder: str,
    env: dict[str, str] | None = None,
    config: dict[str, Any] = CONFIG,
    **options: Any,
) -> EngineProcess:
    running = start(
        f"architecture-{name}",
        process={"env": WITH_PLUGINS if env is None else env},
        model=folder,
        max_model_len=512,
        max_num_seqs=8,
        speculative_config=config,
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
    with begin(start, name, folder, disable_hybrid_kv_cache_manager=name in WINDOWS) as engine:
        plain = run(engine, "answers", prompts=PROMPTS, tokens=TOKENS)["answers"]
        assert len({token for answer in plain for token in answer}) > 5
        decoder = decoder_of(folder)
        for plan in (EXIT,) if name in WHOLE_LAYERS else (EXIT, PARTS):
            before = engine.metrics()
            flags = [plan.attention, plan.mlp, plan.exit_layer]
            found = run(engine, "answers", prompts=PROMPTS, tokens=TOKENS, plan=flags)
            gained = engine.metrics() - before
            assert found == {"answers": plain, "refused": ""}
            assert gained.draft_tokens > 100
            assert gained.accepted_tokens > 10
            if decoder is not None:
                check_states(decoder, plan, first_draft(engine, plan, PROMPTS[1]))
        if name in WHOLE_LAYERS:
            flags = [PARTS.attention, PARTS.mlp, None]
            found = run(engine, "answers", prompts=PROMPTS, tokens=TOKENS, plan=flags)
            assert "cannot be left out alone" in found["refused"]
        else:
            looked = run(engine, "search", policy="swift", prompts=PROMPTS, tokens=TOKENS)
            assert looked["looks"] > 5
            for want, have in zip(plain, looked["answers"], strict=True):
                assert have == want[: len(have)]


@pytest.mark.long
@pytest.mark.parametrize("name", WINDOWS)
def test_a_cache_that_cannot_be_written_twice_drafts_nothing_and_says_why(
    start: Start, model: str, tmp_path: Path, name: str
) -> None:
    with begin(start, name, save(FAMILIES[name], tmp_path / name, model)) as engine:
        found = run(engine, "answers", prompts=PROMPTS[:2], tokens=8)
        assert found["refused"] is True
        assert engine.generate(PROMPTS[:2], {"temperature": 0, "max_tokens": 8}).results
        assert engine.metrics().draft_tokens == 0
        assert "the model's cache consists of" in engine.log_text
        assert "disable_hybrid_kv_cache_manager" in engine.log_text


def decoder_of(folder: str) -> Decoder | None:
    """The same checkpoint with transformers, where it is taken."""
    import transformers

    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    try:
        return Decoder(loaded)
    except SkipPlanError:
        return None


@pytest.mark.long
def test_heads_know_a_model_that_is_called_by_its_name_on_the_hub(
    start: Start, model: str, tmp_path: Path
) -> None:
    """The checkpoint lies in the cache of the hub; nothing is asked of the network."""
    home, commit = tmp_path / "home", "0" * 39 + "1"
    stored = home / "hub" / "models--somebody--tiny"
    folder = save(FAMILIES["llama"], stored / "snapshots" / commit, model)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(commit)
    decoder = decoder_of(folder)
    assert decoder is not None
    coins = np.random.default_rng(0)
    head = ExitHead(LAYERS - 1, (coins.normal(0.0, 0.02, (HIDDEN, HIDDEN)),), np.zeros(HIDDEN))
    save_heads(tmp_path / "tiny.exits", [head], decoder.fingerprint())
    options = {**CONFIG["specplug"], "heads": str(tmp_path / "tiny.exits")}
    env = {**WITH_PLUGINS, "HF_HOME": str(home)}
    with begin(start, "hub", "somebody/tiny", env, {**CONFIG, "specplug": options}) as engine:
        found = run(engine, "answers", prompts=PROMPTS, tokens=8)
        assert found["refused"] == ""
        assert run(engine, "exits_with_heads") == {"exits": [LAYERS - 1]}


@pytest.mark.long
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_state_is_refused_before_the_model_loads(
    start: Start, model: str, tmp_path: Path, name: str
) -> None:
    folder = save(RECURRENT[name], tmp_path / name, model)
    with pytest.raises(EngineRequestError, match="the model keeps recurrent state, which cannot"):
        begin(start, name, folder)
