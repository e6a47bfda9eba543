"""Where an answer ends: stop strings, end-of-sequence inside an accepted draft, length limits."""

from __future__ import annotations

from typing import Any

import pytest

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Batch, Completion, Driver

from .compare import Tally, check_greedy
from .prompts import FUNCTION, RECORDS, STORY, VARIED, chat

LINE = VARIED["repeat-line"]

#: Conversations in which the assistant has already said what it is asked to say again.
ECHOES = [
    chat("Say: the sky is blue.", "The sky is blue.", "Say that once more."),
    chat("Say: the sky is blue.", "The sky is blue.", "Say: the sky is blue."),
    chat("What is the capital of Italy?", "The capital of Italy is Rome.") * 3
    + chat("What is the capital of Italy?"),
    chat("Copy: one two three four five", "one two three four five") * 3
    + chat("Copy: one two three four five"),
    chat("Repeat: " + STORY, STORY.strip()) * 2 + chat("Repeat: " + STORY),
    chat("Repeat: " + RECORDS, RECORDS.strip()) + chat("Repeat: " + RECORDS),
]


def same(
    plain: Driver,
    spec: Driver,
    tally: Tally,
    prompts: list[Any],
    params: dict[str, Any] | list[dict[str, Any]],
) -> Batch:
    """Serve the prompts with both engines, compare, and return what the speculating one said."""
    expected = plain.generate(prompts, params)
    got = spec.generate(prompts, params)
    for i, (want, have) in enumerate(zip(expected.results, got.results, strict=True)):
        check_greedy(plain, tally, f"prompt {i}", want.prompt_token_ids, want.only, have.only)
        assert have.only.stop_reason == want.only.stop_reason
    return got


def ends_in_accepted_draft(completion: Completion, end: int) -> bool:
    """Whether the last token is ``end`` and was drafted and accepted, not added by the target."""
    if not completion.token_ids or completion.token_ids[-1] != end:
        return False
    last = completion.steps[-1]
    return end in last.draft[: last.accepted]


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("stop", [" every morning", "weather", "ing.\n\nThe light", "no such text"])
def test_stop_strings(plain: Driver, spec: Driver, tally: Tally, stop: str, included: bool) -> None:
    params = {
        "temperature": 0,
        "max_tokens": 40,
        "stop": [stop, "###"],
        "ignore_eos": True,
        "include_stop_str_in_output": included,
    }
    before = spec.metrics()
    story = VARIED["repeat-story"]
    got = same(plain, spec, tally, [story, story + " wrote"], params)
    assert (spec.metrics() - before).accepted_tokens > 0
    for result in got.results:
        if stop == "no such text":
            assert result.only.finish_reason == "length"
        else:
            assert (result.only.finish_reason, result.only.stop_reason) == ("stop", stop)
            assert result.only.text.endswith(stop) == included


def test_stop_token_ids(plain: Driver, spec: Driver, tally: Tally) -> None:
    boy = spec.tokenize(" boy")[0]
    got = same(
        plain, spec, tally, [LINE], {"temperature": 0, "max_tokens": 40, "stop_token_ids": [boy]}
    )
    only = got.results[0].only
    assert (only.finish_reason, only.stop_reason) == ("stop", boy)
    assert only.token_ids[-1] == boy
    assert only.token_ids.count(boy) == 1


def test_end_of_sequence_inside_an_accepted_draft(
    plain: Driver, spec: EngineProcess, tally: Tally
) -> None:
    end = spec.info()["eos_token_id"]
    got = same(plain, spec, tally, ECHOES, {"temperature": 0, "max_tokens": 160})
    ended = [r.only for r in got.results if ends_in_accepted_draft(r.only, end)]
    # It really happened: the model's own end was part of a draft that it accepted ...
    assert len(ended) >= 2, [(r.only.text, r.only.steps[-1]) for r in got.results]
    for completion in ended:
        # ... and nothing behind it was delivered.
        assert completion.finish_reason == "stop"
        assert completion.token_ids.count(end) == 1


def test_ignore_eos_goes_on(plain: Driver, spec: EngineProcess, tally: Tally) -> None:
    end = spec.info()["eos_token_id"]
    got = same(
        plain, spec, tally, ECHOES[:4], {"temperature": 0, "max_tokens": 48, "ignore_eos": True}
    )
    assert all(len(r.only.token_ids) == 48 for r in got.results)
    assert any(end in r.only.token_ids[:-1] for r in got.results)


def test_min_tokens(plain: Driver, spec: EngineProcess, tally: Tally) -> None:
    """The end is forbidden for 24 tokens, although the drafts propose it much earlier."""
    end = spec.info()["eos_token_id"]
    params = {"temperature": 0, "max_tokens": 48, "min_tokens": 24}
    expected = plain.generate(ECHOES[:4], params)
    got = spec.generate(ECHOES[:4], params)
    assert got.tokens == expected.tokens
    for result in got.results:
        assert len(result.only.token_ids) >= 24
        assert end not in result.only.token_ids[:23]


def test_max_tokens_cuts_an_accepted_run(plain: Driver, spec: Driver) -> None:
    lengths = list(range(1, 25))
    params = [{"temperature": 0, "max_tokens": n, "ignore_eos": True} for n in lengths]
    longest = plain.generate([LINE], params[-1]).results[0].only
    got = spec.generate([LINE] * len(lengths), params)
    cut_inside = 0
    for length, result in zip(lengths, got.results, strict=True):
        only = result.only
        assert only.token_ids == longest.token_ids[:length]
        assert only.finish_reason == "length"
        cut_inside += only.steps[-1].accepted > 0
    assert cut_inside >= len(lengths) // 2


def test_one_token_answers(plain: Driver, spec: Driver, tally: Tally) -> None:
    same(plain, spec, tally, [LINE, FUNCTION, "a"], {"temperature": 0, "max_tokens": 1})
