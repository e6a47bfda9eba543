"""Finding and reading a tokenizer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from specplug.errors import LogError, MissingExtraError
from specplug.replay.tokenizers import load_tokenizer


def test_a_file_and_its_folder_are_the_same(tokenizer_file: Path) -> None:
    one, two = load_tokenizer(tokenizer_file), load_tokenizer(tokenizer_file.parent)
    assert (one.vocab_size, one.digest) == (two.vocab_size, two.digest) == (201, one.digest)


def test_texts_become_int32_arrays(tokenizer_file: Path) -> None:
    got = load_tokenizer(tokenizer_file).encode(["w0 w3 nonsense", ""])
    assert [a.tolist() for a in got] == [[1, 4, 0], []]
    assert all(a.dtype == np.int32 for a in got)


def test_ids_of_added_tokens_count(tokenizer_file: Path, tmp_path: Path) -> None:
    content = json.loads(tokenizer_file.read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"] = [{"id": 1000, "content": "<|end|>", "special": True, **flags}]
    content["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    tokenizer = load_tokenizer(path)
    assert tokenizer.vocab_size >= 202
    assert max(tokenizer.encode(["w0 <|end|> w1 w2"])[0]) < tokenizer.vocab_size
    assert len(tokenizer.encode(["w0 w1 w2 w3 w4"])[0]) == 5, "truncated as in training"


@pytest.mark.parametrize(
    ("content", "message"), [(None, "no tokenizer at"), ("{}", "is no tokenizer"), ("x", "is no")]
)
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(LogError, match=message):
        load_tokenizer(tmp_path)


def test_a_missing_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tokenizer_file: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'specplug\[replay\]'"):
        load_tokenizer(tokenizer_file)


def test_a_gguf_file_says_which_libraries_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(LogError, match="'transformers', which is missing; run this in the env"):
        load_tokenizer(path)


def test_a_folder_with_an_old_tokenizer_says_so_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(LogError, match="is read by the package 'transformers'"):
        load_tokenizer(tmp_path)
