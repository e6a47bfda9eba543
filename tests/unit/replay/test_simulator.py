"""The replay loop with scripted drafts: what is accepted, what follows, what is called with what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from specplug.errors import ReplayError
from specplug.replay.drivers import Draft
from specplug.replay.metrics import SETTLED_STEPS, Tally
from specplug.replay.simulator import ContractCheck, accepted_nodes, broken_draft, replay_record
from specplug.types import TokenArray


class ScriptedDriver:
    """Drafts by a function of all tokens so far, and records every call.

    Attributes:
        rule: text so far -> draft token ids, or a whole :class:`Draft`.
        calls: method names with their tokens.
        sick_after: from that many steps on :meth:`broken_invariant` complains.
    """

    def __init__(self, rule: Callable[[list[int]], Any] = lambda text: []) -> None:
        self.rule = rule
        self.calls: list[tuple[str, list[int]]] = []
        self.text: list[int] = []
        self.steps = 0
        self.sick_after = 10**9
        self.seen: list[tuple[int, list[int]]] = []

    def hold(self, tokens: TokenArray, fresh: bool) -> None:
        self.calls.append(("hold fresh" if fresh else "hold", tokens.tolist()))

    def begin(self, prompt: TokenArray) -> None:
        self.calls.append(("begin", prompt.tolist()))
        self.text = prompt.tolist()

    def step(self, new: TokenArray) -> None:
        self.calls.append(("step", new.tolist()))
        self.text += new.tolist()
        self.steps += 1

    def draft(self) -> Draft:
        found = self.rule(self.text)
        draft = found if isinstance(found, Draft) else chain(found)
        self.seen.append((len(self.text), draft.tokens.tolist()))
        return draft

    def end(self, new: TokenArray) -> None:
        self.calls.append(("end", new.tolist()))
        self.text += new.tolist()

    def memory(self) -> None:
        return None

    def broken_invariant(self) -> str:
        return "the index is sick" if self.steps > self.sick_after else ""


def chain(tokens: Sequence[int], survival: Sequence[float] | None = None) -> Draft:
    """A chain draft from plain lists."""
    estimates = None if survival is None else np.array(survival, np.float64)
    return Draft(np.array(tokens, np.int32), estimates)


def ids(*tokens: int) -> TokenArray:
    """Token ids as every interface wants them."""
    return np.array(tokens, np.int32)


PROMPT = ids(1, 2, 3)
RESPONSE = ids(10, 11, 12, 13, 14, 15)


def test_without_drafts_every_token_is_a_step() -> None:
    driver, tally = ScriptedDriver(), Tally()
    replay_record(driver, PROMPT, RESPONSE, tally)
    assert (tally.steps, tally.emitted, tally.drafted_steps) == (5, 5, 0)
    assert driver.text == [1, 2, 3, 10, 11, 12, 13, 14, 15]


def test_a_right_draft_is_accepted_and_one_token_follows() -> None:
    """At the first step 11, 12 are drafted: 11, 12 and 13 become certain. Then 99 is drafted: only 14 does."""
    drafts = {4: [11, 12], 7: [99], 8: [15, 16, 17]}
    driver, tally = ScriptedDriver(lambda text: drafts[len(text)]), Tally()
    replay_record(driver, PROMPT, RESPONSE, tally)
    assert [c for c in driver.calls if not c[0].startswith("hold")] == [
        ("begin", [1, 2, 3]),
        ("step", [10]),
        ("step", [11, 12, 13]),
        ("step", [14]),
        ("end", [15]),
    ]
    assert (tally.steps, tally.emitted, tally.drafted_steps) == (3, 5, 3)
    assert (tally.drafted, tally.accepted) == (6, 3)
    assert (tally.requests, tally.prompt_tokens, tally.response_tokens) == (1, 3, 6)


def test_text_is_held_before_it_is_handed_over() -> None:
    driver = ScriptedDriver(lambda text: [11, 12, 13, 14])
    replay_record(driver, PROMPT, RESPONSE, Tally())
    assert driver.calls == [
        ("hold fresh", [1, 2, 3]),
        ("begin", [1, 2, 3]),
        ("hold", [10]),
        ("step", [10]),
        ("hold", [11, 12, 13, 14, 15]),
        ("end", [11, 12, 13, 14, 15]),
    ]


@pytest.mark.parametrize("response", [ids(), ids(10)])
def test_a_response_of_the_prefill_alone_has_no_step(response: np.ndarray) -> None:
    driver, tally = ScriptedDriver(), Tally()
    replay_record(driver, PROMPT, response, tally)
    assert (tally.short, tally.requests, driver.calls) == (1, 0, [])


def test_tokens_after_a_wrong_one_are_not_accepted() -> None:
    assert accepted_nodes(chain([10, 99, 12]), ids(10, 11, 12)).tolist() == [True, False, False]
    assert accepted_nodes(chain([10, 11, 12]), ids(10, 11)).tolist() == [True, True, False]
    assert accepted_nodes(chain([]), ids(10)).tolist() == []


def test_a_tree_is_followed_along_the_response() -> None:
    """Root: 10 or 20. Below 20: 21 or 22. Below 22: 23."""
    tree = Draft(ids(10, 20, 21, 22, 23), None, ids(-1, -1, 1, 1, 3))
    assert accepted_nodes(tree, ids(20, 22, 23)).tolist() == [False, True, False, True, True]
    assert accepted_nodes(tree, ids(10, 22)).tolist() == [True, False, False, False, False]
    assert accepted_nodes(tree, ids(30)).tolist() == [False] * 5


def test_estimates_are_compared_with_acceptance() -> None:
    driver = ScriptedDriver(lambda text: chain([11, 99], [0.9, 0.4]) if len(text) == 4 else [])
    tally = Tally()
    replay_record(driver, PROMPT, RESPONSE, tally)
    assert [(row["estimate"], row["acceptance_rate"]) for row in tally.reliability.rows()] == [
        (0.4, 0.0),
        (0.9, 1.0),
    ]
    assert tally.settled.error is None


def test_early_steps_are_left_out_of_the_settled_calibration() -> None:
    driver = ScriptedDriver(lambda text: chain([99], [0.5]))
    tally = Tally()
    replay_record(driver, PROMPT, np.arange(SETTLED_STEPS + 11, dtype=np.int32) % 50, tally)
    assert tally.steps == SETTLED_STEPS + 10
    assert int(tally.settled.tokens.sum()) == 10


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (chain([1, 2, 3]), "3 tokens were drafted, but the ceiling was 2"),
        (chain([1, 100]), "draft token 1 is 100, outside the vocabulary of 100"),
        (chain([-1]), "draft token 0 is -1"),
        (chain([1, 2], [0.5, 0.6]), "survival of draft token 1 is 0.6, which must lie in 0 .. 0.5"),
        (chain([1], [1.5]), "survival of draft token 0 is 1.5"),
        (chain([1], [float("nan")]), "survival of draft token 0 is nan"),
        (Draft(ids(1, 2), np.array([0.5, 0.4]), ids(-1, 1)), "draft node 1 hangs on node 1"),
        (Draft(ids(1, 2), np.array([0.5, 0.6]), ids(-1, -1)), ""),
        (chain([1, 99], [1.0, 1.0]), ""),
    ],
)
def test_a_draft_is_checked(draft: Draft, message: str) -> None:
    found = broken_draft(draft, 2, 100)
    assert message in found
    assert bool(message) == bool(found)


def test_a_check_names_the_place() -> None:
    driver = ScriptedDriver(lambda text: [100])
    with pytest.raises(ReplayError, match="request 1, response token 1: draft token 0 is 100"):
        replay_record(driver, PROMPT, RESPONSE, Tally(), ContractCheck(4, 100))


def test_invariants_are_checked_at_every_nth_step() -> None:
    """The state breaks at the second step; checks fall on the first and the fourth."""
    driver = ScriptedDriver()
    driver.sick_after = 1
    with pytest.raises(ReplayError, match="response token 4: the index is sick"):
        replay_record(driver, PROMPT, RESPONSE, Tally(), ContractCheck(4, 100, every=3))
