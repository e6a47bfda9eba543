"""The file format: what comes back, what is refused and in which words, and that nothing is lost half-way."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import StoreFileError
from specplug.index import store_file
from specplug.index.store_file import (
    Outputs,
    Vocabulary,
    joined,
    no_outputs,
    read_store,
    write_store,
)

VOCABULARY = Vocabulary(1000, "0123456789abcdef")
Texts = list[tuple[str, list[int]]]


def outputs(*texts: tuple[str, list[int]]) -> Outputs:
    names = sorted({name for name, _ in texts})
    return Outputs(
        np.array([t for _, text in texts for t in text], np.int32),
        np.array([len(text) for _, text in texts], np.int64),
        np.array([names.index(name) for name, _ in texts], np.int32),
        tuple(names),
    )


def texts_of(found: Outputs) -> Texts:
    ends = np.cumsum(found.lengths)
    return [
        (found.names[owner], found.tokens[end - length : end].tolist())
        for owner, length, end in zip(found.owners, found.lengths, ends, strict=True)
    ]


SAMPLE: Texts = [("", [1, 2, 3]), ("tenant \n é", [999, -1, 0]), ("", [5])]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def saved(path: Path) -> Path:
    write_store(path, outputs(*SAMPLE), VOCABULARY)
    return path


def test_what_was_written_is_read(saved: Path) -> None:
    assert texts_of(read_store(saved, VOCABULARY)) == SAMPLE


def test_nothing_is_written_and_read_too(path: Path) -> None:
    write_store(path, no_outputs(), VOCABULARY)
    assert len(read_store(path, VOCABULARY)) == 0


def test_the_largest_vocabulary(path: Path) -> None:
    top = 2**31 - 2
    write_store(path, outputs(("", [top, 0, top])), Vocabulary(2**31 - 1))
    assert texts_of(read_store(path, Vocabulary(2**31 - 1))) == [("", [top, 0, top])]


def test_the_first_lines_can_be_read_by_people(saved: Path) -> None:
    first, second = saved.read_bytes().split(b"\n")[:2]
    assert first == b"specplug-store 1"
    header = json.loads(second)
    assert (header["outputs"], header["tokens"], header["vocab_size"]) == (3, 7, 1000)


def test_only_the_owner_can_read_what_requests_have_said(saved: Path) -> None:
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


@given(
    texts=st.lists(
        st.tuples(st.sampled_from(["", "a", "b"]), st.lists(st.integers(0, 9), min_size=1)),
        max_size=8,
    ),
    split=st.integers(0, 8),
    limit=st.integers(0, 40),
)
def test_joining_keeps_the_newest_whole_outputs(texts: Texts, split: int, limit: int) -> None:
    got = joined(outputs(*texts[:split]), outputs(*texts[split:]), limit)
    ref: Texts = []
    for name, text in reversed(texts):
        if sum(len(t) for _, t in ref) + len(text) > limit:
            break
        ref.insert(0, (name, text))
    assert texts_of(got) == ref
    assert set(got.names) == {name for name, _ in ref}, "names that no output has are dropped"


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def change_header(**changes: Any) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        first, second, rest = content.split(b"\n", 2)
        header = {**json.loads(second), **changes}
        return b"\n".join([first, json.dumps(header).encode(), rest])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: b"", "is empty or truncated"),
        (lambda c: c[:10], "is empty or truncated"),
        (lambda c: b"specplug-store one\n" + c[17:], "damaged: its first line"),
        (lambda c: c[:40], "header cannot be read"),
        (lambda c: c[:-1], "truncated: .* bytes should follow its header"),
        (lambda c: c + b"x", "damaged: .* bytes should follow"),
        (lambda c: c[:-2] + bytes([c[-2] ^ 1]) + c[-1:], "its checksum is wrong"),
        (change_header(saved="another day"), "its checksum is wrong"),
        (change_header(names=["", "someone else"]), "its checksum is wrong"),
        (change_header(names=5), "header cannot be read"),
        (change_header(names=[5]), "values of wrong types"),
        (change_header(tokens=-1), "values of wrong types"),
        (change_header(tokens=2**60), "truncated"),
        (change_header(outputs=True), "values of wrong types"),
    ],
)
def test_damage_is_found_and_named(
    saved: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    edit(saved, change)
    with pytest.raises(StoreFileError, match=message) as caught:
        read_store(saved, VOCABULARY)
    assert caught.value.damaged
    assert str(saved) in str(caught.value)


def test_every_truncation_is_damage(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in range(len(whole)):
        saved.write_bytes(whole[:length])
        with pytest.raises(StoreFileError):
            read_store(saved, VOCABULARY)


def test_every_flipped_byte_is_found(saved: Path) -> None:
    whole = saved.read_bytes()
    for place in range(len(whole)):
        saved.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(StoreFileError):
            read_store(saved, VOCABULARY)


@pytest.mark.parametrize(
    "broken",
    [
        Outputs(np.array([1], np.int32), np.array([1]), np.array([1], np.int32), ("",)),
        Outputs(np.array([1], np.int32), np.array([1]), np.array([-1], np.int32), ("",)),
        Outputs(np.array([1], np.int32), np.array([2]), np.array([0], np.int32), ("",)),
        Outputs(np.array([1], np.int32), np.array([0]), np.array([0], np.int32), ("",)),
        Outputs(np.array([-2], np.int32), np.array([1]), np.array([0], np.int32), ("",)),
        Outputs(np.array([1000], np.int32), np.array([1]), np.array([0], np.int32), ("",)),
        Outputs(np.array([1, 2, 3], np.int32), np.array([1]), np.array([0], np.int32), ("",)),
    ],
)
def test_numbers_out_of_range_are_refused_even_with_a_right_checksum(
    path: Path, broken: Outputs
) -> None:
    write_store(path, broken, VOCABULARY)
    with pytest.raises(StoreFileError, match=r"out of range|do not add up"):
        read_store(path, VOCABULARY)


@pytest.mark.parametrize("content", [b"my novel\n", b"\x00" * 100, b'{"prompt": "x"}\n'])
def test_a_foreign_file_is_no_damaged_store(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreFileError, match="is no store of specplug: it begins with") as caught:
        read_store(path, VOCABULARY)
    assert not caught.value.damaged


def test_a_newer_version_says_to_upgrade(saved: Path) -> None:
    edit(saved, lambda c: c.replace(b"store 1\n", b"store 2\n", 1))
    with pytest.raises(StoreFileError, match=r"has version 2, .* upgrade specplug") as caught:
        read_store(saved, VOCABULARY)
    assert not caught.value.damaged


@pytest.mark.parametrize(
    ("ours", "fits"),
    [
        (Vocabulary(1000, "0123456789abcdef"), True),
        (Vocabulary(1024, "0123456789abcdef"), True),  # the model pads its vocabulary
        (Vocabulary(1000, ""), True),
        (Vocabulary(1000, "fedcba9876543210"), False),
        (Vocabulary(1024, ""), False),
    ],
)
def test_another_tokenizer_is_refused(saved: Path, ours: Vocabulary, fits: bool) -> None:
    if fits:
        assert texts_of(read_store(saved, ours)) == SAMPLE
        return
    with pytest.raises(StoreFileError, match="made for a vocabulary of 1000 tokens") as caught:
        read_store(saved, ours)
    assert not caught.value.damaged


def test_ids_that_the_model_does_not_have_become_separators(saved: Path) -> None:
    found = read_store(saved, Vocabulary(5, VOCABULARY.digest))
    assert texts_of(found) == [("", [1, 2, 3]), ("tenant \n é", [-1, -1, 0]), ("", [-1])]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_file.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_store(saved, outputs(("", [7])), VOCABULARY)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]
