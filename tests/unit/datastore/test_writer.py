"""Writing a datastore: what is in the file, in bounded memory, all or nothing, and again after an interruption."""

from __future__ import annotations

import errno
import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.datastore import sorting, spool, writer
from specplug.datastore.writer import WORKSHOP, Writer
from specplug.errors import DatastoreError
from specplug.index.datastore import FILE, Datastore
from specplug.index.datastore_format import HEADER_BYTES

from .conftest import Publish, peak_of

WORDS = list(range(100, 140))


def text(seed: int, size: int, vocab: int = 1000) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, size).tolist()


def test_what_goes_in_comes_out(tmp_path: Path, published: Publish) -> None:
    store = published(tmp_path / "d", [WORDS, [], [7], WORDS[:3]])
    assert store.header.documents == 4
    assert store.header.metadata == {"made": "by a test"}
    assert store.tokens().tolist() == [*WORDS, -1, -1, 7, -1, *WORDS[:3], -1]
    assert store.tokens(39, 42).tolist() == [WORDS[-1], -1, -1]
    found = store.search(np.array(WORDS[:3], np.int32))
    assert found.positions.tolist() == [3]
    assert found.lengths.tolist() == [3]
    store.verify()


def test_matches_come_longest_first(tmp_path: Path, published: Publish) -> None:
    store = published(tmp_path, [[1, 2, 3, 4], [9, 2, 3, 5], [8, 3, 6]])
    found = store.search(np.array([1, 2, 3], np.int32))
    assert [int(store.tokens(p, p + 1)[0]) for p in found.positions] == [4, 5, 6]
    assert found.lengths.tolist() == [3, 2, 1]


@pytest.mark.parametrize("vocab_size", [2, 65_535, 65_536, 128_256, 262_144])
def test_any_vocabulary_fits(tmp_path: Path, published: Publish, vocab_size: int) -> None:
    """Ids above 65,535 overflow in the library of REST."""
    top = vocab_size - 1
    store = published(tmp_path, [[top, 0, top, top, 1 % vocab_size]], vocab_size)
    assert store.header.sections["tokens"].bits == vocab_size.bit_length()
    assert store.tokens().tolist() == [top, 0, top, top, 1 % vocab_size, -1]
    found = store.search(np.array([top, 0], np.int32))
    assert found.positions.tolist()[0] == 2


def test_it_takes_less_than_six_bytes_per_token_at_16_bits(
    tmp_path: Path, published: Publish
) -> None:
    documents = [text(seed, 20_000, 60_000) for seed in range(10)]
    store = published(tmp_path, documents, 60_000)
    assert store.path.stat().st_size / store.header.tokens < 6


