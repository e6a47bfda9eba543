"""Layer skipping in the real vLLM: drafts with the target's own weights and cache, output unchanged."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specplug._host import check_symbols
from specplug.adapters.transformers_hf import Decoder
from specplug.adapters.transformers_hf.decoder import as_numpy
from specplug.adapters.transformers_hf.probe import ModelProbe
from specplug.adapters.vllm_v1.layers import SYMBOLS
from specplug.adapters.vllm_v1.passes import DraftStep, forward_context
from specplug.layers.exit_file import load_heads, save_heads
from specplug.layers.exit_head import ExitHead
from specplug.layers.plan import Plan
from specplug.proposers.layerskip.clasp import Clasp
from specplug.proposers.layerskip.conflayers import layer_confidences
from specplug.testing.engine_process import EngineProcess

from .compare import Tally, check_greedy, check_preemption
from .conftest import WITH_PLUGINS, Start
from .draft_states import check_states, first_draft
from .engines import Engine
from .law import LawTest, compare_laws, sample
from .prompts import LONG, VARIED
from .remember import Remembering

GREEDY = {"temperature": 0, "max_tokens": 40}
CONTEXT = 512
USE_HEADS = "engine_test_layers:use_heads"
ASK = "engine_test_layers:ask"
SEARCH = "engine_test_layers:search"
ROOMS = "engine_test_layers:rooms"
OVERFLOW = "engine_test_layers:overflow"


@pytest.fixture(scope="module")
def skipping(start: Start, engine: Engine) -> EngineProcess:
    """Drafts from text, and with some of its layers where text has nothing: both in most steps of a batch."""
    config = engine.methods["specplug.layerskip"]["speculative_config"]
    config = {**config, "specplug": {**config["specplug"], "text": "suffix"}}
    running = start("layerskip", process={"env": WITH_PLUGINS}, speculative_config=config)
    running.ready()
    return running


def test_every_name_is_there() -> None:
    assert [report.problem for report in check_symbols(SYMBOLS) if report.problem] == []


def test_tables_are_mapped_where_the_kernel_has_smaller_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks of 32 tokens for the cache, of 16 for the kernel; vLLM's own group does it."""
    import torch
    from vllm.v1.worker.utils import AttentionGroup

    built: list[Any] = []
    group = AttentionGroup(
        backend=object,  # type: ignore[arg-type]
        layer_names=["a"],
        kv_cache_spec=SimpleNamespace(block_size=32),  # type: ignore[arg-type]
        kv_cache_group_id=0,
        kernel_block_size=16,
        kernel_block_table=torch.zeros(1, 4, 8, dtype=torch.int32),
        kernel_block_offsets=torch.arange(2, dtype=torch.int32),
        metadata_builders=[SimpleNamespace(build=lambda prefix, common: built.append(common))],  # type: ignore[list-item]
    )
    blocks = torch.tensor([[5, 7, 0], [0, 0, 0], [3, 0, 0]], dtype=torch.int32)
    table = SimpleNamespace(block_size=32, block_table=SimpleNamespace(cpu=blocks))
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(
            block_table=[table],
            req_id_to_index={"a": 0, "c": 2},
            num_tokens_no_spec=np.array([40, 1, 9]),
        ),
        attn_groups=[[group]],
        vllm_config=None,
        device="cpu",
    )
    monkeypatch.setattr("vllm.forward_context.set_forward_context", lambda *_, **__: nullcontext())
    step = DraftStep(runner, ["a", "c"])
    for place in (0, 1):
        with forward_context(runner, step.at(place)):
            pass
    assert built[0].slot_mapping.tolist() == [7 * 32 + 7, 3 * 32 + 8]
    assert built[1].seq_lens.tolist() == [41, 10]
    built = built[1:]
    assert built[0].slot_mapping.tolist() == [7 * 32 + 8, 3 * 32 + 9]
    assert built[0].block_table_tensor[:, :4].tolist() == [[10, 11, 14, 15], [6, 7, 0, 1]]


def test_greedy_answers_are_those_of_plain_decoding(
    plain: Remembering, skipping: EngineProcess, tally: Tally
) -> None:
    names = list(VARIED)
    assert len(names) >= 20
    expected = plain.generate(list(VARIED.values()), GREEDY)
    before = skipping.metrics()
    got = skipping.generate(list(VARIED.values()), GREEDY)
    gained = skipping.metrics() - before
    assert gained.draft_tokens > 500
    # The skipped layers must matter, and the cache must be right: see the prototype's 0.5.
    assert 0.3 < gained.accepted_tokens / gained.draft_tokens < 0.9, gained
    for name, want, result in zip(names, expected.results, got.results, strict=True):
        check_greedy(plain, tally, name, want.prompt_token_ids, want.only, result.only)
    sources = gained.own["sources"]
    text = [sources[name] for name in ("prompt", "output", "store")]
    assert sources["layers"]["drafted"] > 150
    assert sources["layers"]["accepted"] > 60
    assert sum(source["accepted"] for source in text) > 20
    assert sum(s["accepted"] for s in sources.values()) == gained.own["session"]["accepted"]


