"""Everything that specplug demands of a proposer, and one thing that only this one promises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from specplug_echo import EchoProposer, EchoSettings

from specplug import Context, Request
from specplug.session import Session


def test_conformance(specplug_check: Callable[[], None]) -> None:
    specplug_check()


def test_it_repeats_what_followed_before() -> None:
    context = Context(vocab_size=100, max_length=64, max_draft=4)
    session = Session(EchoProposer(context, EchoSettings(words=2)), context, on_fault="raise")
    history = np.array([5, 6, 7, 8, 9, 5, 6], np.int32)
    session.begin(Request("r", prompt_length=7), history)
    drafts = session.step(["r"], [history])
    assert drafts.tokens[0, : drafts.lengths[0]].tolist() == [7, 8, 9, 5]
