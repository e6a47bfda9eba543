"""Ranks must draft alike: the same events in any order of rows, sets and dictionaries give one checksum."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from specplug import registry
from specplug.checksum import VARIABLE, Checksum
from specplug.errors import SettingsError
from specplug.session import Session
from specplug.types import Context, Request

RANK = """
import numpy as np
from specplug import registry
from specplug.session import Session
from specplug.types import Context, Request

context = Context(vocab_size=60, max_length=900, max_draft=6, max_requests=12)
proposer = registry.build("suffix", context, {"store_mb": 0.02})
session = Session(proposer, context, on_fault="raise")
phrases = np.random.default_rng(3).integers(0, 60, (8, 9)).tolist()
texts = {}
orders = []
drafted = 0
for step in range(120):
    generator = np.random.default_rng(step)
    # A set of strings: its order differs between processes.
    running = {f"request-{i}" for i in range(step // 10, step // 10 + 9)}
    for name in sorted(running):
        more = phrases[generator.integers(0, 8)] if generator.random() < 0.8 else [7]
        texts[name] = (texts.get(name, []) + more)[-800:] if generator.random() < 0.99 else [5, 6]
    rows = list(running)
    orders.append(rows)
    if step % 3 == 0:
        for name in sorted(rows):
            if name not in session:
                session.begin(Request(name, 2, frozenset({59}), namespace=name[-1]), texts[name][:2])
    out = session.step(rows, [np.array(texts[n], np.int32) for n in rows])
    drafted += int(out.lengths.sum())
    session.finish_all({f"request-{step // 10}", f"request-{step // 10 + 4}"} if step % 10 == 9 else set())
print(session.checksum.value, session.checksum.steps, drafted)
print(orders[5])
"""


def rank(seed: int) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", RANK],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": str(seed), VARIABLE: "1000"},
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    return first, second


def test_processes_with_other_hash_seeds_draft_alike() -> None:
    (one, order), (two, other_order) = rank(1), rank(2)
    assert order != other_order, "the test did not try what it is about"
    assert one == two
    _, steps, drafted = one.split()
    assert int(steps) == 120
    assert int(drafted) > 100


def session_with(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Session:
    monkeypatch.setenv(VARIABLE, "2")
    context = Context(100, 400, 4, 4)
    return Session(registry.build("suffix", context, options), context, on_fault="raise")


def run(session: Session, swap: bool = False, last: int = 3, **request: Any) -> str:
    names = ["b", "a"] if swap else ["a", "b"]
    for name in names[:: -1 if swap else 1]:
        session.begin(Request(name, 3, **request), np.arange(3))
    for length in (6, 9, 12):
        text = np.tile([1, 2, last], 10)[:length]
        session.step(names, [text, text])
    session.finish_all(names)
    session.step([], [])
    assert session.checksum is not None
    return session.checksum.value


def test_it_tells_apart_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    base = run(session_with(monkeypatch))
    assert run(session_with(monkeypatch)) == base
    assert run(session_with(monkeypatch), swap=True) == base
    assert run(session_with(monkeypatch), last=4) != base
    assert run(session_with(monkeypatch), draft_limit=1) != base
    assert run(session_with(monkeypatch), stop_token_ids=frozenset({50})) != base
    assert run(session_with(monkeypatch, store_mb=1.0)) != base, "the state itself counts"


def test_it_is_logged_every_so_many_steps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "specplug"):
        value = run(session_with(monkeypatch))
    lines = [r.getMessage() for r in caplog.records if "checksum" in r.getMessage()]
    assert [line.split()[3] for line in lines] == ["2"]
    assert len(value) == 16


@pytest.mark.parametrize("value", ["", "0", " "])
def test_it_is_off_by_default(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert Checksum.from_environment() is None
    monkeypatch.delenv(VARIABLE)
    assert Checksum.from_environment() is None


@pytest.mark.parametrize("value", ["yes", "-1", "1.5"])
def test_a_wrong_value_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(SettingsError, match="must be the number of steps"):
        Checksum.from_environment()
