"""One real engine with vLLM's V2 model runner, its Triton kernels interpreted: slow, but every line of it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Batch, Counters, Result

from .compare import Tally, check_greedy
from .engines import FIXED, VLLM_V2
from .prompts import STORY, VARIED

WIDTH = 5
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
ENVIRONMENT = VLLM_V2.environment
TWINS = (
    *("repeat-words", "repeat-numbers", "code-sql", "code-html", "code-repeat", "json-records"),
    *("chat-list", "chat-turns", "unicode", "prose"),
)


def start(model: str, folder: Path, name: str, env: dict[str, str]) -> EngineProcess:
    """An engine with our method in one of the runners."""
    options = {
        **{"model": model, "dtype": "float32", "max_model_len": 256, "max_num_seqs": 4},
        **SMALL,
        "speculative_config": SPECULATION,
    }
    log = folder / f"{name}.log"
    return EngineProcess(options, name=name, env=env, log=log, wait=False)


@pytest.fixture(scope="module")
def v2(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """The engine; it is slow, so little is asked of it."""
    with start(model, tmp_path_factory.mktemp("v2"), "v2", ENVIRONMENT) as engine:
        engine.ready()
        yield engine


@pytest.fixture(scope="module")
def twin(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Result], Counters]:
    """What the same engine with the V1 runner does with :data:`TWINS`; it is gone before V2 starts."""
    with start(model, tmp_path_factory.mktemp("v1"), "v1", VLLM_V2.plain) as engine:
        engine.ready()
        assert "Using V2 Model Runner" not in engine.log_text
        return serve_twins(engine)


def serve_twins(engine: EngineProcess) -> tuple[list[Result], Counters]:
    """Ten prompts, then three again, whose answers have been said by now; nobody else shares their text."""
    params = {**GREEDY, "extra_args": {"specplug": {"namespace": "twins"}}}
    before = engine.metrics()
    results = [
        result
        for names in (TWINS, TWINS[:3])
        for result in engine.generate([VARIED[name] for name in names], params).results
    ]
    # Counts of ours come with the next step.
    engine.generate([VARIED["one-token"]], {**params, "max_tokens": 2})
    return results, engine.metrics() - before


def test_the_v1_runner_drafts_the_same_and_as_much_of_it_is_accepted(
    twin: tuple[list[Result], Counters], v2: EngineProcess
) -> None:
    """First of all, so that both begin with nothing learned."""
    (expected, counted), (got, gained) = twin, serve_twins(v2)
    for name, want, have in zip((*TWINS, *TWINS[:3]), expected, got, strict=True):
        assert have.only.token_ids == want.only.token_ids, name
        assert have.only.steps == want.only.steps, name
    assert gained.accepted_tokens > 80, gained
    both = {
        key: (value, counted.own["session"][key])
        for key, value in gained.own["session"].items()
        if value != counted.own["session"][key]
    }
    assert not both, f"counted otherwise in V2 and in V1: {both}"
    assert replace(gained, own={}) == replace(counted, own={})
    shares = gained.accepted_tokens / gained.draft_tokens
    print(
        f"\nV1 and V2: {gained.draft_tokens} drafted, {gained.accepted_tokens} accepted ({shares:.3f})"
    )


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


def test_a_seed_gives_the_same_answer_and_gets_no_drafts(v2: EngineProcess) -> None:
    params = {"temperature": 1.0, "seed": 5, "max_tokens": 8}
    before = v2.metrics()
    first = v2.generate([VARIED["repeat-line"]], params).tokens
    again = v2.generate([VARIED["repeat-line"], VARIED["prose"]], params).tokens
    assert first[0] == again[0]
    assert (v2.metrics() - before).draft_tokens == 0
