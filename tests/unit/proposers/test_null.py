"""The proposer that proposes nothing: plain decoding through the whole machinery."""

from __future__ import annotations

import numpy as np

from specplug import registry
from specplug.protocols import Proposer
from specplug.session import Session
from specplug.types import Capabilities, Context, Request


def test_nothing_is_ever_drafted_whatever_repeats() -> None:
    context = Context(vocab_size=10, max_length=100, max_draft=4, max_requests=2)
    session = Session(registry.build("null", context), context, on_fault="raise")
    text = np.tile(np.arange(3, dtype=np.int32), 20)
    session.begin(Request("a", 6), text[:6])
    for length in range(6, 60):
        assert session.step(["a", "b"], [text[:length], text[1:length]]).lengths.tolist() == [0, 0]
    session.finish("a")
    stats = session.stats
    assert (stats.drafted, stats.faults, stats.emitted) == (0, 0, 106)
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (None, 1.0)


def test_it_declares_nothing_and_is_a_proposer() -> None:
    proposer = registry.build("null", Context(10, 10, 1))
    assert isinstance(proposer, Proposer)
    assert proposer.capabilities == Capabilities()
