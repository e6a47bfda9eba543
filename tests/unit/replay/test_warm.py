"""``specplug warm``: from a log to a file that a proposer loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug import registry
from specplug.cli import main
from specplug.index.store_file import Vocabulary, read_store
from specplug.replay.tokenizers import load_tokenizer
from specplug.session import Session
from specplug.types import Context, Request
from specplug.vocabulary import vocabulary_digest

Warm = Callable[..., tuple[int, str, str]]


def words(first: int, count: int = 30) -> str:
    return " ".join(f"w{i}" for i in range(first, first + count))


ENTRIES = [
    {"prompt": words(100), "response": words(0)},
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": words(40)}]},
    {"prompt": words(150), "response": ""},
]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def warm(tokenizer_file: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> Warm:
    """``warm(*arguments)`` -> exit code, standard output, standard error."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        given = ["--quiet", "--tokenizer", str(tokenizer_file), "--out", str(out)]
        code = main(["warm", *given, *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def drafts(out: Path, tokenizer_file: Path, text: list[int], **request: Any) -> list[int]:
    """What a fresh engine drafts after ``text``."""
    tokenizer = load_tokenizer(tokenizer_file)
    context = Context(
        tokenizer.vocab_size + 7, 4000, 8, 2, tokenizer=lambda: tokenizer.vocabulary_digest
    )
    options = {"store_path": str(out), "verify_cost": 0.0, "store_save_seconds": 0}
    session = Session(registry.build("suffix", context, options), context, on_fault="raise")
    session.begin(Request("a", len(text), **request), np.array(text, np.int32))
    found = session.step(["a"], [np.array(text, np.int32)])
    return found.tokens[0, : found.lengths[0]].tolist()


def test_a_fresh_engine_drafts_from_the_log(
    warm: Warm, write_log: Any, out: Path, tokenizer_file: Path
) -> None:
    code, printed, _ = warm(write_log(*ENTRIES))
    assert code == 0
    assert "3 requests read, 0 malformed" in printed
    assert "2 outputs, 60 tokens (60 read, 0 were there)" in printed
    # The tokenizer gives word w<i> the id i + 1.
    assert drafts(out, tokenizer_file, [6, 7, 8]) == list(range(9, 17))
    assert drafts(out, tokenizer_file, [46, 47, 48]) == list(range(49, 57))
    assert drafts(out, tokenizer_file, [106, 107, 108]) == [], "a prompt was kept"
    assert drafts(out, tokenizer_file, [6, 7, 8], namespace="t") == []


def test_prompts_and_namespaces_if_asked_for(
    warm: Warm, write_log: Any, out: Path, tokenizer_file: Path
) -> None:
    assert warm(write_log(*ENTRIES), "--prompts", "--namespace", "t")[0] == 0
    assert drafts(out, tokenizer_file, [106, 107, 108], namespace="t") == list(range(109, 117))
    assert drafts(out, tokenizer_file, [6, 7, 8]) == []


def test_an_existing_file_is_never_replaced_silently(
    warm: Warm, write_log: Any, out: Path, tokenizer_file: Path
) -> None:
    assert warm(write_log(ENTRIES[0]))[0] == 0
    before = out.read_bytes()
    code, _, problem = warm(write_log(ENTRIES[1]))
    assert code == 1
    assert "exists; --append adds to it" in problem
    assert out.read_bytes() == before
    code, printed, _ = warm(write_log(ENTRIES[1]), "--append", "--namespace", "t")
    assert code == 0
    assert "2 outputs, 60 tokens (30 read, 30 were there)" in printed
    assert drafts(out, tokenizer_file, [6, 7, 8]) == list(range(9, 17))
    assert drafts(out, tokenizer_file, [46, 47, 48], namespace="t") == list(range(49, 57))


def test_nothing_is_added_to_a_foreign_file(warm: Warm, write_log: Any, out: Path) -> None:
    out.write_text("a letter")
    code, _, problem = warm(write_log(ENTRIES[0]), "--append")
    assert code == 1
    assert "is no store of specplug" in problem
    assert out.read_text() == "a letter"


def test_the_newest_text_is_kept_of_a_log_that_is_too_long(
    warm: Warm, write_log: Any, out: Path
) -> None:
    entries = [{"prompt": "", "response": words(i, 20)} for i in range(100)]
    assert warm(write_log(*entries), "--store-mb", "0.01")[0] == 0
    found = read_store(out, Vocabulary(201))
    assert found.tokens[-20:].tolist() == list(range(100, 120))
    assert 400 < len(found.tokens) < 600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--store-mb", "0"], "--store-mb must be at least 0.002, got 0.0"),
        (["--vocab-size", "20"], "--vocab-size 20 is less than the 201 ids of the tokenizer"),
        (["--strict"], "malformed|JSON"),
    ],
)
def test_what_cannot_work_is_said_and_writes_nothing(
    warm: Warm, write_log: Any, out: Path, arguments: list[str], message: str
) -> None:
    code, _, problem = warm(write_log("no JSON", *ENTRIES), *arguments)
    assert code == 1
    assert any(part in problem for part in message.split("|")), problem
    assert not out.exists()


def test_a_folder_that_is_missing_is_said_before_the_log_is_read(
    warm: Warm, write_log: Any, out: Path
) -> None:
    code, _, problem = warm(write_log(*ENTRIES), "--out", str(out / "deeper" / "store"))
    assert code == 1
    assert "there is no folder" in problem


def test_the_digest_is_about_the_mapping_only(tokenizer_file: Path) -> None:
    vocabulary = {"<unk>": 0, **{f"w{i}": i + 1 for i in range(200)}}
    digest = load_tokenizer(tokenizer_file).vocabulary_digest
    assert digest == vocabulary_digest(dict(reversed(vocabulary.items())))
    assert digest != vocabulary_digest({**vocabulary, "w0": 300})
    assert digest != vocabulary_digest({**vocabulary, "w0 ": 1})
    assert len(digest) == 16
