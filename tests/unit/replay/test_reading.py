"""From logs to token ids: Parquet, ids in the log, text that a tokenizer cannot take, several models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specplug.errors import LogError, MissingExtraError
from specplug.replay import reading
from specplug.replay.reading import Reader, one_after_the_other
from specplug.replay.tokenizers import load_tokenizer
from specplug.replay.traces import Choice, LogFile, Record

CHAT = [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w4"}]
ROWS: list[dict[str, Any]] = [
    {"prompt": "w1 w2", "response": "w3", "created": datetime(2026, 1, 1, tzinfo=timezone.utc)},
    {"messages": CHAT},
]


def parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    names = {name: None for row in rows for name in row}
    # Of columns that not every row has, pyarrow looks at the first row only.
    rows = [{**names, **row} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def test_rows_of_parquet_are_entries(tmp_path: Path) -> None:
    log = LogFile(parquet(tmp_path / "log.parquet", ROWS), choice=Choice(time=None))
    assert [(r.response, r.line) for r in log] == [("w3", 1), ("w4", 2)]
    assert log.name == "log"
    assert log.position == log.size


def test_parquet_is_streamed(tmp_path: Path) -> None:
    rows = [{"prompt": "w1", "response": f"w{i % 9}"} for i in range(2000)]
    log = LogFile(parquet(tmp_path / "log.parquet", rows, row_group_size=100))
    first = next(iter(log))
    assert first.line == 1
    assert log.position < log.size / 2


def test_damaged_parquet_and_a_missing_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "log.parquet", ROWS)
    content = path.read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[:-20])
    with pytest.raises(LogError, match="cannot be read as Parquet"):
        list(LogFile(tmp_path / "cut.parquet"))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'specplug\[parquet\]'"):
        list(LogFile(path))


def read(tokenizer_file: Path, log: LogFile) -> list[tuple[list[int], list[int]]]:
    reader = Reader(load_tokenizer(tokenizer_file), 1000)
    found = reader.tokenised(one_after_the_other([log]))
    return [(r.prompt.tolist(), r.response.tolist()) for r in found]


def test_ids_of_another_tokenizer_are_found(write_log: Any, tokenizer_file: Path) -> None:
    path = write_log(
        {"prompt_token_ids": [1, 2], "token_ids": [3]},
        {"prompt_token_ids": [1, 201], "token_ids": [3]},
        {"prompt_token_ids": [1], "token_ids": [-1]},
    )
    log = LogFile(path)
    assert read(tokenizer_file, log) == [([1, 2], [3])]
    assert log.malformed == 2
    assert "log.jsonl:2: token id 201 lies outside the vocabulary of 201" in log.problems[0]
    with pytest.raises(LogError, match="made by another tokenizer"):
        read(tokenizer_file, LogFile(path, strict=True))


def test_text_that_the_tokenizer_cannot_take_costs_its_line_only(
    write_log: Any, tokenizer_file: Path, tmp_path: Path
) -> None:
    content = json.loads(tokenizer_file.read_text())
    del content["model"]["vocab"]["<unk>"]
    strict = tmp_path / "tokenizer.json"
    strict.write_text(json.dumps(content))
    log = LogFile(write_log({"text": "w1 w2"}, {"text": "w1 unheard"}, {"text": "w3"}))
    assert read(strict, log) == [([], [2, 3]), ([], [4])]
    assert "log.jsonl:2: the tokenizer cannot take this text" in log.problems[0]


def test_one_model_of_several(write_log: Any, tokenizer_file: Path) -> None:
    entries = [{"prompt": "w1", "response": f"w{i}", "model": "ab"[i % 2]} for i in range(5)]
    log = LogFile(write_log(*entries))
    assert len(read(tokenizer_file, log)) == 5
    assert log.models == {"a": 3, "b": 2}
    log = LogFile(write_log(*entries), choice=Choice(model="b"))
    assert len(read(tokenizer_file, log)) == 2
    with pytest.raises(LogError, match="None of them was answered by 'c'"):
        list(LogFile(write_log(*entries), choice=Choice(model="c")))


def test_several_models_under_one_tokenizer_are_remarked_on(
    write_log: Any, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from specplug.cli import main

    log = write_log(*({"prompt": "w1", "response": "w2 w3", "model": m} for m in "aab"))
    assert main(["replay", str(log), "--tokenizer", str(tokenizer_file), "--quiet"]) == 0
    assert (
        "several models answered (a 2, b 1), but one tokenizer counted" in capsys.readouterr().out
    )


def test_a_log_without_end_is_read_in_pieces(
    tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a chunk holds is bounded by tokens and by records, whatever the size of the log."""
    log = LogFile(tmp_path / "log.jsonl")
    log.path.write_text("x")
    record = Record("w1 w2", "w3", 1, "log")
    taken = 0

    def endless() -> Iterator[tuple[LogFile, Record]]:
        nonlocal taken
        while True:
            taken += 1
            yield log, record

    monkeypatch.setattr(reading, "CHUNK_RECORDS", 100)
    chunks = Reader(load_tokenizer(tokenizer_file), 1000).chunks(endless())
    assert [len(next(chunks)) for _ in range(3)] == [100, 100, 100]
    assert taken <= 300 + reading.ENCODE_RECORDS
    monkeypatch.setattr(reading, "CHUNK_TOKENS", 12)
    assert len(next(chunks)) == 4
