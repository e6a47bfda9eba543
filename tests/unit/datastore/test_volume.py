"""Datastores in use: a new version is taken up, a lost or cut one costs its drafts only."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from specplug.errors import DatastoreError
from specplug.index.datastore import FILE, Datastore
from specplug.index.volume import Volume, check_fit

from .conftest import Publish

WORDS = list(range(100, 140))


class Clock:
    """Moves by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def volume(tmp_path: Path, published: Publish, clock: Clock) -> Volume:
    published(tmp_path, [WORDS])
    made = Volume(tmp_path, 1000, clock=clock)
    made.open()
    return made


def tokens_of(volume: Volume) -> int | None:
    shelf = volume.shelf()
    return None if shelf is None else int(shelf.meta[0])


def test_a_new_version_is_taken_up_when_it_is_time(
    volume: Volume, tmp_path: Path, published: Publish, clock: Clock
) -> None:
    published(tmp_path, [WORDS * 2])
    assert tokens_of(volume) == 41
    clock.now = 2.0
    assert tokens_of(volume) == 81
    assert (volume.swaps, volume.problems) == (1, 0)
    clock.now = 4.0
    assert tokens_of(volume) == 81
    assert volume.swaps == 1


def test_a_removed_file_stays_in_use_and_is_reported_once(
    volume: Volume,
    tmp_path: Path,
    published: Publish,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shutil.rmtree(tmp_path)
    with caplog.at_level(logging.WARNING):
        for clock.now in (2.0, 4.0, 6.0):
            assert tokens_of(volume) == 41
    assert len(caplog.records) == 1
    assert "the version in use stays" in caplog.text
    published(tmp_path, [WORDS * 2])
    clock.now = 8.0
    assert tokens_of(volume) == 81


def test_a_cut_file_is_not_read_any_more(
    volume: Volume,
    tmp_path: Path,
    published: Publish,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Reading beyond the end of a mapped file would kill the server (SIGBUS)."""
    os.truncate(tmp_path / FILE, 4200)
    with caplog.at_level(logging.WARNING):
        assert tokens_of(volume) is None
        assert tokens_of(volume) is None
    assert len(caplog.records) == 1
    assert "was cut while it was in use" in caplog.text
    published(tmp_path, [WORDS * 2])
    clock.now = 2.0
    assert tokens_of(volume) == 81


def test_a_new_version_that_does_not_fit_leaves_the_old_one(
    volume: Volume,
    tmp_path: Path,
    published: Publish,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    published(tmp_path, [WORDS * 2], 5000)
    with caplog.at_level(logging.WARNING):
        for clock.now in (2.0, 4.0):
            assert tokens_of(volume) == 41
    assert len(caplog.records) == 1
    assert "was built for 5000 token ids, the model has 1000" in caplog.text
    fresh = tmp_path / "rubbish"
    fresh.write_bytes(b"rubbish")
    os.replace(fresh, tmp_path / FILE)
    clock.now = 6.0
    assert tokens_of(volume) == 41
    assert volume.problems == 2


def test_the_first_version_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(DatastoreError, match="no datastore at"):
        Volume(tmp_path / "none", 1000).open()


def test_another_tokenizer_is_refused(tmp_path: Path, published: Publish) -> None:
    from specplug.datastore.writer import Writer

    with Writer(tmp_path, 1000, "07070707") as writer:
        writer.add(np.array(WORDS, np.int32))
        writer.publish({})
    store = Datastore(tmp_path)
    check_fit(store, 1000, "07070707")
    check_fit(store, 1000, "")
    with pytest.raises(
        DatastoreError, match=r"another tokenizer \(vocabulary 0707.*model's is 0808"
    ):
        check_fit(store, 1000, "08080808")
    with pytest.raises(DatastoreError, match="1000 token ids, the model has 999"):
        check_fit(store, 999, "")
