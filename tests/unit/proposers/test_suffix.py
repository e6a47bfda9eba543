"""The suffix proposer as a session sees it: options, stop tokens, tenants, and text that repeats."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from specplug import registry
from specplug.errors import SettingsError
from specplug.proposers.suffix import SuffixProposer, SuffixSettings
from specplug.protocols import Proposer
from specplug.session import Session
from specplug.types import Capabilities, Context, Request

CONTEXT = Context(vocab_size=1000, max_length=4000, max_draft=8, max_requests=4)
WORDS = list(range(100, 140))


def new_session(**options: Any) -> Session:
    options.setdefault("verify_cost", 0.0)
    return Session(registry.build("suffix", CONTEXT, options), CONTEXT, on_fault="raise")


def step(session: Session, name: str, text: list[int]) -> list[int]:
    out = session.step([name], [np.array(text, np.int32)])
    return out.tokens[0, : out.lengths[0]].tolist()


def begin(session: Session, request: Request, text: list[int]) -> None:
    session.begin(request, np.array(text, np.int32))


def say(session: Session, name: str, output: list[int], **request: Any) -> None:
    """A request with the prompt 1 says ``output`` and ends; its text is kept."""
    begin(session, Request(name, 1, **request), [1])
    step(session, name, [1, *output])
    session.finish(name)


def test_it_is_a_proposer_that_shares_text_unless_it_has_no_store() -> None:
    proposer = registry.build("suffix", CONTEXT)
    assert isinstance(proposer, Proposer)
    assert proposer.capabilities == Capabilities(shares_requests=True)
    assert registry.build("suffix", CONTEXT, {"store_mb": 0}).capabilities == Capabilities()


def test_the_defaults_are_the_documented_ones() -> None:
    assert registry.check("suffix", {}) == {
        "store_mb": 64.0,
        "verify_cost": 0.03,
        "share_prompts": False,
        "share_running": True,
        "common": None,
        "tree": False,
        "store_path": None,
        "store_save_seconds": 60.0,
    }


@pytest.mark.parametrize(
    "options",
    [{"store_mb": -0.1}, {"store_mb": 2e6}, {"verify_cost": -1}, {"verify_cost": 10.1}],
)
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=f"'{next(iter(options))}' must be between"):
        registry.build("suffix", CONTEXT, options)


@pytest.mark.parametrize("store_mb", [0, 0.001, 0.01, 1, 5.5])
def test_the_store_takes_no_more_than_the_option_says(store_mb: float) -> None:
    index = SuffixProposer(CONTEXT, SuffixSettings(float(store_mb))).index
    assert index.store_bytes <= store_mb * 2**20
    assert index.store_bytes >= 0.95 * store_mb * 2**20 or store_mb < 0.01


def test_a_request_copies_its_prompt() -> None:
    session = new_session()
    begin(session, Request("a", 43), [*WORDS, 7, *WORDS[:2]])
    assert step(session, "a", [*WORDS, 7, *WORDS[:3]]) == WORDS[3:11]


def test_what_one_request_said_serves_the_next() -> None:
    session = new_session()
    say(session, "a", WORDS)
    assert step(session, "b", WORDS[5:8]) == WORDS[8:16]


@pytest.mark.parametrize("options", [{"store_mb": 0}, {"store_mb": 0.0001}])
def test_without_a_store_requests_share_nothing(options: dict[str, float]) -> None:
    session = new_session(**options)
    say(session, "a", WORDS)
    assert step(session, "b", WORDS[5:8]) == []


def test_an_aborted_request_leaves_no_text() -> None:
    session = new_session()
    begin(session, Request("a", 0), [])
    step(session, "a", WORDS)
    session.finish("a", keep=False)
    assert step(session, "b", WORDS[5:8]) == []


def test_a_request_may_ask_that_its_text_is_not_kept() -> None:
    session = new_session(share_prompts=True)
    say(session, "a", WORDS, shares=False)
    assert step(session, "b", WORDS[5:8]) == []


@pytest.mark.parametrize("share_prompts", [False, True])
def test_prompts_are_kept_only_if_asked_for(share_prompts: bool) -> None:
    session = new_session(share_prompts=share_prompts)
    answer = list(range(200, 220))
    begin(session, Request("a", 40), WORDS)
    step(session, "a", [*WORDS, *answer])
    session.finish("a")
    assert step(session, "b", WORDS[5:8]) == (WORDS[8:16] if share_prompts else [])
    # The answer goes on from the prompt, as one text.
    assert step(session, "c", WORDS[37:]) == (answer[:8] if share_prompts else [])
    assert step(session, "d", answer[:3]) == answer[3:11]
    begin(session, Request("e", 0, namespace="another"), [])
    assert step(session, "e", WORDS[5:8]) == []


def test_of_a_long_prompt_the_end_is_kept() -> None:
    context = Context(vocab_size=10**6, max_length=70_000, max_draft=8, max_requests=2)
    proposer = registry.build("suffix", context, {"share_prompts": True, "verify_cost": 0.0})
    session = Session(proposer, context, on_fault="raise")
    text = list(range(60_000))
    begin(session, Request("a", 60_000), text)
    step(session, "a", [*text, 5])
    session.finish("a")
    assert session.proposer.index.stored_tokens <= (1 << 14) + 32  # type: ignore[attr-defined]
    assert step(session, "b", text[-9:-6]) == [*text[-6:], 5]


def test_tenants_do_not_share() -> None:
    session = new_session()
    say(session, "a", WORDS, namespace="tenant a")
    begin(session, Request("b", 0, namespace="tenant b"), [])
    assert step(session, "b", WORDS[5:8]) == []
    begin(session, Request("c", 0, namespace="tenant a"), [])
    assert step(session, "c", WORDS[5:8]) == WORDS[8:16]


def test_text_behind_a_stop_token_is_not_kept() -> None:
    # Engines may emit tokens behind the stop in the same burst; they are not part of the answer.
    session = new_session()
    say(session, "a", [*WORDS[:6], 999, *WORDS[6:]], stop_token_ids=frozenset({999}))
    assert step(session, "b", WORDS[2:4]) == [*WORDS[4:6], 999]
    assert step(session, "c", WORDS[10:14]) == []


def test_stop_tokens_are_those_of_the_request_in_the_slot() -> None:
    session = new_session()
    say(session, "a", WORDS[:6], stop_token_ids=frozenset({WORDS[2]}))
    say(session, "b", WORDS[:6])  # the same slot, but nothing stops it
    assert step(session, "c", WORDS[1:3]) == WORDS[3:6]


def test_a_slot_used_again_has_forgotten_the_other_request() -> None:
    session = new_session(store_mb=0)
    begin(session, Request("a", 40), WORDS)
    session.finish("a")
    begin(session, Request("b", 3), WORDS[:3])
    assert step(session, "b", WORDS[:4]) == []


def test_a_follow_up_that_is_shorter_starts_anew() -> None:
    session = new_session(store_mb=0)
    begin(session, Request("a", 40), WORDS)
    step(session, "a", [*WORDS, *WORDS[:10]])
    assert step(session, "a", WORDS[:5]) == []
    assert step(session, "a", [*WORDS[:5], *WORDS[:2]]) == [*WORDS[2:5], *WORDS[:2], *WORDS[2:5]]
    assert session.proposer.index.check_invariants() == ""  # type: ignore[attr-defined]


def test_placeholders_of_images_are_neither_copied_nor_matched_across() -> None:
    session = new_session()
    image = [10**6, 10**6 + 1, -3]
    begin(session, Request("a", 0), [])
    assert step(session, "a", [5, 6, *image, 7, 8, 5]) == [6]
    assert step(session, "a", [5, 6, *image, 7, 8, 5, 6]) == []
    assert step(session, "a", [5, 6, *image, 7, 8, 5, 6, *image]) == []
    assert step(session, "a", [5, 6, *image, 7, 8, 5, 6, *image, 7])[:3] == [8, 5, 6]


def test_text_without_repetition_costs_no_draft() -> None:
    session = new_session(verify_cost=0.03)
    text = np.random.default_rng(2).permutation(1000).tolist()
    for length in range(100, 600, 5):
        assert step(session, "a", text[:length]) == []


def test_drafts_recover_after_rejections() -> None:
    """A cap that can only fall would leave the drafts short for ever."""
    session = new_session(verify_cost=0.03)
    text = WORDS[:10] * 3
    begin(session, Request("a", 30), text)
    rng = np.random.default_rng(4)
    for _ in range(6):  # every draft is rejected at once
        step(session, "a", text)
        text = [*text, int(rng.integers(500, 1000))]
    text += WORDS[:1]
    lengths = []
    for _ in range(20):
        draft = step(session, "a", text)
        lengths.append(len(draft))
        place = (text[-1] - 100 + 1) % 10
        target = [*WORDS[place:10], *WORDS[:10]]
        assert draft == target[: len(draft)], "the text has period ten"
        text = [*text, *target[: len(draft) + 1]]
    assert max(lengths[:10]) == 8, f"drafts stay short: {lengths}"
    assert min(lengths[10:]) == 8, f"drafts fall again: {lengths}"


def test_the_same_events_give_the_same_drafts() -> None:
    rng = np.random.default_rng(9)
    runs = [new_session(store_mb=0.01, verify_cost=0.02) for _ in range(2)]
    drafted = 0
    for number in range(40):
        text = [WORDS[5 * k + j] for k in rng.integers(0, 5, 24) for j in range(5)]
        for length in range(20, 120, 9):
            drafts = [step(run, f"r{number}", text[:length]) for run in runs]
            assert drafts[0] == drafts[1]
            drafted += len(drafts[0])
        for run in runs:
            run.finish(f"r{number}")
    assert drafted > 200
    assert runs[0].stats == runs[1].stats


def test_memory_does_not_grow_with_the_number_of_requests() -> None:
    session = new_session(store_mb=0.01)
    index = session.proposer.index  # type: ignore[attr-defined]

    def taken() -> int:
        own = index.state._replace(calls=())  # the caller's arrays are not the index's
        return sum(array.nbytes for group in own for array in group)

    before = taken()
    for number in range(300):
        say(session, f"r{number}", WORDS)
    assert taken() == before
    assert len(session.proposer._stops) == 0  # type: ignore[attr-defined]


def test_a_token_of_a_live_request_takes_22_bytes() -> None:
    slots = new_session().proposer.index.state.slots  # type: ignore[attr-defined]
    per_token = (slots.tokens.nbytes + slots.links.nbytes + slots.heads.nbytes) / len(slots.tokens)
    assert per_token == 22.0


def test_finishing_a_slot_that_never_began_is_harmless() -> None:
    proposer = SuffixProposer(CONTEXT, SuffixSettings(0.1))
    proposer.finish(2, keep=True)
    proposer.finish(2, keep=True)
    assert proposer.index.stored_tokens == 0
    assert proposer.index.check_invariants() == ""


def test_looking_up_the_options_compiles_nothing() -> None:
    code = (
        "import sys\n"
        "from specplug import registry\n"
        "registry.check('suffix', {'store_mb': 1})\n"
        "print('numba' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False"]
