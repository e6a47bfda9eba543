"""From inputs to a datastore: kinds of inputs, filters, duplicates, what cannot be read, going on, merging."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from specplug.datastore import build as building
from specplug.datastore.build import Options, build
from specplug.datastore.inputs import Filters, documents_of
from specplug.datastore.writer import WORKSHOP
from specplug.errors import DatastoreError, LogError
from specplug.index.datastore import FILE, Datastore
from specplug.replay.tokenizers import TextTokenizer, load_tokenizer
from specplug.replay.traces import Choice

WORDS = [f"w{i}" for i in range(50)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    """One id per word; word ``w7`` is id 7."""
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return load_tokenizer(path)


def texts(store: Path) -> list[list[int]]:
    return [document.tolist() for document in documents_of(Datastore(store))]


def write(path: Path, *entries: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_every_kind_of_record_is_read(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    log = write(
        tmp_path / "log.jsonl",
        {"prompt": "w1 w2", "response": "w3 w4"},
        {
            "messages": [
                {"role": "user", "content": "w1"},
                {"role": "assistant", "content": "w5 w6"},
            ]
        },
        {"text": "w7 w8"},
        {"prompt_token_ids": [1], "token_ids": [9, 10]},
    )
    header, counts = build(tmp_path / "d", [log], tokenizer)
    assert texts(tmp_path / "d") == [[3, 4], [5, 6], [7, 8], [9, 10]]
    assert (header.documents, counts.taken) == (4, 4)
    assert header.vocab_size == 50
    assert header.vocabulary == tokenizer.vocabulary_digest
    assert header.metadata["inputs"] == ["log.jsonl"]


def parquet(path: Path, **columns: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    return path


def test_parquet_becomes_what_the_same_json_lines_become(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    rows = [
        {"prompt": "w1", "response": "w2 w3", "license": "mit"},
        {"prompt": "w4", "response": "w5 w6", "license": "gpl"},
        {"prompt": "w7", "response": "w8 w9", "license": "MIT"},
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    chosen = Options(Filters(choice=Choice(where=(("license", ("mit",)),))))
    build(tmp_path / "p", [parquet(tmp_path / "log.parquet", **columns)], tokenizer, chosen)
    build(tmp_path / "j", [write(tmp_path / "log.jsonl", *rows)], tokenizer, chosen)
    assert texts(tmp_path / "p") == texts(tmp_path / "j") == [[2, 3], [8, 9]]


def test_parquet_with_token_ids_and_in_a_folder(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    (tmp_path / "logs").mkdir()
    ids = [[1, 2, 3], [4, 5]]
    parquet(tmp_path / "logs" / "a.parquet", prompt_token_ids=[[0], [0]], token_ids=ids)
    parquet(tmp_path / "logs" / "b.parquet", text=["w6 w7", "w8"])
    _, counts = build(tmp_path / "d", [tmp_path / "logs"], tokenizer)
    assert texts(tmp_path / "d") == [*ids, [6, 7]]
    assert (counts.taken, counts.short, counts.unreadable) == (3, 1, 0)


def test_what_is_no_parquet_is_counted_or_stops_the_build(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    good = write(tmp_path / "a.jsonl", {"text": "w1 w2"})
    whole = parquet(tmp_path / "b.parquet", text=["w3 w4"] * 50).read_bytes()
    for damaged in (whole[:-20], b"PAR1 and nothing else"):
        (tmp_path / "b.parquet").write_bytes(damaged)
        inputs = [good, tmp_path / "b.parquet"]
        _, counts = build(tmp_path / "d", inputs, tokenizer)
        assert texts(tmp_path / "d") == [[1, 2]]
        assert counts.unreadable == 1
        assert "b.parquet" in counts.problems[0]
        with pytest.raises((DatastoreError, LogError), match=r"b\.parquet.*strict"):
            build(tmp_path / "d", inputs, tokenizer, Options(Filters(strict=True)))


def test_prompts_come_with_the_responses_if_wanted(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    log = write(tmp_path / "log.jsonl", {"prompt": "w1 w2 ", "response": "w3"})
    build(tmp_path / "d", [log], tokenizer, Options(Filters(whole=True)))
    assert texts(tmp_path / "d") == [[1, 2, 3]]


def test_folders_are_read_in_order_with_globs(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    tree = tmp_path / "tree"
    for name, text in {
        "b/two.py": "w2 w2",
        "a/one.py": "w1 w1",
        "a/notes.md": "w3 w3",
        "a/.hidden.py": "w4 w4",
        ".git/x.py": "w5 w5",
        "tests/t.py": "w6 w6",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "a" / "picture.py").write_bytes(b"\x89\0\0")
    (tree / "a" / "latin.py").write_bytes(b"w1 \xe9")
    filters = Filters(include=("*.py",), exclude=("tests/*",))
    _, counts = build(tmp_path / "d", [tree], tokenizer, Options(filters))
    assert texts(tmp_path / "d") == [[1, 1], [2, 2]]
    assert (counts.filtered, counts.unreadable) == (2, 2)
    assert ["not UTF-8" in p or "binary" in p for p in counts.problems] == [True, True]


def test_long_and_packed_text_files(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specplug.datastore.inputs.PIECE", 10)
    with gzip.open(tmp_path / "book.txt.gz", "wt") as book:
        book.write("w1 w2 w3\nw4 w5 w6\nw7 w8")
    build(tmp_path / "d", [tmp_path / "book.txt.gz"], tokenizer)
    assert texts(tmp_path / "d") == [[1, 2, 3, 4, 5, 6], [7, 8]]


def test_records_are_chosen_by_their_fields(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    log = write(
        tmp_path / "log.jsonl",
        {"text": "w1 w1", "license": "MIT"},
        {"text": "w2 w2", "license": "GPL-3.0"},
        {"text": "w3 w3", "meta": {"team": "a"}, "license": "Apache-2.0"},
        {"text": "w4 w4"},
    )
    where = (("license", ("mit", "apache-*")),)
    build(tmp_path / "d", [log], tokenizer, Options(Filters(choice=Choice(where=where))))
    assert texts(tmp_path / "d") == [[1, 1], [3, 3]]


def test_duplicates_and_short_documents_are_left_out(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    entries = [{"text": t} for t in ("w1 w2 w3", "w4", "w1 w2 w3", "w5 w6 w7", "w1 w2 w3")]
    log = write(tmp_path / "log.jsonl", *entries)
    _, counts = build(tmp_path / "d", [log, log], tokenizer, Options(min_tokens=3))
    assert texts(tmp_path / "d") == [[1, 2, 3], [5, 6, 7]]
    assert (counts.taken, counts.short, counts.duplicate) == (2, 1, 7)
    build(tmp_path / "d", [log], tokenizer, Options(min_tokens=3, duplicates=True))
    assert len(texts(tmp_path / "d")) == 4


def test_the_memory_of_duplicates_is_bounded() -> None:
    few = building.Duplicates(3 * building.REMEMBERED)
    assert [few.seen(t) for t in ("a", "b", "a", "c", "d", "a", "d")] == [
        *(False, False, True, False, False, False, True)
    ]


def test_unreadable_records_are_counted_or_stop_the_build(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    log = write(tmp_path / "log.jsonl", {"text": "w1 w2"})
    with log.open("a") as more:
        more.write('{"text"\n{"answer": "w3"}\n')
    _, counts = build(tmp_path / "d", [log], tokenizer)
    assert (counts.taken, counts.unreadable, len(counts.problems)) == (1, 2, 2)
    before = (tmp_path / "d" / FILE).read_bytes()
    with pytest.raises(DatastoreError, match=r"log.jsonl:2.*build without --strict"):
        build(tmp_path / "d", [log], tokenizer, Options(Filters(strict=True)))
    assert (tmp_path / "d" / FILE).read_bytes() == before


def test_a_truncated_archive_is_counted(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    good = write(tmp_path / "a.jsonl", {"text": "w1 w2"})
    packed = gzip.compress(b'{"text": "w3 w4"}\n' * 2000)
    (tmp_path / "b.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    _, counts = build(tmp_path / "d", [good, tmp_path / "b.jsonl.gz"], tokenizer)
    assert counts.unreadable == 1
    assert "is the file complete?" in counts.problems[0]


@pytest.mark.parametrize("name", ["none.jsonl", "none"])
def test_a_missing_input_is_an_error(tmp_path: Path, tokenizer: TextTokenizer, name: str) -> None:
    with pytest.raises(DatastoreError, match=f"input .*{name} does not exist"):
        build(tmp_path / "d", [tmp_path / name], tokenizer)
    assert not (tmp_path / "d" / FILE).exists()


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", {"text": "w1 w2"})
    with pytest.raises(DatastoreError, match="no tokenizer is given"):
        build(tmp_path / "d", [log], None)


def test_ids_of_another_tokenizer_are_refused(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    log = write(tmp_path / "log.jsonl", {"prompt_token_ids": [], "token_ids": [3, 50]})
    message = r"token 1 of a document is 50, outside .* 0 \.\. 49; build with the tokenizer that"
    with pytest.raises(DatastoreError, match=message):
        build(tmp_path / "d", [log], tokenizer)


def many(path: Path, count: int) -> Path:
    rng = np.random.default_rng(0)
    entries = [{"text": " ".join(f"w{i}" for i in rng.integers(0, 50, 20))} for _ in range(count)]
    return write(path, *entries, *entries[:10])


def test_an_interrupted_build_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = many(tmp_path / "log.jsonl", 300)
    build(tmp_path / "whole", [log], tokenizer)
    monkeypatch.setattr(building, "BATCH", 32)
    monkeypatch.setattr(building, "CHECKPOINT", 1000)
    encoded: list[int] = []
    real = TextTokenizer.encode

    def counted(self: TextTokenizer, batch: list[str]) -> Any:
        encoded.append(len(batch))
        if sum(encoded) > 200 and not (tmp_path / "went on").exists():
            raise KeyboardInterrupt
        return real(self, batch)

    monkeypatch.setattr(TextTokenizer, "encode", counted)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "part", [log], tokenizer)
    assert (tmp_path / "part" / WORKSHOP).exists()
    assert not (tmp_path / "part" / FILE).exists()
    (tmp_path / "went on").touch()
    encoded.clear()
    _, counts = build(tmp_path / "part", [log], tokenizer)
    assert sum(encoded) < 200, "what is in the file already is not tokenized again"
    assert (counts.taken, counts.duplicate) == (300, 10)
    assert (tmp_path / "part" / FILE).read_bytes() == (tmp_path / "whole" / FILE).read_bytes()


def test_merging_keeps_documents_once(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    one = write(tmp_path / "one.jsonl", {"text": "w1 w2"}, {"text": "w3 w4"})
    two = write(tmp_path / "two.jsonl", {"text": "w3 w4"}, {"text": "w5 w6"})
    build(tmp_path / "one", [one], tokenizer)
    build(tmp_path / "two", [two], tokenizer)
    header, counts = build(tmp_path / "both", [tmp_path / "one", tmp_path / "two"], None)
    assert texts(tmp_path / "both") == [[1, 2], [3, 4], [5, 6]]
    assert counts.duplicate == 1
    assert header.vocabulary == tokenizer.vocabulary_digest
    Datastore(tmp_path / "both").verify()


def test_datastores_of_different_vocabularies_do_not_merge(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    from .conftest import publish

    one = write(tmp_path / "one.jsonl", {"text": "w1 w2"})
    build(tmp_path / "one", [one], tokenizer)
    publish(tmp_path / "two", [[1, 2]], 50)
    with pytest.raises(DatastoreError, match="two was built with another vocabulary"):
        build(tmp_path / "both", [tmp_path / "one", tmp_path / "two"], None)


def test_documents_longer_than_a_block_are_read_whole(tmp_path: Path) -> None:
    from .conftest import publish

    documents = [[1] * 25, [2, 3], [], [4] * 7]
    store = publish(tmp_path, documents)
    assert [d.tolist() for d in documents_of(store, block=10)] == documents
