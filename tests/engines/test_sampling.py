"""Sampling parameters: penalties, log-probabilities, seeds, structured output, banned words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specplug.testing.engine_protocol import Driver

from .engines import Engine, need
from .prompts import RECORDS, VARIED, chat

NAMES = ["repeat-words", "repeat-story", "code-repeat", "chat-copy", "prose"]
PROMPTS = [VARIED[name] for name in NAMES]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 48}

#: Nats. Largest difference between log-probabilities of a decoding and a verifying pass in
#: float32; measured values are below 1e-4.
LOGPROB_TOLERANCE = 1e-3

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "city": {"type": "string", "maxLength": 20},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["id", "city", "unit"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 1.05},
        {"presence_penalty": 0.8},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.1, "presence_penalty": -0.4, "frequency_penalty": 0.3},
        {"bad_words": [" Jack", " the", "return"]},
        {"logit_bias": {"28": 2.5, "30": -5.0, "284": 1.0}},
    ],
    ids=lambda p: "+".join(p),
)
def test_rules_apply_at_every_drafted_position(
    engine: Engine, plain: Driver, spec: Driver, penalties: dict[str, Any]
) -> None:
    """At each draft position the penalties must count the earlier drafts: rule 4 of losslessness."""
    for name in penalties:
        need(engine, name)
    if "repetition_penalty" in penalties and len(penalties) > 1:
        need(engine, "repetition_penalty with others")
    before = spec.metrics()
    got = spec.generate(PROMPTS, {**GREEDY, **penalties})
    gained = spec.metrics() - before
    assert gained.draft_tokens > gained.accepted_tokens > 0
    assert got.tokens == plain.generate(PROMPTS, {**GREEDY, **penalties}).tokens


def test_the_penalties_matter(plain: Driver) -> None:
    """The test above would be empty if plain decoding did not react to them."""
    free = plain.generate(PROMPTS, GREEDY).tokens
    assert free != plain.generate(PROMPTS, {**GREEDY, "repetition_penalty": 1.3}).tokens
    assert free != plain.generate(PROMPTS, {**GREEDY, "frequency_penalty": 0.5}).tokens
    assert free != plain.generate(PROMPTS, {**GREEDY, "presence_penalty": 0.8}).tokens


def test_bad_words_matter(engine: Engine, plain: Driver) -> None:
    need(engine, "bad_words")
    free = plain.generate(PROMPTS, GREEDY).tokens
    assert free != plain.generate(PROMPTS, {**GREEDY, "bad_words": [" the"]}).tokens


def test_logit_bias_matters(engine: Engine, plain: Driver) -> None:
    need(engine, "logit_bias")
    free = plain.generate(PROMPTS, GREEDY).tokens
    assert free != plain.generate(PROMPTS, {**GREEDY, "logit_bias": {"28": 2.5}}).tokens


@pytest.mark.parametrize("how", [{"temperature": 0}, {"temperature": 1.0, "top_k": 1}], ids=str)
def test_logprobs(engine: Engine, plain: Driver, spec: Driver, how: dict[str, Any]) -> None:
    for name in how:
        need(engine, name)
    params = {**how, "max_tokens": 40, "logprobs": 5}
    expected = plain.generate(PROMPTS, params)
    got = spec.generate(PROMPTS, params)
    assert got.tokens == expected.tokens
    compared = 0
    for want, have in zip(expected.results, got.results, strict=True):
        assert want.only.logprobs is not None
        assert have.only.logprobs is not None
        assert len(have.only.logprobs) == len(have.only.token_ids)
        for token, a, b in zip(
            have.only.token_ids, want.only.logprobs, have.only.logprobs, strict=True
        ):
            assert token in b
            # Behind the fifth place two tokens may swap; the others must be the same ones.
            assert len(a.keys() & b.keys()) >= len(a) - 1
            for shared in a.keys() & b.keys():
                assert abs(a[shared] - b[shared]) < LOGPROB_TOLERANCE
                compared += 1
    assert compared > 500


def test_same_seed_same_answer(engine: Engine, plain: Driver, spec: Driver) -> None:
    """What is more: the answer of an engine without speculation, because seeded sampling gets no drafts."""
    need(engine, "seed")
    params = {"temperature": 1.0, "seed": 1234, "max_tokens": 48}
    before = spec.metrics()
    first = spec.generate(PROMPTS, params)
    assert first.tokens == spec.generate(PROMPTS, params).tokens
    assert first.tokens[:2] == [spec.generate([p], params).tokens[0] for p in PROMPTS[:2]]
    assert first.tokens == plain.generate(PROMPTS, params).tokens
    assert (spec.metrics() - before).draft_tokens == 0
    assert first.tokens != spec.generate(PROMPTS, {**params, "seed": 99}).tokens


def test_seeds_beside_drafts(engine: Engine, plain: Driver, spec: Driver) -> None:
    """Seeded and drafted requests in one batch do not disturb each other; greedy ones may have a seed."""
    need(engine, "seed")
    seeded: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 32}
    params: list[dict[str, Any]] = [seeded, GREEDY, seeded, {**GREEDY, "seed": 7}, seeded]
    before = spec.metrics()
    got = spec.generate(PROMPTS, params)
    assert (spec.metrics() - before).accepted_tokens > 0
    assert got.tokens == plain.generate(PROMPTS, params).tokens


def test_drafts_on_demand_for_a_seeded_request(engine: Engine, spec: Driver) -> None:
    need(engine, "seed")
    wish = {"extra_args": {"specplug": {"draft_limit": 8}}}
    before = spec.metrics()
    spec.generate(PROMPTS, {"temperature": 0.2, "seed": 1, "max_tokens": 32, **wish})
    assert (spec.metrics() - before).draft_tokens > 0


def test_a_request_that_wants_no_drafts(plain: Driver, spec: Driver) -> None:
    wish = {"extra_args": {"specplug": {"draft_limit": 0}}}
    before = spec.metrics()
    got = spec.generate(PROMPTS, [{**GREEDY, **wish}] * len(PROMPTS))
    assert (spec.metrics() - before).draft_tokens == 0
    assert got.tokens == plain.generate(PROMPTS, GREEDY).tokens


def test_several_samples_of_one_request(spec: Driver) -> None:
    params = {"temperature": 1.0, "n": 4, "max_tokens": 32}
    result = spec.generate([VARIED["prose"]], params, raw_seed=5).results[0]
    assert len({c.token_ids for c in result.completions}) == 4


def test_structured_output(plain: Driver, spec: Driver) -> None:
    """Drafts that leave the grammar are not verified, or not accepted; the answer is the same."""
    prompts: list[Any] = [
        chat("Describe one of these records as JSON with id, city and unit:\n" + RECORDS),
        chat(f"Extract the record of Oslo as JSON.\n{RECORDS}"),
        RECORDS + "Record of Cairo: ",
    ]
    params = {"temperature": 0, "max_tokens": 80, "json_schema": SCHEMA}
    before = spec.metrics()
    got = spec.generate(prompts, params)
    gained = spec.metrics() - before
    assert gained.draft_tokens > gained.accepted_tokens > 0
    assert got.tokens == plain.generate(prompts, params).tokens
    for result in got.results:
        assert result.only.finish_reason == "stop", result.only.text
        record = json.loads(result.only.text)
        assert set(record) == {"id", "city", "unit"}
        assert record["unit"] in SCHEMA["properties"]["unit"]["enum"]  # type: ignore[index]
