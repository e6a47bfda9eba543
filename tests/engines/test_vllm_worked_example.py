"""The example of docs/writing-a-proposer.md in the real vLLM: installed, named, equal to plain decoding."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specplug.testing.engine_protocol import Driver

from .compare import Tally, check_greedy
from .conftest import REPOSITORY, Start
from .prompts import VARIED

NAMES = ["repeat-words", "repeat-numbers", "repeat-line", "code-repeat", "chat-copy"]
GREEDY = {"temperature": 0, "max_tokens": 48}


@pytest.mark.long
def test_equal_to_plain_decoding(start: Start, plain: Driver, tally: Tally, tmp_path: Path) -> None:
    example = shutil.copytree(REPOSITORY / "examples" / "custom_proposer", tmp_path / "source")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "--target", str(tmp_path / "site"), str(example)]
    subprocess.run(pip, check=True)
    engine = start(
        "echo",
        process={"env": {"PYTHONPATH": str(tmp_path / "site")}},
        speculative_config={
            "method": "specplug.echo",
            "num_speculative_tokens": 4,
            "specplug": {"words": 2},
        },
    )
    engine.ready()
    prompts = [VARIED[name] for name in NAMES]
    before = engine.metrics()
    got = engine.generate(prompts, GREEDY)
    gained = engine.metrics() - before
    expected = plain.generate(prompts, GREEDY)
    for name, want, result in zip(NAMES, expected.results, got.results, strict=True):
        check_greedy(plain, tally, name, want.prompt_token_ids, want.only, result.only)
    assert gained.accepted_tokens > 40, gained
