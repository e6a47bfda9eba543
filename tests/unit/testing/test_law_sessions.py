"""Checking a law builds a session per path, of which there may be a thousand: none stays behind."""

from __future__ import annotations

import weakref

from specplug.testing.lawcheck import Sessions
from specplug.testing.paths import Oracle
from specplug.testing.toys import CopyProposer
from specplug.types import Context


def test_seven_gigabytes_of_finished_sessions() -> None:
    sessions = Sessions(CopyProposer, Context(4, max_length=16, max_draft=2))
    session = sessions(Oracle(()))
    alive = weakref.ref(session)
    del session
    assert alive() is None
    assert (sessions.drafted, sessions.accepted) == (0, 0)
