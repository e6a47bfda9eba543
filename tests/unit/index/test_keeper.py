"""A store that outlives its process: loaded, saved, shared by several, and what happens to files that are no use."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug import registry
from specplug.index import keeper as keeper_module
from specplug.index import stored_text
from specplug.index.store_file import Vocabulary, read_store
from specplug.index.stored_text import copy_outputs
from specplug.proposers.suffix import SuffixProposer
from specplug.session import Session
from specplug.types import Context, Request

CONTEXT = Context(vocab_size=1000, max_length=4000, max_draft=8, max_requests=4)
WORDS = list(range(100, 140))
OTHERS = list(range(300, 340))


class Engine:
    """A session with a store file."""

    def __init__(self, path: Path, context: Context = CONTEXT, **options: Any) -> None:
        given = {"store_path": str(path), "verify_cost": 0.0, "store_mb": 1, **options}
        self.session = Session(registry.build("suffix", context, given), context, on_fault="raise")
        assert isinstance(self.session.proposer, SuffixProposer)
        self.index = self.session.proposer.index
        self.keeper = self.session.proposer.keeper

    def say(self, output: list[int], namespace: str = "") -> None:
        self.session.begin(Request("s", 1, namespace=namespace), np.array([1], np.int32))
        self.session.step(["s"], [np.array([1, *output], np.int32)])
        self.session.finish("s")

    def draft(self, text: list[int], namespace: str = "") -> list[int]:
        self.session.begin(
            Request("d", len(text), namespace=namespace), np.array(text[:-1], np.int32)
        )
        out = self.session.step(["d"], [np.array(text, np.int32)])
        self.session.finish("d", keep=False)
        return out.tokens[0, : out.lengths[0]].tolist()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "store"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What was warned of so far."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("specplug").addHandler(handler)
    yield found
    logging.getLogger("specplug").removeHandler(handler)


def test_a_restarted_engine_drafts_from_the_earlier_answers(path: Path) -> None:
    before = Engine(path)
    before.say(WORDS)
    before.say([*OTHERS, -1, *WORDS[:5]], namespace="tenant")
    before.session.close()
    after = Engine(path)
    assert after.draft(WORDS[5:8]) == WORDS[8:16]
    assert after.draft(OTHERS[5:8]) == []
    assert after.draft(OTHERS[5:8], "tenant") == OTHERS[8:16]
    assert after.index.check_invariants() == ""
    after.session.close()


def test_a_loaded_store_is_the_store_that_was_saved(path: Path) -> None:
    rng = np.random.default_rng(3)
    before = Engine(path, store_mb=0.02)
    for _ in range(100):
        before.say(rng.integers(-1, 1000, rng.integers(1, 60)).tolist(), str(rng.integers(0, 3)))
    before.session.close()
    after = Engine(path, store_mb=0.02)
    for _ in range(200):
        text, name = rng.integers(0, 1000, 2).tolist(), str(rng.integers(0, 3))
        assert before.draft(text, name) == after.draft(text, name)
    assert after.index.store_bytes <= 0.02 * 2**20
    assert after.index.check_invariants() == ""


@pytest.mark.parametrize("store_mb", [0.002, 0.01, 4.0])
def test_a_store_of_another_size_takes_the_newest(path: Path, store_mb: float) -> None:
    before = Engine(path, store_mb=0.05)
    for number in range(100):
        before.say([number, *WORDS[:20], 500 + number])
    before.session.close()
    after = Engine(path, store_mb=store_mb)
    assert after.draft([99, *WORDS[:20]]) == [599]
    assert after.index.stored_tokens <= after.index.store_capacity
    assert after.index.check_invariants() == ""
    size = path.stat().st_size
    after.say(OTHERS)
    after.session.close()
    assert path.stat().st_size > 0.9 * size, "a small store must not shrink a large file"
    assert Engine(path, store_mb=4, store_save_seconds=0).draft(OTHERS[:3]) == OTHERS[3:11]


def test_several_engines_add_to_one_file(path: Path) -> None:
    first, second = Engine(path), Engine(path)
    first.say(WORDS)
    second.say(OTHERS)
    first.session.close()
    second.session.close()
    third = Engine(path, store_save_seconds=0)
    assert third.draft(WORDS[5:8]) == WORDS[8:16]
    assert third.draft(OTHERS[5:8]) == OTHERS[8:16]


def test_nothing_is_saved_twice(path: Path) -> None:
    engine = Engine(path)
    for _ in range(3):
        engine.say(WORDS)
        assert engine.keeper.save()
        assert engine.keeper.save()
    assert len(read_store(path, Vocabulary(1000))) == 3
    engine.session.close()
    again = Engine(path)
    again.session.close()
    assert len(read_store(path, Vocabulary(1000))) == 3


def test_without_seconds_the_file_is_only_read(path: Path) -> None:
    engine = Engine(path)
    engine.say(WORDS)
    engine.session.close()
    before = path.read_bytes()
    reader = Engine(path, store_save_seconds=0)
    reader.say(OTHERS)
    reader.session.close()
    assert path.read_bytes() == before
    assert reader.draft(WORDS[5:8]) == WORDS[8:16]


@pytest.mark.parametrize(("seconds", "quiet"), [(0.02, 1.0), (86400, 0.02)])
def test_it_is_saved_now_and_then_or_in_a_quiet_moment(
    path: Path, seconds: float, quiet: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM kills its workers without a chance to save, so that text must be on disk before."""
    monkeypatch.setattr(keeper_module, "QUIET_SECONDS", quiet)
    engine = Engine(path, store_save_seconds=seconds)
    engine.say(WORDS)
    waited = threading.Event()
    for _ in range(500):
        if path.exists():
            break
        waited.wait(0.01)
    assert len(read_store(path, Vocabulary(1000))) == 1
    engine.session.close()