def test_the_same_corpus_gives_the_same_bytes(
    tmp_path: Path, published: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [text(seed, 500, 20) for seed in range(20)] * 2
    one = published(tmp_path / "one", documents, 20, memory=1 << 30).path.read_bytes()
    monkeypatch.setattr(sorting, "WORTH", 100)
    for threads in (1, 3):
        for memory in (1, 100_000, 1 << 30):
            other = published(tmp_path / "other", documents, 20, memory, threads)
            assert one == other.path.read_bytes(), (threads, memory)


@pytest.mark.parametrize("vocab_size", [2, 49_152, 151_936, 1 << 22])
def test_any_width_of_tokens_is_sorted_alike_in_any_memory(
    tmp_path: Path, published: Publish, vocab_size: int
) -> None:
    """Keys hold 31 tokens of one bit, two of 23."""
    words = text(0, 40, vocab_size)
    documents = [words * 3, text(1, 500, vocab_size) * 2, [vocab_size - 1] * 50]
    one = published(tmp_path / "one", documents, vocab_size, 1 << 30).path.read_bytes()
    two = published(tmp_path / "two", documents, vocab_size, 1).path.read_bytes()
    assert one == two
    store = Datastore(tmp_path / "one")
    assert store.search(np.array(words * 2, np.int32)).lengths[0] == 32


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("megabytes", [4, 16])
def test_sorting_keeps_to_its_memory(tmp_path: Path, megabytes: int, threads: int) -> None:
    """In ranges, or all at once, which takes 11 MB here and would not fit in the smaller one."""
    memory = megabytes << 20
    with Writer(tmp_path, 1000, memory=memory, threads=threads) as one:
        one.add(np.array(text(0, 400_000), np.int32))
        peak = peak_of(lambda: one.publish({}))
    assert peak < memory + (1 << 20), (
        "blocks that are written, and numbers per token of the vocabulary"
    )
    assert (peak > 10 << 20) == (megabytes == 16)


def test_documents_of_one_token_count_towards_the_memory(tmp_path: Path) -> None:
    """They have no entries, but a rank for each token: all at once takes 7 MB here."""
    with Writer(tmp_path, 1000, memory=4 << 20) as one:
        one.add(np.array(text(0, 1000), np.int32))
        for _ in range(30):
            one.extend([np.array([7], np.int32)] * 20_000)
        peak = peak_of(lambda: one.publish({}))
    assert peak < 5 << 20


@pytest.mark.parametrize(("vocab_size", "bytes_per_token"), [(49_152, 6), (151_936, 8)])
def test_small_corpora_take_no_room_for_tokens_that_do_not_occur(
    tmp_path: Path, published: Publish, vocab_size: int, bytes_per_token: float
) -> None:
    """The table of buckets had a number for each token of the vocabulary."""
    rng = np.random.default_rng(0)
    documents = [(rng.zipf(1.3, 500) % vocab_size).tolist() for _ in range(12)]
    store = published(tmp_path, documents, vocab_size)
    assert store.path.stat().st_size / store.header.tokens < bytes_per_token


@pytest.mark.parametrize("documents", [[], [[]], [[5], [6]]])
def test_an_empty_corpus_is_refused(
    tmp_path: Path, published: Publish, documents: list[list[int]]
) -> None:
    with pytest.raises(DatastoreError, match="nothing to look up; check the inputs"):
        published(tmp_path, documents)
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("token", [-1, 1000, 2**31 - 1])
def test_ids_beyond_the_vocabulary_are_refused(
    tmp_path: Path, published: Publish, token: int
) -> None:
    with pytest.raises(DatastoreError, match=rf"token 2 of a document is {token}, outside"):
        published(tmp_path, [[1, 2, token]])


@pytest.mark.parametrize("token", [-(2**40), 2**32 + 5])
def test_ids_beyond_32_bits_are_refused_not_cut(tmp_path: Path, token: int) -> None:
    with Writer(tmp_path, 1000) as one:
        one.add(np.array([1, 2, 3], np.int64)[::2])
        with pytest.raises(DatastoreError, match=rf"token 1 of a document is {token}, outside"):
            one.add(np.array([5, token], np.int64))
        one.publish({})
    assert Datastore(tmp_path).tokens().tolist() == [1, 3, -1]


def interrupted(folder: Path, documents: list[list[int]], after: int, **identity: Any) -> None:
    """A build that ends after so many documents, a few more than it remembered."""
    with Writer(folder, 1000, identity=identity) as unfinished:
        for number, document in enumerate(documents[: after + 3]):
            if number == after:
                unfinished.checkpoint({"documents": after})
            unfinished.add(np.array(document, np.int32))


def test_an_interrupted_build_goes_on(tmp_path: Path, published: Publish) -> None:
    documents = [text(seed, 300 + seed) for seed in range(30)]
    expected = published(tmp_path / "whole", documents).path.read_bytes()
    interrupted(tmp_path / "part", documents, 17)
    with Writer(tmp_path / "part", 1000, identity={}) as again:
        assert again.cursor == {"documents": 17}
        assert again.documents == 17
        for document in documents[17:]:
            again.add(np.array(document, np.int32))
        again.publish({"made": "by a test"})
    assert (tmp_path / "part" / FILE).read_bytes() == expected


@pytest.mark.parametrize("damage", ["other inputs", "no journal", "bad journal", "short file"])
def test_a_build_that_cannot_go_on_begins_anew(
    tmp_path: Path, published: Publish, damage: str
) -> None:
    documents = [text(seed, 500) for seed in range(10)]
    interrupted(tmp_path, documents, 5, inputs="a")
    workshop = tmp_path / WORKSHOP
    if damage == "no journal":
        (workshop / "journal.json").unlink()
    elif damage == "bad journal":
        (workshop / "journal.json").write_text('{"tokens"')
    elif damage == "short file":
        with (workshop / FILE).open("r+b") as file:
            file.truncate(HEADER_BYTES + 10)
    inputs = "b" if damage == "other inputs" else "a"
    with Writer(tmp_path, 1000, identity={"inputs": inputs}) as again:
        assert again.cursor == {}
        assert again.documents == again.tokens == 0
        again.add(np.array(WORDS, np.int32))
        again.publish({})
    assert Datastore(tmp_path).tokens().tolist() == [*WORDS, -1]


@pytest.mark.parametrize("when", ["while reading", "while sorting", "at the end"])
def test_a_full_disk_publishes_nothing(
    tmp_path: Path, published: Publish, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    before = published(tmp_path, [[1, 2, 3]]).path.read_bytes()

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    memory = 1 if when == "while reading" else 1 << 30
    with Writer(tmp_path, 1000, memory=memory) as unlucky:
        unlucky.add(np.array(WORDS, np.int32))
        if when == "while reading":
            monkeypatch.setattr(spool.PackedSpool, "flush", full)
            with pytest.raises(DatastoreError, match=r"no space left for .*nothing was published"):
                unlucky.add(np.zeros(spool.BLOCK, np.int32))
        else:
            name = "sorted_entries" if when == "while sorting" else "encode"
            monkeypatch.setattr(writer, name, full)
            with pytest.raises(DatastoreError, match="run the same command again"):
                unlucky.publish({})
    assert (tmp_path / FILE).read_bytes() == before
    assert Datastore(tmp_path).tokens().tolist() == [1, 2, 3, -1]


def test_a_build_that_failed_to_publish_can_be_published_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written twice went into the checksum twice: a file that ``verify`` called damaged."""

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Writer(tmp_path, 1000) as unlucky:
        unlucky.add(np.array([7], np.int32))
        with pytest.raises(DatastoreError, match="nothing to look up"):
            unlucky.publish({})
        unlucky.add(np.array(WORDS * 2, np.int32))
        with monkeypatch.context() as patch:
            patch.setattr(writer, "encode", full)
            with pytest.raises(DatastoreError, match="no space left"):
                unlucky.publish({})
        unlucky.publish({})
    store = Datastore(tmp_path)
    store.verify()
    assert store.tokens().tolist() == [7, -1, *WORDS, *WORDS, -1]


class _Full:
    """A file on a disk that is full until it is not."""

    def __init__(self, file: Any) -> None:
        self.file, self.refuse = file, True

    def write(self, content: Any) -> int:
        if self.refuse:
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self.file.write(content))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_half_a_document_is_never_joined_to_the_next(tmp_path: Path) -> None:
    """The one that found the disk full had no end, and the next one went on in the middle of it."""
    with Writer(tmp_path, 1000) as unlucky:
        unlucky.add(np.array(WORDS * 2, np.int32))
        unlucky.checkpoint({"read": 1})
        disk = _Full(unlucky._workshop.file)
        unlucky._spool._file = disk  # type: ignore[assignment]
        with pytest.raises(DatastoreError, match="no space left"):
            unlucky.add(np.zeros(2 * spool.BLOCK, np.int32))
        disk.refuse = False
        for call in (lambda: unlucky.add(np.array(WORDS, np.int32)), lambda: unlucky.publish({})):
            with pytest.raises(DatastoreError, match="open a new Writer"):
                call()
    with Writer(tmp_path, 1000) as again:
        assert again.cursor == {"read": 1}
        again.add(np.array(WORDS[::-1], np.int32))
        again.publish({})
    store = Datastore(tmp_path)
    store.verify()
    assert store.tokens().tolist() == [*WORDS, *WORDS, -1, *WORDS[::-1], -1]


@pytest.mark.parametrize(
    "dtype", [np.uint8, np.uint16, np.uint32, np.uint64, np.int16, np.int64, np.float64]
)
def test_ids_of_any_kind_of_number(tmp_path: Path, dtype: type[np.generic]) -> None:
    """Unsigned ones, the usual form of tokenised corpora, were too much for numpy 2.0."""
    with Writer(tmp_path, 1000) as one:
        one.add(np.array([1, 2, 100], dtype))  # type: ignore[arg-type]
        if np.dtype(dtype).itemsize == 8:
            with pytest.raises(DatastoreError, match="outside of the vocabulary"):
                one.add(np.array([1, 2**32 + 5], dtype))  # type: ignore[arg-type]
        one.publish({})
    store = Datastore(tmp_path)
    assert store.tokens().tolist() == [1, 2, 100, -1]
    assert store.search([1, 2]).lengths.tolist() == [2]  # type: ignore[arg-type]


def test_a_file_that_may_not_grow_is_explained(tmp_path: Path, published: Publish) -> None:
    """The system's own refusal, not a stand-in."""
    before = published(tmp_path, [[1, 2, 3]]).path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Writer(tmp_path, 1000) as unlucky:
        for seed in range(100):
            unlucky.add(np.array(text(seed, 1000), np.int32))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
        try:
            with pytest.raises(DatastoreError, match="nothing was published"):
                unlucky.checkpoint({})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / FILE).read_bytes() == before


def test_progress_reaches_its_end(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    with Writer(tmp_path, 1000, memory=1) as one:
        one.add(np.array(WORDS, np.int32))
        one.publish({}, lambda what, done, total: seen.append((what, done, total)))
    assert {what for what, _, _ in seen} == {"sorting"}
    assert ("sorting", 39, 39) in seen
    assert seen[-1][1] == seen[-1][2]


def test_the_journal_is_replaced_as_a_whole(tmp_path: Path) -> None:
    with Writer(tmp_path, 1000) as one:
        one.checkpoint({"a": 1})
        content = json.loads((tmp_path / WORKSHOP / "journal.json").read_text())
    assert content["cursor"] == {"a": 1}
    assert not (tmp_path / WORKSHOP / "journal.new").exists()


def test_a_long_document_is_not_copied_as_a_whole(tmp_path: Path) -> None:
    """It may be a large file; twice its size was needed beside it."""
    document = np.zeros(1 << 22, np.int32)
    with Writer(tmp_path, 100) as writer:
        writer.add(document[:100_000])  # from here on it goes to the disk
        peak = peak_of(lambda: writer.add(document))
    assert peak < document.nbytes // 2, f"{peak} bytes for a document of {document.nbytes}"
