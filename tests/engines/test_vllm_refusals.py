"""Mistakes are answered where they are made, before a model is loaded, with a sentence that helps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specplug.testing.engine_process import engine_environment
from specplug.testing.engine_protocol import Driver, EngineRequestError

from .stores import unfitting

#: speculative_config, and what the message must contain: the offending value, and the way out.
MISTAKES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (
        {"method": "specplug.suffx", "num_speculative_tokens": 8},
        ("suffx", "did you mean 'suffix'?"),
    ),
    (
        {"method": "specplug.suffix", "num_speculative_tokens": 8, "specplug": {"store_mbb": 1}},
        ("specplug.suffix", "store_mbb", "did you mean 'store_mb'?"),
    ),
    (
        {"method": "specplug.suffix", "num_speculative_tokens": 8, "specplug": {"store_mb": "x"}},
        ("store_mb", "must be float", "'x'"),
    ),
    (
        {"method": "specplug.suffix", "num_speculative_tokens": 8, "specplug": {"store_mb": -1}},
        ("store_mb", "between 0", "-1"),
    ),
    (
        {"method": "specplug.suffix", "num_speculative_tokens": 8, "specplug": [1]},
        ("must be an object of options", "[1]"),
    ),
    (
        {"method": "specplug.suffix", "num_speculative_tokens": 8, "model": "some/model"},
        ("without a model", "some/model"),
    ),
    (
        {
            **{"method": "specplug.hybrid", "num_speculative_tokens": 8},
            "specplug": {"datastore": "no/such/store"},
        },
        ("specplug.hybrid", "no datastore at no/such/store", "specplug datastore build"),
    ),
    (
        {
            **{"method": "specplug.rest", "num_speculative_tokens": 8},
            "specplug": {"datastore": "large"},
        },
        ("specplug.rest", "large", "100000 token ids, the model has"),
    ),
    (
        {
            **{"method": "specplug.rest", "num_speculative_tokens": 8},
            "specplug": {"datastore": "foreign"},
        },
        ("specplug.rest", "foreign", "another tokenizer (vocabulary 0123456789abcdef"),
    ),
    ({"method": "specplug.rest", "num_speculative_tokens": 8}, ("'datastore' must name a folder",)),
    ({"method": "specplug.suffix"}, ("num_speculative_tokens",)),
    ({"method": "specplug.suffix", "num_speculative_tokens": 0}, ("num_speculative_tokens", "0")),
    ({"method": "specplug.suffix", "num_speculative_tokens": 999}, ("999", "128")),
    ({"method": "specplug.", "num_speculative_tokens": 8}, ("specplug.<name>", "suffix")),
    (
        {"method": "ngram", "num_speculative_tokens": 8, "specplug": {}},
        ("'specplug'", "specplug.<name>"),
    ),
]

LLM_SCRIPT = """
import json, sys
from vllm import LLM
answers = []
for config in json.loads(sys.argv[2]):
    try:
        LLM(model=sys.argv[1], dtype="float32", enforce_eager=True, speculative_config=config)
        answers.append(["nothing", "the engine started"])
    except Exception as error:
        answers.append([type(error).__name__, str(error), isinstance(error, ValueError)])
print("ANSWERS" + json.dumps(answers))
"""

#: Lines that vLLM logs when it begins to build an engine.
ENGINE_STARTS = ("Initializing a V1 LLM engine", "Starting to load model")


@pytest.fixture(scope="module")
def answers(model: str, tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """What ``LLM(...)`` says to every mistake, in one process."""
    folder = tmp_path_factory.mktemp("datastores")
    unfitting(folder)
    configs = [config for config, _ in MISTAKES]
    done = subprocess.run(
        [sys.executable, "-P", "-c", LLM_SCRIPT, model, json.dumps(configs)],
        env=engine_environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for line in ENGINE_STARTS:
        assert line not in done.stdout + done.stderr
    found: list[list[Any]] = json.loads(done.stdout.rpartition("ANSWERS")[2])
    return found


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=lambda n: json.dumps(MISTAKES[n][0]))
def test_llm_refuses(answers: list[list[Any]], number: int) -> None:
    kind, message, is_value_error = answers[number]
    assert is_value_error, (kind, message)
    for part in MISTAKES[number][1]:
        assert part in message, message


def serve(model: str, config: dict[str, Any], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--speculative-config", json.dumps(config), "--enforce-eager", "--port", "0"]
    return subprocess.run(
        command,
        env=engine_environment(in_process=False),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )


@pytest.mark.parametrize("number", [0, 1], ids=["method", "option"])
def test_server_refuses(model: str, tmp_path: Path, number: int) -> None:
    config, parts = MISTAKES[number]
    done = serve(model, config, tmp_path)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    for part in parts:
        assert part in last, done.stderr[-2000:]
    for line in ENGINE_STARTS:
        assert line not in done.stdout + done.stderr


@pytest.mark.parametrize("params", [{"min_p": 0.1}, {"logit_bias": {"5": 2.0}}], ids=str)
def test_vllm_refuses_with_speculation(plain: Driver, spec: Driver, params: dict[str, Any]) -> None:
    """A limit of vLLM itself, for every speculator; it is documented, and must stay a clear refusal."""
    assert plain.generate(["a"], {"max_tokens": 2, **params}).generated_tokens == 2
    with pytest.raises(EngineRequestError, match=r"min_p and logit_bias.*speculative decoding"):
        spec.generate(["a"], {"max_tokens": 2, **params})
    # The engine lives on.
    assert spec.generate(["a"], {"max_tokens": 2, "ignore_eos": True}).generated_tokens == 2
