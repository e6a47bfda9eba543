"""SGLang's request in the words of specplug."""

from __future__ import annotations

from types import SimpleNamespace

from specplug.adapters.sglang_srt.requests import describe, stop_ids

from .conftest import make_req


def test_all_ends_of_the_output_are_stops() -> None:
    tokenizer = SimpleNamespace(eos_token_id=7, additional_stop_token_ids={8})
    req = make_req("a", [1], tokenizer=tokenizer, params={"stop_token_ids": {9}})
    assert stop_ids(req) == {2, 7, 8, 9}
    assert describe(req)[0].stop_token_ids == {2, 7, 8, 9}


def test_ignored_ends_do_not_stop_drafts() -> None:
    assert not describe(make_req("a", [1], params={"ignore_eos": True}))[0].stop_token_ids


def test_greedy_requests_have_temperature_zero() -> None:
    assert describe(make_req("a", [1]))[0].temperature == 0.0
    warm = make_req("a", [1], params={"top_k": 50, "temperature": 0.7})
    assert describe(warm)[0].temperature == 0.7


def test_wishes_come_nested_or_flat() -> None:
    nested = make_req("a", [1], params={"custom_params": {"specplug": {"draft_limit": 0}}})
    flat = make_req("a", [1], params={"custom_params": {"specplug_namespace": "t", "__req__": 1}})
    assert describe(nested)[0].draft_limit == 0
    assert describe(flat)[0].namespace == "namespace=t"
    private = make_req("a", [1], params={"custom_params": {"specplug": {"share": False}}})
    assert (describe(flat)[0].shares, describe(private)[0].shares) == (True, False)


def test_a_wrong_wish_is_reported_and_ignored() -> None:
    req = make_req("a", [1], params={"custom_params": {"specplug": {"draft_limit": -1}}})
    request, complaint = describe(req)
    assert request.draft_limit is None
    assert "draft_limit" in complaint


def test_what_keeps_prefixes_apart_keeps_drafts_apart() -> None:
    plain = describe(make_req("a", [1]))[0].namespace
    salted = describe(make_req("a", [1], cache_salt="s"))[0].namespace
    keyed = describe(make_req("a", [1], extra_key="s"))[0].namespace
    adapted = describe(make_req("a", [1], lora_id="s", extra_key="s"))[0].namespace
    assert len({plain, salted, keyed, adapted}) == 4
