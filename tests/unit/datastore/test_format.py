"""Opening: what is no datastore, or a damaged one, is refused with a sentence that says what to do."""

from __future__ import annotations

import gzip
import hashlib
import os
import resource
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from specplug.errors import DatastoreError
from specplug.index import datastore
from specplug.index.datastore import FILE, Datastore
from specplug.index.datastore_format import HEADER_BYTES, MAGIC, SECTIONS, bits_for, layout

from .conftest import Publish

WORDS = list(range(100, 140))


@pytest.fixture
def file(tmp_path: Path, published: Publish) -> Path:
    return published(tmp_path, [WORDS * 3]).path


def change(file: Path, offset: int, content: bytes, reseal: bool = False) -> None:
    data = bytearray(file.read_bytes())
    data[offset : offset + len(content)] = content
    if reseal:
        data[288:320] = bytes(32)
        data[288:320] = hashlib.sha256(data[:HEADER_BYTES]).digest()
    file.write_bytes(bytes(data))


def test_the_header_lies_where_the_document_says(file: Path) -> None:
    page = file.read_bytes()[:HEADER_BYTES]
    assert page[:8] == MAGIC
    assert struct.unpack_from("<II", page, 8) == (2, 40)
    vocab, tokens, entries, documents, depth = struct.unpack_from("<5Q", page, 16)
    assert (vocab, tokens, entries, documents, depth) == (1000, 121, 119, 1, 32)
    sections = [struct.unpack_from("<4Q", page, 56 + 32 * i) for i in range(3)]
    assert [section[:2] for section in sections] == [(10, 4096), (7, 4288), (17, 4416)]
    data = file.read_bytes()
    for i, (_, offset, size, _) in enumerate(sections):
        digest = hashlib.sha256(data[offset : offset + size]).digest()
        assert page[152 + 32 * i : 184 + 32 * i] == digest
    (length,) = struct.unpack_from("<Q", page, 280)
    assert page[512 : 512 + length] == b'{"made": "by a test"}'


def test_tokens_can_be_read_by_the_document_alone(file: Path) -> None:
    number = int.from_bytes(file.read_bytes()[4096:4288], "little")
    assert [number >> (10 * i) & 1023 for i in range(121)] == [*WORDS * 3, 1000]


def test_buckets_can_be_read_by_the_document_alone(file: Path) -> None:
    number = int.from_bytes(file.read_bytes()[4416:], "little")
    records = [number >> (17 * i) & (2**17 - 1) for i in range(41)]
    assert [record >> 7 for record in records] == [*WORDS, 1000]
    # Each of the 40 stands before three positions, the last one before two.
    assert [record & 127 for record in records] == [*range(0, 120, 3), 119]


@pytest.mark.parametrize(("vocab_size", "listed"), [(1000, True), (150, False)])
def test_few_last_tokens_are_listed_many_are_not(
    tmp_path: Path, published: Publish, vocab_size: int, listed: bool
) -> None:
    store = published(tmp_path, [WORDS * 10], vocab_size)
    assert store.header.listed == (40 if listed else 0)
    for start in range(35):
        found = store.search(np.array(WORDS[start : start + 3], np.int32))
        assert found.lengths[0] == 3
        assert int(store.tokens(found.positions[0], found.positions[0] + 1)[0]) == WORDS[start + 3]
    for absent in (0, 99, 140, vocab_size - 1):
        assert len(store.search(np.array([absent], np.int32)).lengths) == 0


def test_a_file_of_version_1_is_still_read(tmp_path: Path) -> None:
    packed = Path(__file__).parents[2] / "golden" / "datastore_version_1.bin.gz"
    (tmp_path / FILE).write_bytes(gzip.decompress(packed.read_bytes()))
    store = Datastore(tmp_path)
    store.verify()
    assert (store.header.version, store.header.documents) == (1, 3)
    assert store.header.vocabulary == "0123456789abcdef"
    assert store.tokens().tolist() == [1, 2, 3, 4, -1, 9, 2, 3, 5, -1, 7, -1]
    found = store.search(np.array([1, 2, 3], np.int32))
    assert (found.positions.tolist(), found.lengths.tolist()) == ([3, 8], [3, 2])


@pytest.mark.parametrize(
    ("offset", "content", "message"),
    [
        (0, b"PK\x03\x04zip!", r"is no datastore: it begins with b'PK.*specplug datastore build"),
        (8, b"\x03", "format version 3, this specplug reads versions up to 2; upgrade specplug"),
        (24, b"\xff", r"the header is damaged \(checksum\)"),
        (600, b"\xff", r"the header is damaged \(checksum\)"),
    ],
)
def test_a_bad_header_is_refused(file: Path, offset: int, content: bytes, message: str) -> None:
    change(file, offset, content)
    with pytest.raises(DatastoreError, match=message):
        Datastore(file)