#: Of a model of 30 layers.
PLANS = {
    "layers": Plan.skipping(30, [13, 14], [13, 14]),
    "sublayers": Plan.skipping(30, [5, 13, 15], [9, 13, 14]),
    "exit": Plan.early_exit(30, 15),
}


@pytest.fixture(scope="module")
def decoder(model: str) -> Any:
    """The same model with transformers, in float32."""
    transformers = pytest.importorskip("transformers")
    return Decoder(transformers.AutoModelForCausalLM.from_pretrained(model, dtype="float32"))


@pytest.mark.parametrize("name", PLANS)
def test_a_draft_pass_computes_what_that_of_transformers_does(
    skipping: EngineProcess, decoder: Any, name: str
) -> None:
    check_states(decoder, PLANS[name], draft(skipping, PLANS[name]))


def test_exit_heads_of_this_model_are_applied_and_those_of_another_refused(
    skipping: EngineProcess, decoder: Any, tmp_path: Path
) -> None:
    random = np.random.default_rng(0).normal(scale=0.05, size=(2, 576, 576))
    head = ExitHead(15, (random[0, :, :8], random[1, :8]), random[0, 0])
    save_heads(tmp_path / "other", [head], "0" * 32)
    refused = skipping.call("run", target=USE_HEADS, path=str(tmp_path / "other"))["value"]
    assert "made for a model with fingerprint" in refused["error"]
    save_heads(tmp_path / "ours", [head], decoder.fingerprint())
    [known] = load_heads(tmp_path / "ours", decoder.fingerprint(), 576, 30).values()
    used = skipping.call("run", target=USE_HEADS, path=str(tmp_path / "ours"))["value"]
    assert used == {"exits": [15], "error": ""}
    found = draft(skipping, PLANS["exit"])
    skipping.call("run", target=USE_HEADS, path="")
    check_states(decoder, PLANS["exit"], found, known)


def test_a_draft_pass_that_overflows_leaves_nothing_in_the_cache(skipping: EngineProcess) -> None:
    """What lies behind the end of a text is multiplied by 0, so that an infinity there changed later answers."""
    plan, prompt = PLANS["sublayers"], skipping.tokenize(VARIED["chat-story"])
    flags = {"attention": plan.attention, "mlp": plan.mlp}
    found = skipping.call("run", target=OVERFLOW, prompt=prompt, **flags)["value"]
    assert found["overflowed"]
    assert found["answer"] == found["expected"]
    assert found["finite"]


def test_a_probe_answers_as_that_of_transformers_and_writes_into_no_block_of_a_request(
    skipping: EngineProcess, decoder: Any
) -> None:
    plan, skips = PLANS["sublayers"], 10
    prompt = skipping.tokenize(VARIED["chat-story"])
    flags = {"attention": plan.attention, "mlp": plan.mlp, "skips": skips}
    found = skipping.call("run", target=ASK, prompt=prompt, **flags)["value"]
    assert found["unchanged"]
    assert found["span"] == 20
    tokens = found["tokens"]
    cache = decoder.new_cache()
    decoder.fill(tokens[:-2], cache)
    with decoder.watching_inputs() as first, decoder.watching(decoder.blocks) as seen:
        decoder.logits(tokens[-2:-1], cache)
    trace = [as_numpy(states[0]) for states in (*first, *seen)]
    probe = ModelProbe(decoder, {}, window=20)
    probe.update(cache, tokens, 20, trace)
    np.testing.assert_allclose(found["states"], trace, atol=2e-3 * np.abs(trace).max())
    want = probe.try_plan(plan)
    assert want.matched > 5
    assert found["trial"][:2] == [want.matched, want.tested]
    assert found["trial"][2] == pytest.approx(want.similarity, abs=1e-3)
    np.testing.assert_allclose(found["confidences"], layer_confidences(*probe.outputs()), atol=1e-3)
    chosen = Clasp(30, skips).choose(probe)
    # Steps of the dynamic programme that are all but equal may fall either way.
    assert (np.array(found["chosen"]) & chosen).sum() >= skips - 1


