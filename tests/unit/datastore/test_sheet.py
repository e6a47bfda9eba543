"""Small datastores are put together in memory that the next build uses again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specplug.datastore import sheet, sorting
from specplug.datastore.writer import Writer
from specplug.errors import DatastoreError
from specplug.index.datastore import FILE, Datastore
from specplug.types import TokenArray

from .conftest import Publish
from .test_writer import WORDS, text


def array(seed: int, size: int) -> TokenArray:
    return np.array(text(seed, size), np.int32)


def made(folder: Path, documents: list[TokenArray], memory: int) -> bytes:
    with Writer(folder, 1000, memory=memory) as one:
        one.extend(documents)
        one.publish({})
    Datastore(folder).verify()
    return (folder / FILE).read_bytes()


@pytest.mark.parametrize("kept", [513, 600, 1 << 17])
def test_memory_of_an_earlier_build_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Neither its words, which a longer file has in the places of what pads a shorter one, nor its ranks."""
    monkeypatch.setattr(sheet, "KEPT_WORDS", kept)
    monkeypatch.setattr(sheet, "_KEPT", [])
    monkeypatch.setattr(sorting, "_KEPT", [])
    for seed, size in enumerate([3000, 40, 700, 2, 5000, 64, 63]):
        documents = [array(seed, size), array(seed + 100, 2)]
        inside = made(tmp_path / "inside", documents, 1 << 30)
        assert inside == made(tmp_path / "outside", documents, 1), size
        if sheet._KEPT:
            sheet._KEPT[0].words[:] = ~np.uint64(0)
        for room in sorting._KEPT:
            for rest in (room.order.keys, room.order.spare, room.order.counts):
                rest[:] = 7
            for more in (room.runs, room.left, room.ranks):
                more[:] = 7


def test_two_builds_at_once_do_not_share_memory(tmp_path: Path) -> None:
    with Writer(tmp_path / "a", 1000) as one, Writer(tmp_path / "b", 1000) as other:
        one.add(array(0, 300))
        other.add(array(1, 300))
        one.publish({})
        with Writer(tmp_path / "c", 1000) as third:
            third.add(array(2, 300))
            other.publish({})
            third.publish({})
    for seed, name in enumerate("abc"):
        store = Datastore(tmp_path / name)
        store.verify()
        assert store.tokens().tolist() == [*text(seed, 300), -1]


def test_a_build_within_another_has_its_own_room_to_sort(tmp_path: Path) -> None:
    alone = [made(tmp_path / str(seed), [array(seed, 300)], 1 << 30) for seed in range(2)]

    def build_another(what: str, done: int, total: int) -> None:
        assert made(tmp_path / "inner", [array(1, 300)], 1 << 30) == alone[1]

    with Writer(tmp_path / "outer", 1000) as one:
        one.add(array(0, 300))
        one.publish({}, build_another)
    assert (tmp_path / "outer" / FILE).read_bytes() == alone[0]


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_documents_that_come_after_a_failure_to_publish_are_in_the_file(
    tmp_path: Path, memory: int
) -> None:
    """Entries stood where they go, and must not be left in what pads the sections."""
    documents = [array(0, 301), array(1, 303)]
    with Writer(tmp_path / "late", 1000, memory=memory) as one:
        one.add(documents[0])
        with pytest.raises(TypeError):
            one.publish({"not": object()})
        one.add(documents[1])
        one.publish({})
    found = (tmp_path / "late" / FILE).read_bytes()
    assert found == made(tmp_path / "clean", documents, memory)
    assert Datastore(tmp_path / "late").tokens().tolist() == [*text(0, 301), -1, *text(1, 303), -1]


def test_a_folder_that_may_not_be_changed_is_not_held_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later builds in the same process were told that another process was at it."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(DatastoreError, match="Permission denied"):
            Writer(tmp_path, 1000, restart=True)
    made(tmp_path, [array(0, 300)], 1 << 30)


@pytest.mark.compiled
def test_every_way_to_build_uses_the_same_kernels(tmp_path: Path, published: Publish) -> None:
    """In a process of its own: another form of an argument would be compiled in the middle of a build."""
    published(tmp_path / "before", [WORDS])
    code = f"""if True:
        import numpy as np
        from specplug.datastore import sorting
        from specplug.datastore.writer import Writer
        from specplug.kernels import contexts, ordering, packed
        sorting.WORTH = 10
        for i, (memory, threads) in enumerate([(1 << 30, 1), (1, 1), (1 << 30, 2), (1, 2), (1 << 18, 1)]):
            with Writer({str(tmp_path)!r} + f"/{{i}}", 1000, memory=memory, threads=threads) as one:
                documents = [np.arange(n, n + 70, dtype=np.int32) for n in range(100)]
                one.extend(documents)
                one.add(documents[0].astype(np.int64))
                frozen = documents[1].copy()
                frozen.flags.writeable = False
                one.add(frozen)
                one.publish({{}})
        for module in (contexts, ordering, packed):
            for name, kernel in vars(module).items():
                if name[0] != "_" and hasattr(kernel, "nopython_signatures"):
                    assert len(kernel.nopython_signatures) <= 1, (name, kernel.nopython_signatures)
        """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
