"""The process around an engine: whatever happens to it, it answers, or it is ended and its log is shown."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from specplug.testing import engine_process
from specplug.testing.engine_process import EngineProcess, engine_environment
from specplug.testing.engine_protocol import (
    Completion,
    Counters,
    EngineProcessError,
    EngineRequestError,
    Result,
    Step,
)

#: Speaks the protocol without an engine; each command shows another way to go wrong.
STAND_IN = """
import json, os, subprocess, sys, time
first = json.loads(sys.stdin.readline())["options"]
def answer(value):
    print(json.dumps(value), flush=True)
print("loading", file=sys.stderr, flush=True)
if first.get("refuse"):
    answer({"error": "no such option", "kind": "TypeError"})
    sys.exit(0)
if first.get("slow"):
    time.sleep(60)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
answer({"result": {"pid": child.pid, "preload": os.environ.get("LD_PRELOAD", "")}})
for line in sys.stdin:
    message = json.loads(line)
    if message["command"] == "die":
        print("this is why", file=sys.stderr, flush=True)
        os._exit(3)
    if message["command"] == "hang":
        time.sleep(60)
    if message["command"] == "refuse":
        answer({"error": "too long", "kind": "ValueError"})
    else:
        answer({"result": {"token_ids": [len(message["prompt"])]}})
"""

Begin = Callable[..., EngineProcess]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    (tmp_path / "stand_in_engine.py").write_text(STAND_IN)
    monkeypatch.setitem(engine_process.HOSTS, "stand-in", "stand_in_engine")

    def start(options: dict[str, object] | None = None, **limits: float) -> EngineProcess:
        return EngineProcess(
            options or {},
            engine="stand-in",
            env={"PYTHONPATH": str(tmp_path)},
            log=tmp_path / "log",
            **limits,  # type: ignore[arg-type]
        )

    return start


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody waited for yet counts as ended."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def test_answers_and_ends_with_everything_it_started(begin: Begin) -> None:
    with begin() as engine:
        child = engine.info()["pid"]
        assert engine.tokenize("four") == [4]
        # A text with line breaks is one line of the protocol; a long one needs several reads.
        assert engine.tokenize("a\nb" * 100_000) == [300_000]
    assert gone(engine.pid)
    assert gone(child)
    engine.close()


def test_a_refusal_leaves_the_engine_alive(begin: Begin) -> None:
    with begin() as engine:
        with pytest.raises(EngineRequestError, match="ValueError: too long") as caught:
            engine.call("refuse")
        assert caught.value.kind == "ValueError"
        assert engine.tokenize("ab") == [2]


def test_a_crash_shows_status_and_log(begin: Begin) -> None:
    engine = begin()
    child = engine.info()["pid"]
    with pytest.raises(EngineProcessError, match=r"(?s)exited with status 3.*this is why"):
        engine.call("die")
    assert gone(child)
    with pytest.raises(EngineProcessError, match="takes no commands"):
        engine.tokenize("a")


def test_a_command_that_hangs_is_ended(begin: Begin) -> None:
    engine = begin(command_seconds=0.4)
    child = engine.info()["pid"]
    with pytest.raises(EngineProcessError, match="took more than 0 s answering 'hang'"):
        engine.call("hang")
    assert gone(engine.pid)
    assert gone(child)


def test_a_start_that_hangs_is_ended(begin: Begin) -> None:
    with pytest.raises(EngineProcessError, match=r"(?s)starting.*loading"):
        begin({"slow": True}, start_seconds=2.0)


def test_refused_options(begin: Begin) -> None:
    with pytest.raises(EngineRequestError, match="TypeError: no such option"):
        begin({"refuse": True})


def test_unknown_engine() -> None:
    with pytest.raises(ValueError, match=r"unknown engine 'lvvm'; there are \['sglang', 'vllm'\]"):
        EngineProcess({}, engine="lvvm")


def test_the_environment_preloads_the_interpreters_own_openmp(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    python = tmp_path / "bin" / "python"
    python.symlink_to(sys.executable)
    assert str(tmp_path) not in engine_environment(str(python)).get("LD_PRELOAD", "")
    (tmp_path / "lib" / "libiomp5.so").touch()
    env = engine_environment(str(python), kv_cache_gb=3, in_process=False, extra={"A": "1"})
    assert env["LD_PRELOAD"].split(":")[0] == str(tmp_path / "lib" / "libiomp5.so")
    assert (env["VLLM_CPU_KVCACHE_SPACE"], env["VLLM_ENABLE_V1_MULTIPROCESSING"]) == ("3", "1")
    assert (env["HF_HUB_OFFLINE"], env["A"], env["PATH"]) == ("1", "1", os.environ["PATH"])


def test_parameters_for_each_prompt_or_for_all(begin: Begin) -> None:
    with begin() as engine, pytest.raises(ValueError, match="2 prompts but 1 sets"):
        engine.generate(["a", "b"], [{}])


def test_counters_are_subtracted_per_position() -> None:
    early = Counters(2, 10, 4, (2, 1), 20, 0, {"a": 1})
    late = Counters(4, 26, 12, (4, 3, 1), 60, 1, {"a": 2})
    gained = late - early
    assert gained == Counters(2, 16, 8, (2, 2, 1), 40, 1, {"a": 2})
    assert gained.mal_per_drafted_step == 1 + 8 / 2
    assert gained.mal_per_step == 40 / (40 - 8)
    assert Counters().mal_per_drafted_step == Counters().mal_per_step == 1.0


def test_steps_and_results() -> None:
    assert Step((5, 6, 7), (5, 6, 9)).accepted == 2
    assert Step((), (5,)).accepted == 0
    one = Completion((1,), "a", "stop", None)
    assert Result((1, 2), (one,)).only is one
    with pytest.raises(ValueError, match="2 completions, not one"):
        _ = Result((1,), (one, one)).only


def test_no_file_is_left_behind_unless_something_went_wrong(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run of the demo left three logs in the temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(engine_process.tempfile, "tempdir", str(folder))
    path = {"PYTHONPATH": str(tmp_path)}
    with EngineProcess({}, engine="stand-in", env=path) as engine:
        assert engine.tokenize("four") == [4]
        assert list(folder.glob("*.log")), "there is a log while it runs"
    assert list(folder.iterdir()) == []
    assert isinstance(engine.log_text, str), "what was logged can still be read"
    failing = EngineProcess({}, engine="stand-in", env=path)
    with pytest.raises(EngineProcessError, match=r"(?s)log .*\.log, last lines.*this is why"):
        failing.call("die")
    [kept] = folder.iterdir()
    assert "this is why" in kept.read_text()
