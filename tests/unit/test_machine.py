"""Cores and threads: a fair share, and never more than the user says."""

from __future__ import annotations

import os

import pytest

from specplug.errors import SettingsError
from specplug.machine import THREADS_VARIABLE, thread_share, usable_cores


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)


def test_the_affinity_of_the_process_counts() -> None:
    assert usable_cores() == 16


@pytest.mark.parametrize(("workers", "expected"), [(0, 8), (1, 8), (2, 4), (3, 2), (8, 1), (99, 1)])
def test_worker_processes_share_half_of_the_cores(workers: int, expected: int) -> None:
    assert thread_share(workers) == expected


def test_the_variable_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS_VARIABLE, " 3 ")
    assert thread_share(99) == 3


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_wrong_variable_is_shown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS_VARIABLE, value)
    with pytest.raises(SettingsError, match=f"SPECPLUG_THREADS must be .*{value!r}"):
        thread_share(1)
