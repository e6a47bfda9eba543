"""``specplug datastore`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from specplug.cli import main
from specplug.index.datastore import FILE, Datastore


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    made = Tokenizer(models.WordLevel({f"w{i}": i for i in range(50)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


@pytest.fixture
def store(tmp_path: Path, tokenizer: str) -> str:
    log = tmp_path / "log.jsonl"
    log.write_text(
        '{"text": "w1 w2 w3 w4 w5", "license": "mit"}\n{"text": "w2 w3 w9 w9"}\nnonsense\n'
    )
    assert (
        main(["datastore", "build", str(tmp_path / "d"), str(log), "--tokenizer", tokenizer]) == 0
    )
    return str(tmp_path / "d")


def test_build_says_what_it_did(
    store: str, tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    log = str(tmp_path / "log.jsonl")
    assert main(["datastore", "build", store, log, "--tokenizer", tokenizer, "--quiet"]) == 0
    said = capsys.readouterr()
    assert "2 documents, 11 tokens" in said.out
    assert "left out: 0 duplicates, 0 too short, 0 files by filters, 1 unreadable" in said.out
    assert said.err.strip().startswith(f"{log}:3: not JSON")


def test_info(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["datastore", "info", store, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["documents"], facts["tokens"], facts["vocab_size"]) == (2, 11, 50)
    bits = {name: value for name, value in facts.items() if name.startswith("bits_per_")}
    assert bits == {"bits_per_token": 6, "bits_per_entry": 4, "bits_per_bucket": 9}
    assert main(["datastore", "info", store]) == 0
    assert "bytes_per_token" in capsys.readouterr().out


def test_verify(store: str, tokenizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datastore", "verify", store, "--tokenizer", tokenizer]) == 0
    assert "intact" in capsys.readouterr().out
    file = Path(store) / FILE
    data = bytearray(file.read_bytes())
    data[4100] ^= 1
    file.write_bytes(bytes(data))
    assert main(["datastore", "verify", store]) == 1
    assert "section 'tokens' is damaged" in capsys.readouterr().err


def test_verify_with_another_tokenizer(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Tokenizer(models.WordLevel({f"v{i}": i for i in range(50)}, unk_token="v0"))
    other.save(str(tmp_path / "other.json"))
    assert main(["datastore", "verify", store, "--tokenizer", str(tmp_path / "other.json")]) == 1
    assert "built with another tokenizer" in capsys.readouterr().err


def test_search(store: str, tokenizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["datastore", "search", store, "--text", "w1 w2 w3", "--tokenizer", tokenizer]) == 0
    said = capsys.readouterr().out
    assert "the longest match has 3 of 3 tokens" in said
    assert "3 tokens at 3: 'w4 w5'" in said
    assert "draft: 'w4 w5'" in said
    assert main(["datastore", "search", store, "--ids", "2,3"]) == 0
    assert "2 occurrences" in capsys.readouterr().out
    assert main(["datastore", "search", store, "--text", "w1"]) == 1
    assert "give --text and --tokenizer, or --ids" in capsys.readouterr().err


def test_what_is_exported_can_be_built_again(
    store: str, tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--tokenizer", tokenizer]):
        capsys.readouterr()
        assert main(["datastore", "export", store, *options]) == 0
        (tmp_path / "again.jsonl").write_text(capsys.readouterr().out)
        arguments = [
            str(tmp_path / "again"),
            str(tmp_path / "again.jsonl"),
            "--tokenizer",
            tokenizer,
        ]
        assert main(["datastore", "build", *arguments]) == 0
        assert Datastore(tmp_path / "again").tokens().tolist() == Datastore(store).tokens().tolist()


def test_merge(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datastore", "merge", str(tmp_path / "m"), store, store]) == 0
    assert "left out: 2 duplicates" in capsys.readouterr().out
    assert main(["datastore", "merge", str(tmp_path / "m"), store, str(tmp_path / "none")]) == 1
    assert "no datastore at" in capsys.readouterr().err


def test_filters_on_the_command_line(
    tmp_path: Path, store: str, tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["datastore", "build", str(tmp_path / "e"), str(tmp_path / "log.jsonl")]
    arguments += ["--tokenizer", tokenizer]
    assert main([*arguments, "--where", "license=MIT", "--keep-duplicates"]) == 0
    assert Datastore(tmp_path / "e").documents == 1
    assert main([*arguments, "--min-tokens", "99"]) == 1
    assert "nothing to look up" in capsys.readouterr().err
    assert main([*arguments, "--strict"]) == 1
    with pytest.raises(SystemExit):
        main([*arguments, "--where", "license"])
