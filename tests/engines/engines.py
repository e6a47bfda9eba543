"""The engines that the suite runs against: how each is started, and what one lacks, with the reason.

The environment decides: whichever engine is installed is the one under test (``make test-vllm``,
``make test-sglang``). A check that needs what an engine lacks says so with :func:`need`, and its reason is
in pytest's summary.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any

import pytest

#: Drafted tokens per step at most.
WIDTH = 8
SCRIPTED_WIDTH = 3


@dataclass(frozen=True)
class Engine:
    """What tests must know about one engine.

    Attributes:
        name: the key of ``specplug.testing.engine_process.HOSTS``, and the module to look for.
        methods: the engine's options for each way to speculate; :data:`conftest.METHOD` picks one.
        scripted: options that run the proposer of ``plugin/``.
        small: options for 640 tokens of KV cache and prefill in chunks of 64.
        options: for every engine of the suite.
        narrow: request parameters that keep drafts short, where a wide verification is slow.
        samples: per law of the output, in the normal run and in the long one.
        long_samples: see above.
        lacks: capability -> why it cannot be tested here.
    """

    name: str
    methods: dict[str, dict[str, Any]]
    scripted: dict[str, Any]
    small: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    narrow: dict[str, Any] = field(default_factory=dict)
    samples: int = 3000
    long_samples: int = 30000
    lacks: dict[str, str] = field(default_factory=dict)


def _vllm(method: str, width: int = WIDTH, **more: Any) -> dict[str, Any]:
    config = {"method": method, "num_speculative_tokens": width, **more}
    return {"speculative_config": config}


def _sglang(method: str, width: int = WIDTH) -> dict[str, Any]:
    # SGLang counts the newest token too.
    return {"speculative_algorithm": method, "speculative_num_draft_tokens": width + 1}


VLLM = Engine(
    name="vllm",
    methods={
        "specplug.suffix": _vllm("specplug.suffix"),
        "copy": _vllm("specplug.specplug.testing.toys:CopyProposer"),
        "ngram": _vllm("ngram", prompt_lookup_max=4, prompt_lookup_min=2),
    },
    scripted=_vllm("specplug.scripted", SCRIPTED_WIDTH),
    small={"block_size": 32, "num_gpu_blocks_override": 20, "max_num_batched_tokens": 64},
    lacks={
        "min_p": "vLLM refuses min_p with speculative decoding, see test_vllm_refusals.py",
        "logit_bias": "vLLM refuses logit_bias with speculative decoding, see test_vllm_refusals.py",
    },
)

SGLANG = Engine(
    name="sglang",
    options={"max_total_tokens": 24576},
    narrow={"extra_args": {"specplug": {"draft_limit": 2}}},
    samples=600,
    long_samples=3000,
    methods={
        "specplug.suffix": _sglang("specplug.suffix"),
        "ngram": _sglang("NGRAM"),
    },
    scripted=_sglang("specplug.scripted", SCRIPTED_WIDTH),
    small={
        "max_total_tokens": 640,
        "chunked_prefill_size": 64,
        # Admit more requests than fit, so that some are retracted.
        "schedule_conservativeness": 0.01,
    },
    lacks={
        "bad_words": "SGLang has no list of forbidden words",
        "host_sampling_fault": "it is a fault of vLLM",
        "seed": "SGLang draws with seeds in its deterministic mode only, which needs a GPU",
    },
)

ENGINES = {engine.name: engine for engine in (VLLM, SGLANG)}


def installed() -> Engine | None:
    """The engine of this environment, or None."""
    for name, engine in ENGINES.items():
        if importlib.util.find_spec(name) is not None:
            return engine
    return None


def need(engine: Engine, capability: str) -> None:
    """Skip, with the reason, where the engine lacks something."""
    if capability in engine.lacks:
        pytest.skip(f"{engine.name}: {engine.lacks[capability]}")
