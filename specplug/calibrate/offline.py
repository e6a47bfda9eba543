"""Measure an engine that is started for it: steps with any number of drafts, by a proposer that drafts on demand."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specplug.calibrate.fit import Point
from specplug.errors import SettingsError
from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Batch, EngineRequestError

PROBE = "specplug.calibrate.probe:ProbeProposer"
#: Draft tokens per request, requests at a time, prompt tokens of prefill steps.
DRAFTS = (0, 1, 3, 7, 15, 31)
REQUESTS = (1, 2, 4, 8)
PROMPTS = (32, 64, 128, 256, 512)
#: Decoding steps that are measured together.
STEPS = 8
PROMPT_TOKENS = 16


def engine_options(model: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine is started with; ``given`` wins."""
    return {
        "model": model,
        "max_model_len": 2 * max(PROMPTS),
        "max_num_seqs": max(REQUESTS),
        "seed": 0,
        # Prompts must be computed, whether or not they were seen before.
        "enable_prefix_caching": False,
        **given,
        "speculative_config": {
            "method": f"specplug.{PROBE}",
            "num_speculative_tokens": max(DRAFTS),
        },
    }


def require_engine() -> None:
    """Refuse where no engine can be started.

    Raises:
        SettingsError: vLLM is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise SettingsError(
            "--model starts vLLM, which is not installed in this environment; start your server and give --base-url "
            "(vLLM or SGLang, without speculation)"
        )


def start(options: dict[str, Any]) -> EngineProcess:
    """The engine, with a constant draft length where the adapter has controllers: a good one would draft nothing."""
    fixed = {**options["speculative_config"], "specplug": {"controller": "fixed"}}
    try:
        return _started({**options, "speculative_config": fixed})
    except EngineRequestError as error:
        if "controller" not in str(error):
            raise
        return _started(options)


def _started(options: Mapping[str, Any]) -> EngineProcess:
    return EngineProcess(options, name="calibrate", start_seconds=1800, command_seconds=1800)


def sweep(
    engine: EngineProcess,
    rounds: int,
    seed: int,
    done: Callable[[], None],
    requests: Sequence[int] | None = None,
) -> Iterator[Point]:
    """Measure all points, round by round, so that a change of the machine's load hits all of them.

    Args:
        done: called after each point.
        requests: sizes of the batches; by default :data:`REQUESTS`.
    """
    generator = np.random.default_rng(seed)
    vocabulary = int(engine.info()["vocab_size"])

    def prompts(count: int, size: int) -> list[list[int]]:
        return [generator.integers(0, vocabulary, size).tolist() for _ in range(count)]

    # The first steps of any kind compile and allocate.
    _decode(engine, prompts(1, PROMPT_TOKENS), max(DRAFTS), 2)
    for _ in range(rounds):
        for count in requests or REQUESTS:
            for drafts in DRAFTS:
                yield _decoding(engine, prompts(count, PROMPT_TOKENS), drafts)
                done()
        for size in PROMPTS:
            # All of it, also where the engine cuts a prompt into several steps.
            yield Point("prefill", 1, size, _decode(engine, prompts(1, size), 0, 1).seconds)
            done()


def points_of(rounds: int) -> int:
    """How many points a sweep has."""
    return rounds * (len(REQUESTS) * len(DRAFTS) + len(PROMPTS))


def _decoding(engine: EngineProcess, prompts: Sequence[list[int]], drafts: int) -> Point:
    """Mean seconds of a decoding step: a long run less a short one of the same prompts, which is prefill."""
    long = _decode(engine, prompts, drafts, 1 + STEPS)
    short = _decode(engine, prompts, drafts, 1)
    steps = max(1, long.engine_steps - short.engine_steps)
    return Point(
        "decode", len(prompts), len(prompts) * (1 + drafts), (long.seconds - short.seconds) / steps
    )


def _decode(engine: EngineProcess, prompts: Sequence[list[int]], drafts: int, tokens: int) -> Batch:
    # No draft is verified beyond the end of its request, so the request must go on; it is aborted after ``tokens``.
    params = {
        "temperature": 0.0,
        "max_tokens": tokens + 1 + max(DRAFTS),
        "ignore_eos": True,
        "extra_args": {"specplug": {"draft_limit": drafts}},
    }
    return engine.generate(
        list(prompts), params, abort_after=dict.fromkeys(range(len(prompts)), tokens)
    )
