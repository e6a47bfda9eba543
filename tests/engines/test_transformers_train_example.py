"""The trained example runs, saves what transformers loads, and trains for early exits what it says it does."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.vllm  # torch and transformers are in vLLM's environment

EXAMPLE = Path(__file__).parents[2] / "examples/train_early_exit/train.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_early_exit", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_layers_run_as_in_the_model_itself(example: ModuleType) -> None:
    """Without dropout, the last of the states is what the model computes."""
    import argparse

    import torch

    model = example.build(argparse.Namespace(seed=0, width=16, layers=3)).eval()
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.inference_mode():
        states = example.states_of(model, ids, [0.0] * 3)
        expected = model(ids).logits
        got = model.lm_head(model.model.norm(states[-1]))
        dropped = example.states_of(model, ids, [0.0, 1.0, 0.0])
    np.testing.assert_allclose(got.numpy(), expected.numpy(), atol=1e-5)
    assert torch.equal(dropped[1], dropped[0])


def test_the_example_runs_and_its_checkpoints_load(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    small = shlex.split(
        "--steps 3 --layers 3 --width 16 --batch 2 --length 16 --tokens 6 --prompts 1 --quiet"
    )
    assert example.main(["--out", str(tmp_path), *small]) == 0
    printed = capsys.readouterr().out
    assert printed.count("exit 2 of 3") == 2
    assert printed.count("while it pays") == 2
    assert example.main(["--out", str(tmp_path), "--again", *small]) == 0
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "early_exit")
    assert loaded.config.num_hidden_layers == 3
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "early_exit")
    text = "def f(x):\n    return 'ü\x00'"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.bos_token_id == example.BEGIN