@pytest.mark.parametrize(
    ("content", "message", "set_aside"),
    [
        (b"specplug-store 1\n{", "header cannot be read", True),
        (b"", "is empty or truncated", True),
        (b"specplug-store 7\n{}\n", "upgrade specplug", False),
        (b"a letter to my aunt\n", "is no store of specplug", False),
    ],
)
def test_a_bad_file_costs_the_store_and_is_kept(
    path: Path, content: bytes, message: str, set_aside: bool, warnings: list[str]
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    engine = Engine(path)
    assert len(warnings) == 1
    assert message in warnings[0]
    engine.say(WORDS)
    assert engine.draft(WORDS[5:8]) == WORDS[8:16], "the service goes on"
    engine.session.close()
    kept = path.with_name("store.damaged-1") if set_aside else path
    assert kept.read_bytes() == content
    assert path.read_bytes().startswith(b'specplug-store 1\n{"outputs": 1') is set_aside
    assert len(warnings) == 1


def test_two_damaged_files_are_both_kept(path: Path) -> None:
    path.parent.mkdir()
    for number in (1, 2):
        path.write_bytes(b"specplug-store 1\n" + bytes([number]))
        Engine(path).session.close()
    assert [path.with_name(f"store.damaged-{n}").read_bytes()[-1] for n in (1, 2)] == [1, 2]


def test_the_store_of_another_model_is_left_alone(path: Path, warnings: list[str]) -> None:
    first = Engine(path)
    first.say(WORDS)
    first.session.close()
    before = path.read_bytes()
    other = Engine(path, Context(1001, 4000, 8, 4))
    assert "made for a vocabulary of 1000 tokens" in warnings[0]
    assert "choose one store file per tokenizer" in warnings[0]
    other.say(OTHERS)
    other.session.close()
    assert path.read_bytes() == before


def test_the_tokenizer_is_asked_for_only_with_a_file(path: Path) -> None:
    asked: list[int] = []

    def digest() -> str:
        asked.append(1)
        return "0123456789abcdef"

    context = Context(1000, 4000, 8, 4, tokenizer=digest)
    registry.build("suffix", context)
    assert asked == []
    engine = Engine(path, context)
    engine.say(WORDS)
    engine.session.close()
    assert asked == [1]
    assert len(read_store(path, Vocabulary(2000, "0123456789abcdef"))) == 1


def test_a_file_overwritten_meanwhile_by_something_else_is_left_alone(
    path: Path, warnings: list[str]
) -> None:
    engine = Engine(path)
    path.write_bytes(b"a letter to my aunt\n")
    engine.say(WORDS)
    engine.session.close()
    assert path.read_bytes() == b"a letter to my aunt\n"
    assert "is no store of specplug" in warnings[0]


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path: Path, warnings: list[str]) -> None:
    (tmp_path / "file").write_text("")
    engine = Engine(tmp_path / "file" / "store")
    assert "nothing can be saved" in warnings[0]
    engine.say(WORDS)
    assert engine.draft(WORDS[5:8]) == WORDS[8:16]
    engine.session.close()