def test_sections_that_contradict_the_counts_are_refused(file: Path) -> None:
    change(file, 24, struct.pack("<Q", 10**6), reseal=True)
    with pytest.raises(
        DatastoreError, match="are not those of format version 2; copy or build it again"
    ):
        Datastore(file)


@pytest.mark.parametrize("size", [0, 7, 100, HEADER_BYTES, HEADER_BYTES + 100])
def test_a_truncated_file_is_refused(file: Path, size: int) -> None:
    os.truncate(file, size)
    with pytest.raises(DatastoreError, match=r"no datastore|within its header|it was cut"):
        Datastore(file)


def test_a_file_with_something_behind_it_is_refused(file: Path) -> None:
    with file.open("ab") as more:
        more.write(b"x")
    with pytest.raises(DatastoreError, match=r"its header says \d+; it was cut or is still"):
        Datastore(file)


@pytest.mark.parametrize("name", SECTIONS)
def test_verify_names_the_damaged_section(file: Path, name: str) -> None:
    offset = Datastore(file).header.sections[name].offset
    change(file, offset + 8, b"\xa5\x5a")
    store = Datastore(file)
    with pytest.raises(DatastoreError, match=f"the section '{name}' is damaged"):
        store.verify()


def test_look_ups_in_a_damaged_file_find_nonsense_and_nothing_worse(
    tmp_path: Path, published: Publish
) -> None:
    file = published(tmp_path, [WORDS * 20], 200).path
    rng = np.random.default_rng(0)
    for seed in range(20):
        sections = Datastore(file).header.sections
        for section in sections.values():
            change(file, section.offset, rng.bytes(section.size))
        store = Datastore(file)
        for start in range(0, 200, 7):
            found = store.search(np.arange(start, start + 9, dtype=np.int32) % 200)
            assert (found.positions < store.header.tokens).all(), seed


def test_no_datastore_at_all(tmp_path: Path) -> None:
    with pytest.raises(DatastoreError, match=r"no datastore at .*specplug datastore build"):
        Datastore(tmp_path)
    (tmp_path / FILE).mkdir()
    with pytest.raises(DatastoreError, match="cannot be opened"):
        Datastore(tmp_path)


def test_opening_does_not_read_the_sections(file: Path) -> None:
    """A sparse file of 40 GB opens at once."""
    sections = layout(1000, 1 << 34, 1 << 33, listed=40)
    data = bytearray(file.read_bytes()[:HEADER_BYTES])
    struct.pack_into("<2Q", data, 24, 1 << 34, 1 << 33)
    for i, name in enumerate(SECTIONS):
        section = sections[name]
        struct.pack_into("<4Q", data, 56 + 32 * i, section.bits, section.offset, section.size, 0)
    data[288:320] = bytes(32)
    data[288:320] = hashlib.sha256(data).digest()
    file.write_bytes(bytes(data))
    os.truncate(file, max(s.offset + s.size for s in sections.values()))
    begin = time.perf_counter()
    store = Datastore(file)
    assert time.perf_counter() - begin < 1.0, "milliseconds were promised"
    assert store.header.tokens == 1 << 34


def test_the_pages_of_a_small_file_are_at_hand(
    tmp_path: Path, published: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look-ups waited for page faults: a hundredth of them took twice as long."""
    published(tmp_path, [np.random.default_rng(0).integers(0, 1000, 150_000).tolist()])

    def faults() -> int:
        words = Datastore(tmp_path).shelf.words
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        int(words[::512].max())
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    few = min(faults() for _ in range(5))
    monkeypatch.setattr(datastore, "AT_HAND", 0)
    # The system brings 16 pages with each fault.
    assert few < 3 < min(faults() for _ in range(5))


def test_widths() -> None:
    assert [bits_for(n) for n in (0, 1, 2, 65_535, 65_536)] == [1, 1, 2, 16, 17]


def test_what_a_search_found_is_kept_as_a_copy_only(file: Path) -> None:
    store = Datastore(file)
    first = store.search(np.array(WORDS[:3], np.int32))
    kept, size = first.copy(), len(first.positions)
    assert kept.positions.flags.writeable
    assert not first.positions.flags.writeable  # it is the room of the store
    again = store.search(np.array(WORDS[5:8], np.int32))
    assert np.shares_memory(first.positions, again.positions)
    assert again.positions.tolist() != kept.positions.tolist()
    assert store.search(np.array(WORDS[:3], np.int32)).positions.tolist() == kept.positions.tolist()
    assert (len(kept.lengths), kept.lengths[0]) == (size, 3)
