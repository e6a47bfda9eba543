"""Real vLLM in its V2 runner with look-ups on the device, asynchronous scheduling on; all of Triton interpreted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Batch, Counters, Driver

from .compare import Tally, check_greedy
from .prompts import STORY, VARIED
from .test_vllm_v2 import ENVIRONMENT, SMALL, WIDTH

DEVICE = {"lookup": {"name": "device", "store_mb": 0.01}, "controller": "fixed"}
NAMES = list(VARIED)[:10]
GREEDY = {"temperature": 0, "max_tokens": 20}
Begin = Callable[..., EngineProcess]


@pytest.fixture(scope="module")
def begin(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begin]:
    """Start V2; vLLM switches asynchronous scheduling off on every CPU, ``SPECPLUG_TEST_AHEAD`` keeps it."""
    running: list[EngineProcess] = []

    def start(name: str, options: dict[str, Any], **environment: str) -> EngineProcess:
        engine = {
            **{"model": model, "dtype": "float32", "max_model_len": 256, "max_num_seqs": 4},
            **SMALL,
            "speculative_config": {
                **{"method": "specplug.suffix", "num_speculative_tokens": WIDTH},
                "specplug": options,
            },
        }
        log = tmp_path_factory.mktemp("v2") / f"{name}.log"
        started = EngineProcess(
            engine, name=name, env={**ENVIRONMENT, **environment}, log=log, wait=False
        )
        running.append(started)
        started.ready()
        return started

    yield start
    for started in running:
        started.close()


@pytest.fixture(scope="module")
def device(begin: Begin) -> EngineProcess:
    """The engine of most tests."""
    engine = begin("device", DEVICE, SPECPLUG_TEST_AHEAD="1")
    inside(engine, "watch")
    return engine


def inside(engine: EngineProcess, name: str) -> Any:
    """Call a function of ``triton_cpu/engine_test_device.py`` in the engine."""
    return engine.call("run", target=f"engine_test_device:{name}")["value"]


@pytest.fixture(scope="module")
def served(device: EngineProcess) -> tuple[Batch, Counters]:
    """Ten prompts, four at a time, and what the drafts brought."""
    before = device.metrics()
    got = device.generate([VARIED[name] for name in NAMES], GREEDY)
    return got, device.metrics() - before


def test_it_runs_ahead_of_the_device(device: EngineProcess) -> None:
    assert "Using V2 Model Runner" in device.log_text
    own = device.metrics().own
    assert (own["runner"], own["lookup"]) == ("V2", "device")
    found = inside(device, "ahead")
    assert found["async_scheduling"] is True
    assert found["batches"] == 2
    assert "AsyncScheduler" in found["bases"]


def test_greedy_answers_are_those_of_plain_decoding(
    device: EngineProcess, plain: Driver, served: tuple[Batch, Counters], tally: Tally
) -> None:
    got, gained = served
    want = plain.generate([VARIED[name] for name in NAMES], GREEDY)
    for name, expected, result in zip(NAMES, want.results, got.results, strict=True):
        check_greedy(plain, tally, name, expected.prompt_token_ids, expected.only, result.only)
    assert gained.accepted_tokens > 20, gained
    assert device.metrics().own["adapter_faults"] == 0


def test_nothing_in_a_step_waits_for_the_device(
    device: EngineProcess, served: tuple[Batch, Counters]
) -> None:
    found = inside(device, "waits")
    assert found["propose"]["calls"] > 20
    assert min(found[name]["calls"] for name in ("before_finish", "after_update")) > 10
    assert [each["waited"] for each in found.values()] == [[], [], []]


def test_what_one_request_said_is_drafted_for_the_next(device: EngineProcess, tally: Tally) -> None:
    """Nothing in the prompt says what comes; and another namespace must not know it."""
    prompt = VARIED["chat-story"]
    params = {"temperature": 0, "max_tokens": 40}
    other = {**params, "extra_args": {"specplug": {"namespace": "another"}}}
    first = device.generate([prompt], params)
    # Ends reach the worker with the step after.
    device.generate([VARIED["one-token"]], {"temperature": 0, "max_tokens": 2})
    alone = device.generate([prompt], other)
    again = device.generate([prompt], params)
    for got in (alone, again):
        check_greedy(
            *(device, tally, "said before", first.results[0].prompt_token_ids),
            *(first.results[0].only, got.results[0].only),
        )
    assert again.engine_steps < 0.6 * alone.engine_steps
    assert device.metrics().own["outputs_kept"] > 10


@pytest.mark.long
def test_aborted_and_preempted_requests_disturb_nobody(
    device: EngineProcess, plain: Driver, tally: Tally
) -> None:
    prompts = [f"Note {number}. {STORY}{STORY}The lighthouse keeper" for number in range(3)]
    params = {"temperature": 0, "max_tokens": 40}
    before = device.metrics()
    got = device.generate([*prompts, VARIED["repeat-line"]], params, abort_after={3: 4})
    assert (device.metrics() - before).preemptions > 0, "the cache was large enough after all"
    assert got.results[3].only.finish_reason == "abort"
    want = plain.generate(prompts, params)
    for number, expected in enumerate(want.results):
        check_greedy(
            *(plain, tally, f"preempted {number}", expected.prompt_token_ids, expected.only),
            got.results[number].only,
        )
    assert device.metrics().own["adapter_faults"] == 0


@pytest.mark.long
def test_drafts_stay_within_a_grammar(device: EngineProcess, plain: Driver, tally: Tally) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["name", "size"],
        "additionalProperties": False,
    }
    prompt = '{"name": "red", "size": 1}\n{"name": "red", "size": 1}\n'
    params = {"temperature": 0, "max_tokens": 20, "json_schema": schema}
    want = plain.generate([prompt], params).results[0]
    got = device.generate([prompt, VARIED["repeat-numbers"]], [params, GREEDY]).results[0]
    check_greedy(plain, tally, "with a grammar", want.prompt_token_ids, want.only, got.only)


@pytest.mark.long
def test_answers_at_a_temperature_have_drafts_too(device: EngineProcess) -> None:
    prompts = [VARIED[name] for name in ("repeat-line", "repeat-numbers")]
    before = device.metrics()
    device.generate(prompts, {"temperature": 1.0, "max_tokens": 16})
    assert (device.metrics() - before).accepted_tokens > 0
    assert device.metrics().own["adapter_faults"] == 0


@pytest.mark.long
def test_the_controller_beside_the_scheduler_sets_the_length_of_steps(begin: Begin) -> None:
    """In the interpreter a draft costs more than it brings, and the controller finds out; the engine runs ahead."""
    lookup = {"name": "device", "store_mb": 0}
    engine = begin("governed", {"lookup": lookup}, SPECPLUG_TEST_AHEAD="1")
    found = inside(engine, "ahead")
    assert found["async_scheduling"] is True
    assert found["bases"][0] == "LengthScheduler"
    prompts = [VARIED[name] for name in ("repeat-words", "chat-story", "chat-short")]
    got = engine.generate(prompts, {"temperature": 0, "max_tokens": 60})
    lengths = [len(step.draft) for result in got.results for step in result.only.steps]
    print("lengths of drafts, step by step:", lengths)
    assert len(set(lengths)) > 1
    assert min(lengths) < WIDTH
    assert engine.metrics().own["adapter_faults"] == 0


@pytest.mark.long
def test_acceptance_beside_that_of_look_ups_on_the_host(begin: Begin) -> None:
    """The same prompts, the same width, no store to begin with; a table."""
    print(f"\n{'look-ups':>10} {'steps':>6} {'emitted':>8} {'accepted':>9} {'MAL per step':>13}")
    accepted = {}
    prompts = [VARIED[name] for name in NAMES]
    for name, options in (("host", {"controller": "fixed"}), ("device", DEVICE)):
        engine = begin(f"accepted-{name}", options)
        before = engine.metrics()
        got = engine.generate(prompts, {"temperature": 0, "max_tokens": 60})
        gained = engine.metrics() - before
        rows = sum(len(result.only.steps) for result in got.results)
        emitted = sum(len(result.only.token_ids) for result in got.results)
        accepted[name] = gained.accepted_tokens
        print(f"{name:>10} {rows:>6} {emitted:>8} {accepted[name]:>9} {emitted / rows:>13.2f}")
        engine.close()
    assert accepted["device"] > 0.7 * accepted["host"]
