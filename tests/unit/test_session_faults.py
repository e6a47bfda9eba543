"""A proposer that fails costs its drafts, never a request; in tests it may be made to raise."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from specplug.session import Session
from specplug.types import Context, Request

PROMPT = np.array([1, 2], np.int32)
LONGER = np.array([1, 2, 3], np.int32)
METHODS = ("start", "observe", "propose", "finish")


def drive_to_the_fault(session: Session, proposer: Any, method: str) -> None:
    """One request with a draft, then the call that fails."""
    proposer.draft = [7, 8]
    session.begin(Request("a", 2), PROMPT)
    assert session.step(["a"], [PROMPT]).lengths.tolist() == [2]
    proposer.fails_in = method
    if method == "start":
        session.begin(Request("b", 2), PROMPT)
    elif method == "finish":
        session.finish("a")
    else:
        session.step(["a"], [LONGER])


@pytest.mark.parametrize("method", METHODS)
def test_a_fault_is_one_log_record_with_the_traceback(
    proposer: Any, context: Context, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session(proposer, context)
    with caplog.at_level(logging.WARNING, "specplug"):
        drive_to_the_fault(session, proposer, method)
        for _ in range(3):
            session.step(["a", "c"], [LONGER, PROMPT])
        session.begin(Request("d", 2), PROMPT)
        session.close()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"proposer ScriptedProposer failed in {method}()" in record.getMessage()
    assert f"RuntimeError: broken in {method}" in caplog.text
    assert session.stats.faults == 1
    assert session.faulted


@pytest.mark.parametrize("method", METHODS)
def test_after_a_fault_nothing_is_drafted_and_requests_live_on(
    proposer: Any, context: Context, method: str
) -> None:
    session = Session(proposer, context)
    drive_to_the_fault(session, proposer, method)
    proposer.fails_in = ""
    seen = len(proposer.calls)
    session.begin(Request("c", 2), PROMPT)
    for _ in range(2):
        out = session.step(["c", "new"], [LONGER, PROMPT])
        assert out.lengths.tolist() == [0, 0]
    assert session.finish("c") is True
    assert session.finish("c") is False
    assert "new" in session
    assert proposer.calls[seen:] == [], "a proposer that failed is not asked again"


def test_what_was_written_before_the_fault_is_no_draft(proposer: Any, context: Context) -> None:
    session = Session(proposer, context)
    proposer.draft = [7, 8]
    proposer.fails_in = "propose"  # the fake raises after it has written its lengths
    assert session.step(["a", "b"], [PROMPT, PROMPT]).lengths.tolist() == [0, 0]
    assert (session.stats.drafted, session.stats.drafted_rows) == (0, 0)


def test_counters_of_the_target_go_on_after_a_fault(proposer: Any, context: Context) -> None:
    session = Session(proposer, context)
    drive_to_the_fault(session, proposer, "observe")
    before = session.stats.emitted
    session.step(["a"], [np.arange(1, 11, dtype=np.int32)])
    assert session.stats.emitted == before + 7
    assert session.stats.accepted == 0


def test_a_draft_that_was_handed_out_before_the_fault_is_still_judged(
    proposer: Any, context: Context
) -> None:
    session = Session(proposer, context)
    drive_to_the_fault(session, proposer, "start")
    session.step(["a"], [np.array([1, 2, 7, 8, 5], np.int32)])
    assert (session.stats.drafted, session.stats.accepted) == (2, 2)


def test_a_fault_while_an_id_is_reused_still_starts_the_new_request(
    proposer: Any, context: Context
) -> None:
    session = Session(proposer, context)
    session.begin(Request("a", 2), PROMPT)
    proposer.fails_in = "finish"
    session.begin(Request("a", 3), LONGER)
    assert "a" in session
    assert (session.live, session.stats.started, session.stats.finished) == (1, 2, 1)


@pytest.mark.parametrize("method", METHODS)
def test_a_fault_is_raised_where_tests_want_it(
    proposer: Any, context: Context, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session(proposer, context, on_fault="raise")
    with pytest.raises(RuntimeError, match=f"broken in {method}"):
        drive_to_the_fault(session, proposer, method)
    assert caplog.records == []
    assert session.stats.faults == 0


def test_an_interrupt_is_no_fault_of_the_proposer(
    proposer: Any, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(proposer, "propose", interrupted)
    session = Session(proposer, context)
    with pytest.raises(KeyboardInterrupt):
        session.step(["a"], [PROMPT])
    assert not session.faulted
