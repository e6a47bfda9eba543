"""Where a datastore is put together: in memory or on disk, by one process at a time, with nothing left beside it."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.datastore.writer import WORKSHOP, Writer
from specplug.errors import DatastoreError
from specplug.index.datastore import FILE, Datastore

from .conftest import Publish
from .test_writer import WORDS, text


def test_nothing_is_left_beside_the_published_file(tmp_path: Path, published: Publish) -> None:
    published(tmp_path, [WORDS])
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_two_builds_of_one_folder_do_not_mix(tmp_path: Path) -> None:
    with Writer(tmp_path, 10), pytest.raises(DatastoreError, match="being built by another"):
        Writer(tmp_path, 10)


def test_a_build_of_a_few_tokens_goes_on(tmp_path: Path) -> None:
    """Fewer than 64 tokens are in the journal only; the file beside it is empty, which was taken for a damaged one."""
    with Writer(tmp_path, 1000) as unfinished:
        unfinished.add(np.array([1, 2, 3], np.int32))
        unfinished.checkpoint({"read": 1})
    with Writer(tmp_path, 1000) as again:
        assert (again.cursor, again.documents, again.tokens) == ({"read": 1}, 1, 4)
        again.publish({})
    assert Datastore(tmp_path).tokens().tolist() == [1, 2, 3, -1]
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("memory", [1, 1 << 30])
@pytest.mark.parametrize("durable", [False, True])
def test_in_memory_or_on_disk_the_bytes_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, durable: bool
) -> None:
    documents = [np.array(text(seed, 50 * seed), np.int32) for seed in range(40)]
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with Writer(tmp_path / "one", 1000, memory=1 << 30) as one:
        for document in documents:
            one.add(document)
        one.publish({})
    synced.clear()
    with Writer(tmp_path / "other", 1000, memory=memory, durable=durable) as other:
        other.extend([*documents[:20], documents[20].astype(np.int64)])  # type: ignore[list-item]
        other.extend(documents[21:])
        assert other.documents == 40
        assert (tmp_path / "other" / WORKSHOP).exists() == (memory == 1)
        other.publish({})
    assert len(synced) == (2 if durable else 0)
    files = [(tmp_path / name / FILE).read_bytes() for name in ("one", "other")]
    assert files[0] == files[1]
    assert [path.name for path in (tmp_path / "other").iterdir()] == [FILE]


def test_of_many_documents_the_wrong_one_is_named(tmp_path: Path) -> None:
    with Writer(tmp_path, 1000) as one:
        with pytest.raises(DatastoreError, match="token 1 of a document is 1000, outside"):
            one.extend([np.array(ids, np.int32) for ids in ([1, 2], [3, 1000], [4, 5])])
        one.publish({})
    assert Datastore(tmp_path).tokens().tolist() == [1, 2, -1]


def test_a_file_system_that_locks_no_folders_is_locked_by_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def only_files(handle: Any, how: int) -> None:
        if isinstance(handle, int):
            raise OSError(errno.EBADF, "Bad file descriptor")
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", only_files)
    with Writer(tmp_path, 10) as first:
        with pytest.raises(DatastoreError, match="being built by another"):
            Writer(tmp_path, 10)
        first.add(np.array([1, 2], np.int32))
        first.publish({})
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatastoreError, match="cannot be written"):
        Writer(tmp_path / "file" / "d", 10)


def test_a_build_is_never_continued_with_the_text_of_another(tmp_path: Path) -> None:
    """Both were interrupted, the other one before it had remembered anything: the first went on with its text."""
    with Writer(tmp_path, 1000, identity={"inputs": "a"}) as one:
        one.add(np.array(text(0, 200), np.int32))
        one.checkpoint({"read": 1})
    with Writer(tmp_path, 1000, memory=1, identity={"inputs": "b"}) as other:
        other.add(np.array(text(1, 70_000), np.int32))
    with Writer(tmp_path, 1000, identity={"inputs": "a"}) as again:
        assert (again.cursor, again.tokens) == ({}, 0)
