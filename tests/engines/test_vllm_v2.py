"""One real engine with vLLM's V2 model runner, its Triton kernels interpreted: slow, but every line of it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Batch, Counters

from .compare import Tally, check_greedy
from .engines import FIXED
from .prompts import STORY, VARIED

WIDTH = 5
ENVIRONMENT = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "PYTHONPATH": os.pathsep.join(
        filter(None, [str(Path(__file__).parent / "triton_cpu"), os.environ.get("PYTHONPATH", "")])
    ),
}
SPECULATION = {
    "method": "specplug.suffix",
    "num_speculative_tokens": WIDTH,
    "specplug": FIXED,
}
#: The same engine decodes plainly for a request that says so.
PLAIN = {"extra_args": {"specplug": {"draft_limit": 0}}}
#: 288 tokens of KV cache, prefill in chunks of 64.
SMALL = {"block_size": 32, "num_gpu_blocks_override": 10, "max_num_batched_tokens": 64}
NAMES = ("repeat-words", "repeat-numbers", "repeat-line", "one-token")
GREEDY = {"temperature": 0, "max_tokens": 20}


@pytest.fixture(scope="module")
def v2(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """The engine; answers are slow, so its limits are wide."""
    options = {
        **{"model": model, "dtype": "float32", "max_model_len": 256, "max_num_seqs": 4},
        **SMALL,
        "speculative_config": SPECULATION,
    }
    log = tmp_path_factory.mktemp("v2") / "v2.log"
    with EngineProcess(options, name="v2", env=ENVIRONMENT, log=log, wait=False) as engine:
        engine.ready()
        yield engine


@pytest.fixture(scope="module")
def served(v2: EngineProcess) -> tuple[Batch, Batch, Counters]:
    """Four prompts at once, plainly and with drafts, and what the drafts brought."""
    prompts = [VARIED[name] for name in NAMES]
    plain = v2.generate(prompts, {**GREEDY, **PLAIN})
    before = v2.metrics()
    got = v2.generate(prompts, GREEDY)
    return plain, got, v2.metrics() - before


def test_it_is_the_v2_runner(v2: EngineProcess) -> None:
    assert "Using V2 Model Runner" in v2.log_text
    assert v2.metrics().own["runner"] == "V2"


def test_greedy_answers_are_those_of_plain_decoding(
    v2: EngineProcess, served: tuple[Batch, Batch, Counters], tally: Tally
) -> None:
    plain, got, _ = served
    for name, want, result in zip(NAMES, plain.results, got.results, strict=True):
        check_greedy(v2, tally, name, want.prompt_token_ids, want.only, result.only)


def test_drafts_are_accepted_and_counted_as_the_engine_counts(
    v2: EngineProcess, served: tuple[Batch, Batch, Counters]
) -> None:
    """Equal counts also say that no padding is verified: the engine counts what it verifies."""
    plain, got, gained = served
    assert all(not step.draft for result in plain.results for step in result.only.steps)
    assert gained.draft_tokens >= gained.accepted_tokens > 20, gained
    assert got.engine_steps < plain.engine_steps
    own = v2.metrics().own
    assert own["adapter_faults"] == own["session"]["faults"] == own["histories_reread"] == 0
    every = v2.metrics()
    assert every.own["session"]["accepted"] == every.accepted_tokens
    assert 0 <= every.own["session"]["drafted"] - every.draft_tokens <= WIDTH * len(NAMES)


def test_lengths_of_drafts_differ_within_a_step(served: tuple[Batch, Batch, Counters]) -> None:
    _, got, _ = served
    lengths = {len(step.draft) for result in got.results for step in result.only.steps}
    assert 0 in lengths
    assert WIDTH in lengths
    for result in got.results:
        for step in result.only.steps:
            assert step.sampled[: step.accepted] == step.draft[: step.accepted]


def test_an_aborted_request_leaves_and_the_others_go_on(
    v2: EngineProcess, served: tuple[Batch, Batch, Counters], tally: Tally
) -> None:
    plain, _, _ = served
    names = ("repeat-line", "repeat-numbers")
    # Far more tokens than the cancellation can be late.
    params = [{**GREEDY, "max_tokens": 150}, GREEDY]
    got = v2.generate([VARIED[name] for name in names], params, abort_after={0: 4})
    assert got.results[0].only.finish_reason == "abort"
    want = plain.results[NAMES.index("repeat-numbers")]
    check_greedy(
        v2, tally, "beside an abort", want.prompt_token_ids, want.only, got.results[1].only
    )
    # Ends reach the worker with the step after.
    v2.generate([VARIED["one-token"]], {"temperature": 0, "max_tokens": 2})
    assert v2.metrics().own["live_requests"] <= 1


def test_preempted_requests_come_back_and_say_the_same(v2: EngineProcess, tally: Tally) -> None:
    prompts = [f"Note {number}. {STORY}{STORY}The lighthouse keeper" for number in range(3)]
    params = {"temperature": 0, "max_tokens": 40}
    before = v2.metrics()
    got = v2.generate(prompts, params)
    gained = v2.metrics() - before
    assert gained.preemptions > 0, "the cache was large enough after all"
    assert gained.accepted_tokens > 20
    plain = v2.generate(prompts, {**params, **PLAIN})
    for number, (want, result) in enumerate(zip(plain.results, got.results, strict=True)):
        check_greedy(
            v2, tally, f"preempted {number}", want.prompt_token_ids, want.only, result.only
        )
    own = v2.metrics().own
    assert own["session"]["restarted"] == own["adapter_faults"] == own["histories_reread"] == 0


def test_drafts_stay_within_a_grammar(v2: EngineProcess, tally: Tally) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["name", "size"],
        "additionalProperties": False,
    }
    prompt = '{"name": "red", "size": 1}\n{"name": "red", "size": 1}\n'
    params = {"temperature": 0, "max_tokens": 20, "json_schema": schema}
    want = v2.generate([prompt], {**params, **PLAIN}).results[0]
    got = v2.generate([prompt, VARIED["repeat-numbers"]], [params, GREEDY]).results[0]
    assert sum(step.accepted for step in got.only.steps) > 0
    check_greedy(v2, tally, "with a grammar", want.prompt_token_ids, want.only, got.only)


def test_answers_at_a_temperature_have_drafts_too(v2: EngineProcess) -> None:
    """Without top-k and top-p, whose kernel the interpreter cannot run."""
    prompts = [VARIED[name] for name in ("repeat-line", "repeat-numbers")]
    before = v2.metrics()
    got = v2.generate(prompts, {"temperature": 1.0, "max_tokens": 16})
    assert (v2.metrics() - before).draft_tokens > 0
    for result in got.results:
        for step in result.only.steps:
            assert step.sampled[: step.accepted] == step.draft[: step.accepted]
    assert v2.metrics().own["adapter_faults"] == 0
