"""What the worker knows of a request, translated."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specplug.adapters.vllm_v1.requests import MaskedHistory, describe
from specplug.testing.stub_host import DefaultParams
from specplug.types import SEPARATOR


def state(lora: Any = None, **given: Any) -> Any:
    return SimpleNamespace(
        num_prompt_tokens=5,
        sampling_params=DefaultParams(**given),
        lora_request=lora,
    )


def test_ignore_eos_takes_the_end_of_sequence_id_out() -> None:
    assert describe("r", state(eos_token_id=2))[0].stop_token_ids == {2}
    ignoring = describe("r", state(eos_token_id=2, ignore_eos=True, stop_token_ids=[7]))[0]
    assert ignoring.stop_token_ids == {7}


def test_seeded_sampling_gets_drafts_only_on_demand() -> None:
    def limit(**given: Any) -> int | None:
        return describe("r", state(**given))[0].draft_limit

    assert limit(temperature=1.0, seed=3) == 0
    assert limit(temperature=0.0, seed=3) is None
    assert limit(temperature=1.0) is None
    wish = {"specplug": {"draft_limit": 5}}
    assert limit(temperature=1.0, seed=3, extra_args=wish) == 5


def test_tenants_adapters_and_salts_are_kept_apart() -> None:
    lora = SimpleNamespace(lora_int_id=3, lora_name="poet")
    wish = {"specplug": {"namespace": "t"}}
    found = {
        describe("r", each, salt)[0].namespace
        for each, salt in (
            (state(), ""),
            (state(lora=lora), ""),
            (state(), "s"),
            (state(extra_args=wish), ""),
            (state(lora=lora, extra_args=wish), "s"),
        )
    }
    assert len(found) == 5
    assert "" in found


def test_flat_keys_serve_http_clients() -> None:
    flat = {"specplug_draft_limit": 0, "specplug_namespace": "t", "other": "ignored"}
    request, complaint = describe("r", state(extra_args=flat))
    assert (request.draft_limit, request.namespace, complaint) == (0, "namespace=t", "")


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ({"specplug": 3}, "must be an object, got 3"),
        ({"specplug": {"draft_limit": -1}}, "at least 0, got -1"),
        ({"specplug": {"draft_limit": True}}, "got True"),
        ({"specplug": {"draft_limit": "4"}}, "got '4'"),
        ({"specplug": {"namespace": 4}}, "must be a string, got 4"),
        (
            {"specplug": {"draftlimit": 4}},
            "unknown key 'draftlimit'; valid: draft_limit, namespace, share",
        ),
        ({"specplug": {"share": "no"}}, "share must be true or false, got 'no'"),
        ({"specplug_share": 2}, "share must be true or false, got 2"),
    ],
)
def test_wrong_hints_are_ignored_and_reported(extra: Any, complaint: str) -> None:
    request, found = describe("r", state(extra_args=extra))
    assert complaint in found
    assert request.draft_limit is None


@pytest.mark.parametrize(
    ("extra", "shares"),
    [
        (None, True),
        ({"other": 1}, True),
        ({"specplug": {"draft_limit": -1}}, True),
        ({"specplug": {"share": True}}, True),
        ({"specplug": {"share": False}}, False),
        ({"specplug_share": 0}, False),
        ({"specplug_share": 1}, True),
        ({"specplug_share": 1, "specplug": {"share": False}}, False),
        ({"specplug": {"share": "false"}}, False),
        ({"specplug": {"namespce": "t"}}, False),
        ({"specplug": "namespace=t"}, False),
    ],
)
def test_text_is_not_kept_for_others_where_that_was_asked_for_or_may_have_been(
    extra: Any, shares: bool
) -> None:
    request, _ = describe("r", state(extra_args=extra))
    assert request.shares is shares


def test_no_salt_can_spell_the_namespace_of_another_tenant() -> None:
    victim, _ = describe("r", state(extra_args={"specplug": {"namespace": "t"}}), "s")
    attacker, _ = describe("r", state(), "s|namespace=t")
    assert attacker.namespace != victim.namespace
    assert "s|" not in attacker.namespace, "salts are not to be read in a saved store"


def test_an_unreadable_namespace_is_shared_with_nobody_else() -> None:
    request, _ = describe("r", state(extra_args={"specplug": {"namespace": 4}}))
    assert request.namespace not in ("", "namespace=4")


def features(*ranges: tuple[int, int]) -> list[Any]:
    return [
        SimpleNamespace(mm_position=SimpleNamespace(offset=start, length=length))
        for start, length in ranges
    ]


def test_a_masked_history_follows_growth_and_rewinds() -> None:
    ranges = ((2, 3), (8, 2))
    masked = MaskedHistory(features(*ranges))
    rng = np.random.default_rng(7)
    row = rng.integers(0, 50, 2000).astype(np.int32)
    for length in (4, 4, 9, 10, 700, 1999, 12, 3, 6, 2000):
        if length == 12:  # rewound, and another continuation
            row[12:] = rng.integers(0, 50, len(row) - 12)
        expected = row[:length].copy()
        for start, size in ranges:
            expected[start : start + size] = SEPARATOR
        assert masked.follow(row[:length]).tolist() == expected.tolist(), f"at length {length}"


def test_salts_travel_with_new_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    from specplug.adapters.vllm_v1 import salts

    class NewRequestData:
        def __init__(self, request_id: str) -> None:
            self.req_id = request_id

        @classmethod
        def from_request(cls, request: Any, block_ids: Any) -> NewRequestData:
            assert block_ids == "blocks"
            return cls(request.request_id)

    salts.carry()  # the module is not loaded: nothing happens
    module = types.ModuleType(salts.MODULE)
    module.NewRequestData = NewRequestData  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, salts.MODULE, module)
    salts.carry()
    salts.carry()
    salted = NewRequestData.from_request(SimpleNamespace(request_id="a", cache_salt="s"), "blocks")
    plain = NewRequestData.from_request(SimpleNamespace(request_id="b", cache_salt=None), "blocks")
    assert (salted.req_id, salts.salt_of(salted)) == ("a", "s")
    assert (plain.req_id, salts.salt_of(plain)) == ("b", "")
    assert vars(plain) == {"req_id": "b"}, "a request without a salt was touched"


def test_a_proposer_that_needs_hidden_states_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specplug.adapters.common.building import build_proposer
    from specplug.errors import HostMismatchError
    from specplug.types import Capabilities, Context

    (tmp_path / "needs_states.py").write_text(
        "from specplug.proposers.null import NullProposer\n"
        "from specplug.types import Capabilities\n"
        "class NeedsStates(NullProposer):\n"
        "    capabilities = Capabilities(target_states=True)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    context = Context(10, 100, 4, 2)
    assert build_proposer("null", context, {}, "vLLM").capabilities == Capabilities()
    with pytest.raises(HostMismatchError, match=r"needs the target's hidden states .* for vLLM"):
        build_proposer("needs_states:NeedsStates", context, {}, "vLLM")
