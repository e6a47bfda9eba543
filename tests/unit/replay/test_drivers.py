"""The protocol driver calls a proposer as a session would; the session driver gives the same drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specplug import registry
from specplug.errors import InvalidRequestError
from specplug.protocols import Proposer
from specplug.replay.drivers import HeldText, ProposerDriver, SessionDriver, memory_of
from specplug.replay.metrics import Tally
from specplug.replay.simulator import replay_record
from specplug.types import Capabilities, Context, TokenArray

CONTEXT = Context(vocab_size=100, max_length=4000, max_draft=4, max_requests=1)


def ids(*tokens: int) -> TokenArray:
    return np.array(tokens, np.int32)


def test_a_proposer_hears_of_every_token_once(proposer: Any) -> None:
    proposer.draft = [8]
    driver = ProposerDriver(proposer, CONTEXT)
    replay_record(driver, ids(1, 2), ids(7, 8, 9), Tally())
    replay_record(driver, ids(3), ids(7, 6), Tally())
    assert proposer.calls == [
        ("start", 0, "1", [1, 2]),
        ("observe", ("1", [7])),
        ("propose", ["1"], [4]),
        ("observe", ("1", [8, 9])),
        ("finish", 0, True),
        ("start", 0, "2", [3]),
        ("observe", ("2", [7])),
        ("propose", ["2"], [4]),
        ("observe", ("2", [6])),
        ("finish", 0, True),
    ]
    assert [r.prompt_length for r in proposer.requests] == [2, 1]


def test_the_length_of_an_earlier_draft_is_not_left_over(proposer: Any) -> None:
    """A proposer that writes nothing leaves the lengths as the caller set them: to zero."""
    driver = ProposerDriver(proposer, CONTEXT)
    driver.begin(ids(1))
    proposer.draft = [5, 6]
    driver.step(ids(2))
    assert driver.draft().tokens.tolist() == [5, 6]
    proposer.propose = lambda slots, ceilings, out: None
    driver.step(ids(3))
    assert driver.draft().tokens.tolist() == []


def test_the_session_gives_the_same_drafts() -> None:
    rng = np.random.default_rng(1)
    records = [
        (rng.integers(0, 20, 30).astype(np.int32), rng.integers(0, 4, 60).astype(np.int32))
        for _ in range(8)
    ]
    counts = []
    for wrap in (ProposerDriver, SessionDriver):
        tally = Tally()
        driver = wrap(registry.build("suffix", CONTEXT, {"store_mb": 1.0}), CONTEXT)
        for prompt, response in records:
            replay_record(driver, prompt, response, tally)
        counts.append((tally.steps, tally.drafted, tally.accepted, tally.reliability.rows()))
    assert counts[0] == counts[1]
    assert counts[0][2] > 0


def test_the_session_does_not_hide_faults(proposer: Any) -> None:
    proposer.fails_in = "propose"
    driver = SessionDriver(proposer, CONTEXT)
    with pytest.raises(RuntimeError, match="broken in propose"):
        replay_record(driver, ids(1), ids(2, 3), Tally())


def test_a_tree_comes_with_its_parents(proposer: Any) -> None:
    proposer.capabilities = Capabilities(trees=True)
    proposer.draft, proposer.parents = [5, 6, 7], [-1, -1, 0]
    driver = ProposerDriver(proposer, CONTEXT)
    driver.begin(ids(1))
    driver.step(ids(2))
    draft = driver.draft()
    assert draft.parents is not None
    assert (draft.tokens.tolist(), draft.parents.tolist()) == ([5, 6, 7], [-1, -1, 0])


def test_held_text_grows_and_starts_anew() -> None:
    held = HeldText()
    held.hold(ids(1, 2, 3), fresh=True)
    for token in range(4, 50):
        held.hold(ids(token), fresh=False)
    assert held.text.tolist() == list(range(1, 50))
    held.hold(ids(9), fresh=True)
    assert held.text.tolist() == [9]


def test_memory_is_asked_of_proposers_that_tell(proposer: Any) -> None:
    assert memory_of(proposer) is None
    suffix: Proposer = registry.build("suffix", CONTEXT, {"store_mb": 1.0})
    driver, tally = ProposerDriver(suffix, CONTEXT), Tally()
    replay_record(driver, np.arange(90, dtype=np.int32), np.arange(60, dtype=np.int32), tally)
    memory = tally.figures([0.1])["memory"]
    # 149 of its 150 tokens are known before the last one; pages of 64 tokens are counted whole.
    assert tally.request_tokens == 149
    assert 20 <= memory["request_bytes_per_token"] <= 24 * 192 / 149
    assert 0 < memory["store_bytes"] <= 2**20
    assert memory["store_tokens"] <= memory["store_capacity"]


def test_a_prompt_beyond_the_length_limit_is_refused_by_name() -> None:
    driver = ProposerDriver(registry.build("suffix", CONTEXT, {"store_mb": 1.0}), CONTEXT)
    with pytest.raises(InvalidRequestError, match=r"Context\.max_length is 4000"):
        driver.begin(np.zeros(5000, np.int32))
