"""Builds that were interrupted, failed or have ended: what is left is cut, removed or left alone, never published."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.datastore import spool
from specplug.datastore.build import Options, build
from specplug.datastore.workshop import JOURNAL
from specplug.datastore.writer import WORKSHOP, Writer
from specplug.errors import DatastoreError
from specplug.index.datastore import FILE, Datastore
from specplug.types import TokenArray

from .conftest import Publish
from .test_writer import WORDS, text

FRESH = ".datastore.bin.new"


def array(seed: int, size: int) -> TokenArray:
    return np.array(text(seed, size), np.int32)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("tail", [400_000, 100_001])
def test_what_was_written_after_the_checkpoint_is_cut(tmp_path: Path, tail: int) -> None:
    """A corpus that had become shorter was published with a tail and could not be opened; an odd tail raised."""
    with Writer(tmp_path, 1000, memory=1) as killed:
        killed.add(array(0, 200))
        killed.checkpoint({"read": 1})
    with (tmp_path / WORKSHOP / FILE).open("ab") as file:
        file.write(bytes(tail))
    with Writer(tmp_path, 1000) as again:
        assert (again.cursor, again.documents) == ({"read": 1}, 1)
        again.add(array(1, 200))
        header = again.publish({})
    assert (tmp_path / FILE).stat().st_size == header.file_size
    store = Datastore(tmp_path)
    store.verify()
    assert store.tokens().tolist() == [*text(0, 200), -1, *text(1, 200), -1]


def test_a_longer_file_is_cut_when_it_is_published(tmp_path: Path) -> None:
    with Writer(tmp_path, 1000, memory=1) as one:
        one.add(array(0, 200))
        one.checkpoint({})
        with (tmp_path / WORKSHOP / FILE).open("ab") as file:
            file.write(bytes(100_001))
        header = one.publish({})
    assert (tmp_path / FILE).stat().st_size == header.file_size
    Datastore(tmp_path).verify()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_small_build_that_fails_to_publish_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*arguments: Any, **named: Any) -> None:
        raise error

    with Writer(tmp_path, 1000) as one:
        one.add(array(0, 200))
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", fail)
            with pytest.raises((KeyboardInterrupt, DatastoreError)):
                one.publish({})
        assert names(tmp_path) == []
        one.publish({})
    assert names(tmp_path) == [FILE]


@pytest.mark.parametrize("how", ["large", "restart"])
def test_what_a_killed_small_build_left_is_removed(tmp_path: Path, how: str) -> None:
    (tmp_path / FRESH).write_bytes(b"half")
    memory = 1 if how == "large" else 1 << 30
    with Writer(tmp_path, 1000, memory=memory, restart=how == "restart") as one:
        assert ((tmp_path / FRESH).exists()) == (how == "large")
        one.add(array(0, 70_000 if how == "large" else 200))
        one.publish({})
    assert names(tmp_path) == [FILE]


@pytest.mark.parametrize("journal", ["{}", "[]", "null", '{"tokens": [], "identity": {}}'])
def test_a_journal_of_another_shape_begins_anew(tmp_path: Path, journal: str) -> None:
    """It was a KeyError, each time until the folder was removed by hand."""
    (tmp_path / WORKSHOP).mkdir()
    (tmp_path / WORKSHOP / JOURNAL).write_text(journal)
    (tmp_path / WORKSHOP / FILE).write_bytes(b"")
    with Writer(tmp_path, 1000) as one:
        assert (one.cursor, one.tokens) == ({}, 0)
        one.add(array(0, 200))
        one.publish({})
    assert names(tmp_path) == [FILE]


def test_a_restart_does_not_remove_what_another_process_builds(
    tmp_path: Path, published: Publish
) -> None:
    """It removed the folder first and only then found it locked; the other build could not be published."""
    source, folder = tmp_path / "source", tmp_path / "d"
    published(source, [WORDS])
    with Writer(folder, 1000, memory=1) as running:
        running.add(array(0, 200))
        running.checkpoint({"read": 1})
        with pytest.raises(DatastoreError, match="being built by another"):
            build(folder, [source], None, Options(restart=True))
        running.publish({})
    assert Datastore(folder).documents == 1


def test_a_restart_begins_anew(tmp_path: Path) -> None:
    with Writer(tmp_path, 1000, memory=1) as killed:
        killed.add(array(0, 200))
        killed.checkpoint({"read": 1})
    with Writer(tmp_path, 1000, restart=True) as again:
        assert (again.cursor, again.tokens) == ({}, 0)
        again.add(array(1, 200))
        again.publish({})
    assert Datastore(tmp_path).tokens().tolist() == [*text(1, 200), -1]
    assert names(tmp_path) == [FILE]


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_nothing_is_written_to_a_file_that_is_published(tmp_path: Path, memory: int) -> None:
    """What was appended after that went into the file that servers had open."""
    with Writer(tmp_path, 1000, memory=memory) as one:
        one.add(array(0, 200))
        one.publish({})
        before = (tmp_path / FILE).read_bytes()
        for call in (
            lambda: one.add(array(1, 70_000)),
            lambda: one.extend([array(1, 20), array(2, 20)]),
            lambda: one.checkpoint({}),
            lambda: one.publish({}),
        ):
            with pytest.raises(DatastoreError, match="is published; open a new Writer"):
                call()
    assert (tmp_path / FILE).read_bytes() == before
    assert names(tmp_path) == [FILE]


def test_memory_stays_bounded_where_a_checkpoint_failed(tmp_path: Path) -> None:
    with Writer(tmp_path, 1000, memory=1 << 20) as one:
        (tmp_path / WORKSHOP / FILE).mkdir(parents=True)
        with pytest.raises(DatastoreError, match="cannot be written"):
            one.checkpoint({})
        (tmp_path / WORKSHOP / FILE).rmdir()
        one.add(array(0, 70_000))
        assert (tmp_path / WORKSHOP / FILE).stat().st_size > 70_000
        one.publish({})
    assert Datastore(tmp_path).tokens().tolist() == [*text(0, 70_000), -1]


@pytest.mark.parametrize("block", [64, 128])
def test_blocks_in_memory_move_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(spool, "BLOCK", block)
    documents = [array(seed, 7 * seed) for seed in range(1, 40)]
    contents = []
    for name, memory in (("memory", 1 << 30), ("moved", 1 << 14)):  # room for 512 tokens
        with Writer(tmp_path / name, 1000, memory=memory) as one:
            one.extend(documents)
            assert (tmp_path / name / WORKSHOP).exists() == (name == "moved")
            one.publish({})
        contents.append((tmp_path / name / FILE).read_bytes())
    assert contents[0] == contents[1]
    store = Datastore(tmp_path / "moved")
    store.verify()
    assert store.tokens().tolist() == [t for d in documents for t in [*d.tolist(), -1]]