def test_a_disk_that_is_full_is_one_warning_and_tried_again(
    path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(path)
    engine.say(WORDS)
    with monkeypatch.context() as patch:

        def full(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(keeper_module, "write_store", full)
        assert not engine.keeper.save()
        assert not engine.keeper.save()
    assert len(warnings) == 1
    assert "No space left" in warnings[0]
    assert engine.keeper.save()
    assert len(read_store(path, Vocabulary(1000))) == 1
    engine.session.close()


def test_another_process_at_work_is_waited_for_but_not_for_ever(
    path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "LOCK_SECONDS", 0.1)
    engine = Engine(path)
    engine.say(WORDS)
    with keeper_module._locked(path):
        assert not engine.keeper.save()
    assert "another process holds" in warnings[0]
    engine.session.close()
    assert len(read_store(path, Vocabulary(1000))) == 1


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_what_is_copied_does_not_depend_on_how_much_is_copied_at_once(
    path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store was copied in one piece, during which no other thread could draft for milliseconds."""
    context = Context(10**6, 4000, 8, 4)
    engine = Engine(path, context, store_mb=0.02, store_save_seconds=0)
    rng = np.random.default_rng(2)
    for number in range(60):
        engine.say([number] * int(rng.integers(1, 150)), namespace=f"tenant {number % 3}")
    whole = copy_outputs(engine.index, 0)
    monkeypatch.setattr(stored_text, "COPIED", at_once)
    pieces = copy_outputs(engine.index, 0)
    assert len(whole.outputs) > 10
    assert pieces.end == whole.end
    assert pieces.outputs.tokens.tolist() == whole.outputs.tokens.tolist()
    assert pieces.outputs.lengths.tolist() == whole.outputs.lengths.tolist()
    names = [
        [found.outputs.names[owner] for owner in found.outputs.owners] for found in (whole, pieces)
    ]
    assert names[0] == names[1]
    assert len(pieces.outputs.names) == 3


def test_a_reader_in_another_thread_sees_whole_outputs_only(path: Path) -> None:
    """Outputs are stored while the ring is copied; each consists of one number, so that a torn one would show."""
    context = Context(10**6, 4000, 8, 4)
    engine = Engine(path, context, store_mb=0.02, store_save_seconds=0)
    done = threading.Event()
    torn: list[str] = []
    copies = 0

    def read() -> None:
        nonlocal copies
        while not done.is_set():
            found = copy_outputs(engine.index, 0).outputs
            copies += 1
            ends = np.cumsum(found.lengths)
            for length, end in zip(found.lengths, ends, strict=True):
                if len(set(found.tokens[end - length : end].tolist())) != 1:
                    torn.append(f"{found.tokens[end - length : end]}")
            if ends.size and ends[-1] > engine.index.store_capacity:
                torn.append("more than there is")

    thread = threading.Thread(target=read)
    thread.start()
    rng = np.random.default_rng(1)
    for number in range(1000):
        engine.say([number] * int(rng.integers(1, 200)))
    done.set()
    thread.join()
    assert torn == []
    assert copies > 3


PROCESS = """
import sys
import numpy as np
from multiprocessing import get_context
from specplug import registry
from specplug.types import Context, Observed, Request

def serve(path, how):
    import os, signal
    if how == "terminated child":
        def stop(number, frame):
            raise SystemExit
        signal.signal(signal.SIGTERM, stop)
    context = Context(vocab_size=1000, max_length=4000, max_draft=8, max_requests=4)
    proposer = registry.build("suffix", context, {"store_path": path, "store_mb": 1})
    proposer.start(0, Request("a", 0), np.zeros(0, np.int32))
    text = np.arange(100, 140, dtype=np.int32)
    proposer.observe(Observed(np.zeros(1, np.int32), np.array([0, 40]), text))
    proposer.finish(0, True)
    if how == "terminated child":
        os.kill(os.getpid(), signal.SIGTERM)

if __name__ == "__main__":
    path, how = sys.argv[1:]
    if how != "main":
        child = get_context("spawn").Process(target=serve, args=(path, how))
        child.start()
        child.join()
        assert child.exitcode == 0
    else:
        serve(path, how)
"""


@pytest.mark.parametrize("how", ["main", "terminated child"])
def test_a_process_that_ends_saves_by_itself(path: Path, how: str, tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(PROCESS)
    done = subprocess.run(
        [sys.executable, "-P", str(script), str(path), how],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    found = read_store(path, Vocabulary(1000))
    assert found.tokens.tolist() == WORDS
