"""The engines that the suite runs against: how each is started, and what one lacks, with the reason.

The environment decides: whichever engine is installed is the one under test (``make test-vllm``,
``make test-sglang``). ``SPECPLUG_TEST_RUNNER=v2`` takes vLLM's V2 model runner for it (``make test-v2``). A check that
needs what an engine lacks says so with :func:`need`, and its reason is in pytest's summary.
"""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

#: Drafted tokens per step at most.
WIDTH = 8
#: SGLang verifies in float32 at a cost that grows with every row, so the suite drafts less there.
SGLANG_WIDTH = 5
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
        environment: for every process of the engine.
        plain: what of it is different where the engine does not speculate.
        narrow: request parameters that keep drafts short, where a wide verification is slow.
        server: how the server is started, up to the model's folder.
        counters: the server's metrics that the tests read.
        per_request: the field in which a client sends options of ours.
        unused_context: positions at the end of the context that the engine never fills.
        least_room: the shortest room that it leaves for an answer; it refuses longer prompts.
        samples: per law of the output, in the normal run and in the long one.
        long_samples: see above.
        command_seconds: the longest that it may take to answer one command of a test.
        lacks: capability -> why it cannot be tested here.
    """

    name: str
    methods: dict[str, dict[str, Any]]
    scripted: dict[str, Any]
    small: dict[str, Any]
    server: tuple[str, ...]
    counters: dict[str, str]
    per_request: str
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    plain: dict[str, str] = field(default_factory=dict)
    narrow: dict[str, Any] = field(default_factory=dict)
    unused_context: int = 0
    least_room: int = 1
    samples: int = 3000
    long_samples: int = 30000
    command_seconds: float = 300.0
    lacks: dict[str, str] = field(default_factory=dict)


#: The default controller drafts less where drafts cost more than they bring, as in float32 on a CPU; what is tested
#: here needs drafts. The controllers have tests of their own.
FIXED = {"controller": "fixed"}

#: Always drafts, so that there is something to verify; two layers and two sublayers.
SKIPPING = {"skip": "13,14,15a,16m", "pays": False}


def _vllm(method: str, width: int = WIDTH, **more: Any) -> dict[str, Any]:
    config = {"method": method, "num_speculative_tokens": width, **more}
    if method.startswith("specplug."):
        config["specplug"] = {**FIXED, **more.get("specplug", {})}
    return {"speculative_config": config}


def _sglang(method: str, width: int = SGLANG_WIDTH) -> dict[str, Any]:
    # SGLang counts the newest token too.
    return {"speculative_algorithm": method, "speculative_num_draft_tokens": width + 1}


def speculation(
    engine: Engine, method: str, **options: Any
) -> tuple[dict[str, Any], dict[str, str]]:
    """The engine's options and its environment for a proposer with options of its own, drafts of fixed length."""
    options = {**FIXED, **options}
    if engine.name == "sglang":
        return _sglang(method), {"SPECPLUG_SGLANG_OPTIONS": json.dumps(options)}
    config = {"method": method, "num_speculative_tokens": WIDTH, "specplug": options}
    return {"speculative_config": config}, {}


VLLM = Engine(
    name="vllm",
    methods={
        "specplug.suffix": _vllm("specplug.suffix"),
        "copy": _vllm("specplug.specplug.testing.toys:CopyProposer"),
        "ngram": _vllm("ngram", prompt_lookup_max=4, prompt_lookup_min=2),
        # Parts of four middle layers left out: right more than half of the time on this model.
        "specplug.layerskip": _vllm("specplug.layerskip", 3, specplug=SKIPPING),
    },
    scripted=_vllm("specplug.scripted", SCRIPTED_WIDTH),
    small={"block_size": 32, "num_gpu_blocks_override": 20, "max_num_batched_tokens": 64},
    server=(
        *("-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", "--dtype", "float32"),
        *("--max-model-len", "2048", "--max-num-seqs", "16", "--model"),
    ),
    counters={
        "accepted": "vllm:spec_decode_num_accepted_tokens_total",
        "drafted": "vllm:spec_decode_num_draft_tokens_total",
        "running": "vllm:num_requests_running",
    },
    per_request="vllm_xargs",
    lacks={
        "min_p": "vLLM refuses min_p with speculative decoding, see test_vllm_refusals.py",
        "logit_bias": "vLLM refuses logit_bias with speculative decoding, see test_vllm_refusals.py",
    },
)

