"""Mistakes are answered before a model is loaded, with a sentence that helps; as test_vllm_refusals.py for vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from specplug.testing.engine_process import engine_environment

from .stores import unfitting

#: Arguments, options (None: the variable is not set), and what the message must contain.
MISTAKES: list[tuple[dict[str, Any], str | None, tuple[str, ...]]] = [
    ({"speculative_algorithm": "specplug.suffx"}, None, ("SUFFX", "specplug.suffix")),
    (
        {"speculative_algorithm": "specplug.suffix"},
        '{"store_mbb": 1}',
        ("store_mbb", "did you mean 'store_mb'?"),
    ),
    ({"speculative_algorithm": "specplug.suffix"}, '{"store_mb": -1}', ("store_mb", "-1")),
    ({"speculative_algorithm": "specplug.suffix"}, "[1]", ("object of options", "[1]")),
    ({"speculative_algorithm": "specplug.suffix"}, "{", ("SPECPLUG_SGLANG_OPTIONS", "no JSON")),
    (
        {"speculative_algorithm": "specplug.suffix", "speculative_num_draft_tokens": 1},
        None,
        ("--speculative-num-draft-tokens", "from 2 to", "1"),
    ),
    (
        {"speculative_algorithm": "specplug.suffix", "speculative_num_draft_tokens": 999},
        None,
        ("--speculative-num-draft-tokens", "999"),
    ),
    (
        {"speculative_algorithm": "specplug.suffix", "pp_size": 2},
        None,
        ("--pp-size 2", "pipeline parallelism"),
    ),
    (
        {"speculative_algorithm": "specplug.hybrid"},
        '{"datastore": "no/such/store"}',
        ("specplug.hybrid", "no datastore at no/such/store", "specplug datastore build"),
    ),
    (
        {"speculative_algorithm": "specplug.rest"},
        '{"datastore": "large"}',
        ("specplug.rest", "large", "100000 token ids, the model has"),
    ),
    (
        {"speculative_algorithm": "specplug.rest"},
        '{"datastore": "foreign"}',
        ("specplug.rest", "foreign", "another tokenizer (vocabulary 0123456789abcdef"),
    ),
]

SCRIPT = """
import json, os, sys
from sglang.srt.entrypoints.engine import Engine
answers = []
for arguments, options, _ in json.loads(sys.argv[2]):
    os.environ.pop("SPECPLUG_SGLANG_OPTIONS", None)
    if options is not None:
        os.environ["SPECPLUG_SGLANG_OPTIONS"] = options
    try:
        Engine(model_path=sys.argv[1], device="cpu", attention_backend="torch_native",
               sampling_backend="pytorch", dtype="float32", **arguments)
        answers.append(["nothing", "the engine started"])
        break
    except BaseException as error:
        answers.append([type(error).__name__, str(error)])
print("ANSWERS" + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(model: str, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What ``Engine(...)`` says to every mistake, in one process."""
    folder = tmp_path_factory.mktemp("datastores")
    unfitting(folder)
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, model, json.dumps(MISTAKES)],
        env=engine_environment(engine="sglang"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Load weight" not in done.stdout + done.stderr
    found: list[list[str]] = json.loads(done.stdout.rpartition("ANSWERS")[2])
    return found


def launcher_check(options: str) -> subprocess.CompletedProcess[str]:
    environment = engine_environment(engine="sglang", extra={"SPECPLUG_SGLANG_OPTIONS": options})
    command = [sys.executable, "-P", "-m", "specplug.adapters.sglang_srt"]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_launcher_check_looks_at_the_options() -> None:
    """It said that all was well with options that no server takes."""
    wrong = launcher_check('{"verify_cst": 0.03}')
    assert wrong.returncode == 1, wrong.stdout
    assert "did you mean 'verify_cost'?" in wrong.stdout + wrong.stderr
    right = launcher_check('{"store_mb": 64, "tree": true}')
    assert right.returncode == 0, right.stdout + right.stderr
    assert "--speculative-algorithm specplug.suffix, options" in right.stdout
    assert "not with these options: specplug.null" in right.stdout


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=lambda n: json.dumps(MISTAKES[n][:2]))
def test_engine_refuses(answers: list[list[str]], number: int) -> None:
    kind, message = answers[number]
    for part in MISTAKES[number][2]:
        assert part in message, (kind, message)