@pytest.mark.parametrize("policy", ["swift", "clasp", "conflayers"])
def test_a_search_beside_live_requests_changes_no_answer(
    plain: Remembering, skipping: EngineProcess, tally: Tally, policy: str
) -> None:
    names = ["prose", "chat-story", "chat-copy"]
    expected = plain.generate([VARIED[name] for name in names], GREEDY)
    prompts = [list(result.prompt_token_ids) for result in expected.results]
    found = skipping.call("run", target=SEARCH, policy=policy, prompts=prompts, tokens=40)["value"]
    assert found["looks"] > 5, found
    assert found["skips"] > 0, found
    for name, want, got in zip(names, expected.results, found["answers"], strict=True):
        have = replace(want.only, token_ids=tuple(got))
        check_greedy(plain, tally, name, want.prompt_token_ids, want.only, have)


def draft(skipping: EngineProcess, plan: Plan) -> dict[str, Any]:
    """The first draft after a prompt, see there."""
    return first_draft(skipping, plan, skipping.tokenize(VARIED["chat-story"]))


@pytest.mark.long
def test_the_law_of_sampling_is_that_of_plain_decoding(
    plain: Remembering, skipping: EngineProcess
) -> None:
    """Chi-square, 600 answers each; a false alarm in 1 of 1000 runs."""
    prompt = plain.generate([VARIED["chat-story"]], GREEDY).results[0].prompt_token_ids
    case = LawTest({"temperature": 1.0, "top_k": 6, "max_tokens": 4}, 600)
    one, _, _ = sample(plain, list(prompt), case, 1)
    other, _, gained = sample(skipping, list(prompt), case, 10_001)
    assert gained.accepted_tokens > 200
    verdict = compare_laws(one, other)
    assert verdict.worst_p > 0.001 / len(verdict.p_values), verdict


@pytest.mark.long
def test_chunks_preemption_and_the_end_of_the_context(
    start: Start, engine: Engine, plain: Remembering, tally: Tally
) -> None:
    """640 tokens of cache for 16 requests: blocks change hands all the time, and drafts write only into their own."""
    options = {**engine.methods["specplug.layerskip"], **engine.small}
    process = {"env": WITH_PLUGINS}
    small = start(
        "layerskip-small", process=process, **options, max_model_len=CONTEXT, max_num_seqs=16
    )
    small.ready()
    try:
        check_slots(small)
        check_preemption(plain, small, tally, max_tokens=100)
        prompts = [VARIED["repeat-line"], LONG, VARIED["repeat-numbers"]]
        expected = plain.generate(prompts, GREEDY)
        for want, have in zip(
            expected.results, small.generate(prompts, GREEDY).results, strict=True
        ):
            check_greedy(plain, tally, "chunked", want.prompt_token_ids, want.only, have.only)
        tokens = (small.tokenize(LONG) * 2)[: CONTEXT - 5]
        short = {"temperature": 0, "max_tokens": 5}
        want = plain.generate([tokens], short).results[0]
        have = small.generate([tokens], short).results[0]
        check_greedy(plain, tally, "end of the context", tokens, want.only, have.only)
    finally:
        small.close()


def check_slots(small: EngineProcess) -> None:
    """The scheduler reserves them: without that, a draft ended with the last block of its request, of 32 tokens."""
    prompts = [small.tokenize(VARIED[name]) for name in ("chat-story", "prose")]
    found = small.call("run", target=ROOMS, prompts=prompts, tokens=70)["value"]
    assert len(found) > 50
    assert min(found) >= 3, found


@pytest.mark.long
def test_a_hopeless_exit_stops_drafting_by_itself(
    start: Start, engine: Engine, plain: Remembering, tally: Tally
) -> None:
    """Two of 100 tokens are right after 8 of 30 layers: a handful of trials, then plain decoding."""
    config = {
        "method": "specplug.layerskip",
        "num_speculative_tokens": 3,
        "specplug": {"exit_layer": 8},
    }
    running = start("layerskip-exit", speculative_config=config)
    running.ready()
    try:
        names = ["prose", "chat-story", "chat-copy"]
        prompts = [VARIED[name] for name in names]
        expected = plain.generate(prompts, GREEDY)
        before = running.metrics()
        for _ in range(3):
            got = running.generate(prompts, GREEDY)
            for name, want, have in zip(names, expected.results, got.results, strict=True):
                check_greedy(plain, tally, name, want.prompt_token_ids, want.only, have.only)
        # What a probe drafts need not be verified, so vLLM may have seen no draft at all.
        planned = running.metrics().own["controller"]
        assert 0 < planned["passes"] < 60, planned
        assert (running.metrics() - before).draft_tokens < 60
    finally:
        running.close()