V2_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def path(*folders: str) -> str:
    """``PYTHONPATH`` with these folders before what it holds."""
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [*folders, given]))


#: vLLM with its V2 model runner, the kernels interpreted; what it is compared with decodes plainly in V1, compiled.
VLLM_V2 = replace(
    VLLM,
    environment={V2_VARIABLE: "1", "PYTHONPATH": path(str(Path(__file__).parent / "triton_cpu"))},
    plain={V2_VARIABLE: "0", "PYTHONPATH": path()},
    samples=300,
    long_samples=3000,
    # Interpreted kernels take a quarter of a second per sampled token, and beside other work more.
    command_seconds=1800.0,
    lacks={
        **VLLM.lacks,
        "top_k": "Triton's interpreter cannot run V2's kernel for top-k and top-p",
        "top_p": "Triton's interpreter cannot run V2's kernel for top-k and top-p",
        "seed": "V2 draws other random numbers than V1, which answers plainly here",
        "host_sampling_fault": "V2 has a rejection sampler of its own",
    },
)

SGLANG = Engine(
    name="sglang",
    options={"max_total_tokens": 24576},
    environment={"SPECPLUG_SGLANG_OPTIONS": json.dumps(FIXED)},
    narrow={"extra_args": {"specplug": {"draft_limit": 2}}},
    unused_context=2,
    least_room=5,
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
        # Otherwise it refuses a request that could run into the end of the context.
        "allow_auto_truncate": True,
    },
    server=(
        *("-m", "sglang.launch_server", "--device", "cpu", "--attention-backend", "torch_native"),
        *("--sampling-backend", "pytorch", "--dtype", "float32", "--context-length", "2048"),
        *("--max-running-requests", "16", "--max-total-tokens", "8192", "--disable-cuda-graph"),
        *("--skip-server-warmup", "--sleep-on-idle", "--enable-metrics", "--model-path"),
    ),
    counters={
        "accepted": "specplug_accepted_tokens_total",
        "drafted": "specplug_drafted_tokens_total",
        "running": "sglang:num_running_reqs",
    },
    per_request="custom_params",
    lacks={
        "bad_words": "SGLang has no list of forbidden words",
        "repetition_penalty with others": (
            "without overlap SGLang applies them in the order of a set of classes, "
            "which differs from process to process"
        ),
        "host_sampling_fault": "it is a fault of vLLM",
        "seed": "SGLang draws with seeds in its deterministic mode only, which needs a GPU",
    },
)

ENGINES = {engine.name: engine for engine in (VLLM, SGLANG)}


def together(environment: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """An engine's environment and a test's; folders of both are searched, unless the test's are the given ones."""
    both = {**environment, **more}
    folders = [each.get("PYTHONPATH", "") for each in (more, environment)]
    if all(folder not in ("", path()) for folder in folders):
        both["PYTHONPATH"] = os.pathsep.join(
            dict.fromkeys(os.pathsep.join(folders).split(os.pathsep))
        )
    return both


def installed() -> Engine | None:
    """The engine of this environment, or None."""
    for name, engine in ENGINES.items():
        if importlib.util.find_spec(name) is not None:
            v2 = name == "vllm" and os.environ.get("SPECPLUG_TEST_RUNNER") == "v2"
            return VLLM_V2 if v2 else engine
    return None


def flags(options: dict[str, Any]) -> list[str]:
    """Options as a command line writes them."""
    found = []
    for name, value in options.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        found += ["--" + name.replace("_", "-"), text]
    return found


def need(engine: Engine, capability: str) -> None:
    """Skip, with the reason, where the engine lacks something."""
    if capability in engine.lacks:
        pytest.skip(f"{engine.name}: {engine.lacks[capability]}")
