"""``specplug fit-exit`` on tiny random models: the heads help, the file fits this model and no other."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug import cli
from specplug.adapters.transformers_hf import Decoder, SelfSpeculation
from specplug.adapters.transformers_hf.command import exits_of
from specplug.adapters.transformers_hf.fitting import (
    CHUNK,
    FIRST,
    HELD_OUT,
    Collector,
    collect,
    own_text,
)
from specplug.adapters.vllm_v1.exit_heads import INDEX, checkpoint_fingerprint
from specplug.errors import ExitHeadError, SkipPlanError
from specplug.layers.exit_file import load_heads, read_facts
from specplug.layers.exit_head import ExitHead, Moments
from specplug.layers.plan import Plan
from specplug.proposers.layerskip.early_exit import EarlyExit
from specplug.proposers.layerskip.stopping import Always

pytestmark = pytest.mark.vllm  # torch and transformers are in vLLM's environment


def tiny(seed: int = 7, layers: int = 4) -> Any:
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=None,
    )
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny().save_pretrained(path)
    return path


def test_the_command_fits_measures_and_writes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "heads"
    options = ["--layers", "1,1/2", "--tokens", "1500", "--measure", "300", "--quiet"]
    assert cli.main(["fit-exit", str(folder), "--out", str(out), *options]) == 0
    printed = capsys.readouterr().out
    assert "exit after" in printed
    assert f"2 heads, 2 kB, written to {out}" in printed
    decoder = Decoder(tiny())
    heads = load_heads(out, decoder.fingerprint(), 16, 4)
    assert sorted(heads) == [1, 2]
    agreement = read_facts(out)["facts"]["agreement"]
    for place in ("1", "2"):
        assert agreement[place]["fitted"] > agreement[place]["raw"]
    with pytest.raises(ExitHeadError, match="fingerprint"):
        load_heads(out, Decoder(tiny(seed=8)).fingerprint(), 16, 4)


def test_a_head_is_used_for_drafts_and_changes_no_output(folder: Path) -> None:
    decoder = Decoder(tiny())
    collector = Collector(decoder, [2])
    for document in own_text(decoder, 3000, seed=1):
        collector.add(document, False, lambda tokens: None)
    heads = collector.fit(0.001, None)
    accepted, outputs = [], []
    for chosen in ({}, heads):
        engine = SelfSpeculation(decoder, EarlyExit(4, 2), Always(), heads=chosen, max_draft=1)
        runs = [engine.generate([0, seed], 40) for seed in range(1, 11)]
        accepted.append(sum(run.accepted for run in runs))
        outputs.append([run.tokens for run in runs])
    assert outputs[0] == outputs[1]
    assert accepted[1] > accepted[0]


def test_heads_can_be_fitted_while_the_model_serves() -> None:
    """Every verified token counts once, however it was drafted, as if the text had been read afterwards."""
    decoder = Decoder(tiny().double())
    serving = {1: Moments(16), 3: Moments(16)}
    engine = SelfSpeculation(decoder, EarlyExit(4, 2), Always(), collect=serving)
    report = engine.generate([5], 60)
    assert report.drafted > report.accepted > 0
    reading = Collector(decoder, [1, 3])
    reading.add([5, *report.tokens[:-1]], False, lambda tokens: None)
    for layer, moments in serving.items():
        assert moments.tokens == reading.moments[layer].tokens == 60
        # Products are taken in float32, of pieces of different sizes.
        np.testing.assert_allclose(moments.fit(1.0), reading.moments[layer].fit(1.0), atol=1e-3)
    with pytest.raises(SkipPlanError, match="exits must lie between 1 and 3, got 4"):
        SelfSpeculation(decoder, EarlyExit(4, 2), Always(), collect={4: Moments(16)})


def test_documents_that_are_held_out_are_not_fitted_on() -> None:
    decoder = Decoder(tiny())
    collector = Collector(decoder, [2], measured=30)
    text = np.random.default_rng(0).integers(0, 40, (4, 100)).tolist()
    for number, document in enumerate(text):
        collector.add(document, number == 3, lambda tokens: None)
    assert collector.tokens == 300
    assert collector.held_out == 30
    [row] = collector.measure(collector.fit(0.01, None), lambda exits: None)
    assert 0.0 <= row.raw <= 1.0
    assert row.explained > 0.2


@pytest.mark.parametrize("lengths", [[6000], [3000, 40], [600, 600]])
def test_few_documents_are_read_to_their_end_and_some_of_each_is_held_out(
    lengths: list[int],
) -> None:
    collector = Collector(Decoder(tiny()), [2], measured=10_000)
    text = [np.random.default_rng(n).integers(0, 40, n).tolist() for n in lengths]
    collect(collector, text, 30_000, lambda tokens: None)
    held = [piece for number, piece in enumerate(pieces_of(text)) if number % HELD_OUT == 0]
    assert collector.tokens == sum(lengths) - sum(held)
    assert collector.held_out == sum(min(64, length) for length in held)


def pieces_of(text: list[list[int]]) -> list[int]:
    """Lengths in the order in which they are read: the first four of each document, then the rest."""
    cut = [
        [len(document[i : i + CHUNK]) for i in range(0, len(document), CHUNK)] for document in text
    ]
    return [
        *chain(*(pieces[:FIRST] for pieces in cut)),
        *chain(*(pieces[FIRST:] for pieces in cut)),
    ]


def test_text_that_is_too_short_to_hold_some_out_is_refused_before_the_fit() -> None:
    collector = Collector(Decoder(tiny()), [2])
    with pytest.raises(ExitHeadError, match=r"one piece of text \(at most 512 tokens\)"):
        collect(collector, [[1] * 500], 30_000, lambda tokens: None)
    with pytest.raises(ExitHeadError, match="no text of at least two tokens"):
        collect(Collector(Decoder(tiny()), [2]), [[1], []], 30_000, lambda tokens: None)


def test_a_head_is_converted_once_and_not_for_every_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    decoder = Decoder(tiny())
    head = ExitHead(2, (np.full((16, 16), 0.1),), np.ones(16))
    made: list[Any] = []
    whole = torch.as_tensor
    monkeypatch.setattr(torch, "as_tensor", lambda *given: made.append(given) or whole(*given))
    found = [logits_with(decoder, head) for _ in range(3)]
    assert len(made) == 2
    assert np.array_equal(found[0], found[2])
    decoder.model.double()
    assert logits_with(decoder, head).dtype == np.float64
    assert len(made) == 4
    other = ExitHead(2, (np.full((16, 16), -0.1),), np.ones(16))
    assert not np.allclose(logits_with(decoder, other), found[0], atol=1e-3)
    for seed in range(50):
        logits_with(decoder, ExitHead(2, (np.full((16, 16), 0.01 * seed),), np.ones(16)))
    assert len(decoder._parts) <= 2 * decoder.layers


def logits_with(decoder: Decoder, head: ExitHead) -> Any:
    with decoder.running(Plan.early_exit(4, 2), head):
        return decoder.logits([1, 2], decoder.new_cache())


def test_one_checkpoint_has_one_fingerprint_in_any_precision() -> None:
    import torch

    model = tiny().to(torch.bfloat16)
    names = {Decoder(model.to(kind)).fingerprint() for kind in (torch.bfloat16, torch.float32)}
    assert len(names) == 1
    with torch.no_grad():
        model.model.layers[3].mlp.down_proj.weight[:] *= 1.1
    assert Decoder(model).fingerprint() not in names


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_files_of_a_checkpoint_have_the_fingerprint_of_the_loaded_model(
    tmp_path: Path, precision: str
) -> None:
    """vLLM's weights are packed after loading, so its adapter looks at the files."""
    import torch

    model = tiny().to(getattr(torch, precision))
    model.save_pretrained(tmp_path, max_shard_size="10kB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    layers = model.config.num_hidden_layers
    assert checkpoint_fingerprint(tmp_path, layers) == Decoder(model).fingerprint()
    assert checkpoint_fingerprint(tmp_path, layers) != Decoder(tiny(seed=8)).fingerprint()
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(b"no such file")
    with pytest.raises(ExitHeadError, match="cannot be read"):
        checkpoint_fingerprint(tmp_path, layers)
    (tmp_path / INDEX).write_text("[]")
    with pytest.raises(ExitHeadError, match="cannot be read"):
        checkpoint_fingerprint(tmp_path, layers)
    with pytest.raises(ExitHeadError, match="no safetensors files"):
        checkpoint_fingerprint(tmp_path / "nowhere", layers)


@pytest.mark.parametrize("sharded", [False, True])
def test_weights_that_are_no_part_of_the_model_do_not_count(tmp_path: Path, sharded: bool) -> None:
    """Every weight once more, as Mistral's own files have it; and a layer for drafts of the checkpoint's own."""
    import torch
    from safetensors.torch import load_file, save_file

    model = tiny()
    model.save_pretrained(tmp_path, max_shard_size="10kB" if sharded else "1GB")
    layers = model.config.num_hidden_layers
    other = {"layers.0.attention_norm.weight": torch.ones(8), "norm.weight": torch.ones(8)}
    save_file(other, tmp_path / "consolidated.safetensors")
    last = max(tmp_path.glob("model*.safetensors"))
    more = {f"model.layers.{layers}.input_layernorm.weight": torch.ones(8)}
    save_file({**load_file(last), **more}, last)
    assert checkpoint_fingerprint(tmp_path, layers) == Decoder(model).fingerprint()
    assert checkpoint_fingerprint(tmp_path, layers + 1) != Decoder(model).fingerprint()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no folder of a Hugging Face model"),
        (
            ["MODEL", "--layers", "4"],
            "--layers 4: an exit lies after 1 to 3 layers of this model, not after 4",
        ),
        (["MODEL", "--layers", "x"], "--layers takes numbers, fractions or `all`, got 'x'"),
        (["MODEL", "--out", "no/such/folder/file"], "there is no folder no/such/folder"),
        (["MODEL", "--ridge", "0", "--tokens", "100"], "ridge must be a number above 0, got 0"),
    ],
)
def test_what_cannot_work_is_said_and_nothing_is_written(
    folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.parent.iterdir())
    given = [str(folder) if word == "MODEL" else word for word in arguments]
    assert cli.main(["fit-exit", *given, "--quiet"]) == 1
    assert message in capsys.readouterr().err
    assert sorted(folder.parent.iterdir()) == before


def test_exits_are_layers_or_fractions() -> None:
    assert exits_of("all", 4) == [1, 2, 3]
    assert exits_of("1/2,4,1/4", 30) == [4, 8, 15]
