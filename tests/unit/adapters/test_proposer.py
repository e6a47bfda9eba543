"""The life cycle of requests, as the V1 runner shows it, reaches the session."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from specplug.adapters.vllm_v1 import active
from specplug.adapters.vllm_v1.proposer import MAX_FAULTS
from specplug.testing.stub_host import periodic_target, plain_continuation
from specplug.types import SEPARATOR

PROMPT = [10 + n % 7 for n in range(12)]


def check_texts(host: Any) -> None:
    for request_id, entry in host.running.items():
        expected = plain_continuation(
            periodic_target, entry.tokens[: entry.prompt_length], len(entry.tokens)
        )
        assert entry.tokens == expected, f"request {request_id} says something else with drafts"


def test_drafts_are_accepted_and_the_text_is_the_plain_one(make: Any) -> None:
    host, adapter = make()
    for name in ("a", "b", "c"):
        host.add(name, PROMPT)
    for _ in range(20):
        host.step()
    check_texts(host)
    assert host.accepted > 60
    assert adapter.session.stats.accepted == host.accepted
    assert adapter in active()
    assert adapter.times.count == 20


def test_drafts_are_ragged_lists_of_python_ints(make: Any) -> None:
    host, _ = make(max_draft=8)
    host.add("a", PROMPT)
    host.add("b", [1, 2, 3])
    seen = [host.step() for _ in range(6)]
    for drafts in seen:
        for draft in drafts:
            assert isinstance(draft, list)
            assert len(draft) <= 8
            assert all(type(token) is int for token in draft)
    lengths = {len(d) for drafts in seen for d in drafts}
    assert 0 in lengths
    assert len(lengths) >= 3, "the host did not show that drafts may differ in length"


def test_of_a_tree_the_first_branch_is_drafted(make: Any) -> None:
    """This runner verifies chains only: the nodes of a tree, one after the other, would make no sense."""
    host, _ = make(proposer="specplug_test_recorder:Fork")
    host.add("a", PROMPT)
    assert host.step() == [[10, 11]]


def test_who_could_draft_trees_is_told_that_none_are_verified(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # After 1, 2 came 10, 11, 12 and, later, 20, 21, 22.
    fork = [1, 2, 10, 11, 12, 5, 1, 2, 20, 21, 22, 6, 1, 2]
    with caplog.at_level(logging.WARNING, logger="specplug"):
        host, adapter = make(
            lambda history: 2, proposer="suffix", options={"tree": True, "verify_cost": 0.001}
        )
    assert "option 'tree' is without effect" in caplog.text
    host.add("a", fork[:-1])
    (draft,) = host.step()
    assert not adapter.session.proposer.capabilities.trees
    assert draft[:3] in ([10, 11, 12], [20, 21, 22])


def test_rows_in_prefill_get_no_draft_and_start_later(make: Any) -> None:
    host, adapter = make()
    host.add("long", PROMPT, prefill_steps=2)
    assert host.step() == [[]]
    assert host.step() == [[]]
    assert adapter.session.live == 0
    assert host.step() != [[]]
    assert adapter.session.proposer.started[0].prompt_length == len(PROMPT)


def test_state_follows_the_request_not_the_row(make: Any) -> None:
    host, adapter = make()
    for name in ("a", "b", "c", "d"):
        host.add(name, [*PROMPT, ord(name)])
    host.step()
    host.shuffle(["d", "b", "a", "c"])
    host.step()
    host.preempt("b")
    host.step()
    host.end("a")
    host.step()
    host.resume("b")
    host.shuffle(["b", "d", "c"])
    for _ in range(8):
        host.step()
    check_texts(host)
    stats = adapter.session.stats
    assert (stats.started, stats.finished, stats.restarted) == (4, 1, 0)


def test_steps_without_a_call_are_caught_up(make: Any) -> None:
    host, adapter = make()
    host.add("a", PROMPT)
    host.step()
    for _ in range(5):
        host.step(propose=False)
    host.step()
    recorder = adapter.session.proposer
    assert recorder.histories[0] == host.running["a"].tokens
    assert adapter.session.stats.restarted == 0


def test_a_proposer_that_rests_is_left_alone_and_catches_up(make: Any) -> None:
    host, adapter = make()
    host.add("a", PROMPT)
    host.step()
    recorder, answers = adapter.session.proposer, [True] * 5 + [False]
    before = recorder.histories[0]
    recorder.rests = lambda: answers.pop(0)
    for _ in range(5):
        host.step()
        assert recorder.histories[0] == before
    host.step()
    assert recorder.histories[0] == host.running["a"].tokens
    stats = adapter.session.stats
    # Steps without us are steps all the same; one that cannot say whether it rests does not.
    assert (stats.steps, stats.rows, stats.restarted) == (7, 7, 0)
    host.step()
    assert (stats.steps, adapter.faults) == (8, 0)


def test_an_aborted_request_frees_its_state_and_its_id(make: Any) -> None:
    host, adapter = make()
    host.add("a", PROMPT)
    for _ in range(3):
        host.step()
    host.end("a")
    host.add("a", [500, 501, 502])
    host.step()
    check_texts(host)
    recorder = adapter.session.proposer
    assert recorder.kept == [True]
    assert [r.prompt_length for r in recorder.started] == [len(PROMPT), 3]
    host.end("a")
    host.step()
    assert adapter.session.live == 0


def test_an_id_used_again_without_an_end_is_a_new_request(make: Any) -> None:
    host, adapter = make()
    host.add("a", PROMPT)
    host.step()
    host.add("a", [*PROMPT, 400, *PROMPT])
    host.step()
    check_texts(host)
    assert [r.prompt_length for r in adapter.session.proposer.started] == [12, 25]


def test_the_engines_own_dynamic_length_is_respected(make: Any) -> None:
    host, adapter = make(max_draft=6)
    host.add("a", PROMPT)
    assert [len(host.step(planned=k)[0]) for k in (6, 3, 0, 2)] == [6, 3, 0, 2]
    assert host.step(planned=None) != [[]]
    assert adapter.session.stats.drafted == 6 + 3 + 0 + 2 + 6
    check_texts(host)


def test_near_the_context_end_only_that_request_is_cut(make: Any) -> None:
    host, _ = make(max_length=64, max_draft=8)
    host.add("old", plain_continuation(periodic_target, PROMPT, 60))
    host.add("young", PROMPT)
    old, young = host.step()
    assert len(old) == 64 - 61 - 1
    assert len(young) > len(old)
    assert host.runner.effective_drafter_max_model_len >= 64 + 8, (
        "vLLM would still skip drafting for the whole batch"
    )
    for _ in range(3):
        host.step()
    assert len(host.running["old"].tokens) == 64
    check_texts(host)


def test_stop_ids_and_limits_reach_the_request(make: Any) -> None:
    host, adapter = make()
    host.add(
        "a",
        PROMPT,
        stop_token_ids=[13],
        eos_token_id=2,
        max_tokens=40,
        temperature=0.7,
        extra_args={"specplug": {"draft_limit": 2, "namespace": "tenant"}},
    )
    host.step()
    request = adapter.session.proposer.started[0]
    assert request.stop_token_ids == {2, 13}
    assert request.max_output == 40
    assert request.temperature == 0.7
    assert request.draft_limit == 2
    assert request.namespace == "namespace=tenant"
    assert all(len(draft) <= 2 for _ in range(4) for draft in host.step())


def test_requests_of_different_salts_are_kept_apart(make: Any) -> None:
    host, adapter = make()
    host.add("a", PROMPT, attached={"specplug_cache_salt": "s1"})
    host.add("b", PROMPT)
    host.step()
    first, second = (r.namespace for r in adapter.session.proposer.started)
    assert first.startswith("salt=")
    assert second == ""
    host.end("a")
    host.step()
    assert adapter._salts == {}


def test_a_salted_request_that_met_a_fault_does_not_join_those_without_a_salt(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, adapter = make()
    host.add("a", PROMPT, attached={"specplug_cache_salt": "s1"})
    host.step()

    def broken(*_: Any) -> Any:
        raise RuntimeError("half observed")

    with monkeypatch.context() as patch:
        patch.setattr(adapter.session, "step", broken)
        host.step()
    host.step()
    first, again = (r.namespace for r in adapter.session.proposer.started)
    assert first == again
    assert first.startswith("salt=")
    host.end("a")
    host.step()
    assert adapter._salts == {}


def test_image_placeholders_are_separators(make: Any) -> None:
    from types import SimpleNamespace

    placeholder = 999
    prompt = [10, 11, *[placeholder] * 6, 12, 10, 11]
    features = [SimpleNamespace(mm_position=SimpleNamespace(offset=2, length=6))]
    host, adapter = make()
    host.add("a", prompt, mm_features=features)
    drafts = [host.step()[0] for _ in range(5)]
    seen = adapter.session.proposer.histories[0]
    assert seen[2:8] == [SEPARATOR] * 6
    assert seen[:2] == [10, 11]
    assert seen[8:] == host.running["a"].tokens[8:]
    assert all(placeholder not in draft for draft in drafts)


def test_prompts_without_token_ids_get_no_drafts(make: Any) -> None:
    host, adapter = make()
    host.add("a", PROMPT, prompt_embeds=object())
    host.add("b", PROMPT)
    drafts = host.step()
    assert drafts[0] == []
    assert drafts[1]
    host.end("a")
    host.step()
    assert adapter._withheld == set()


def test_a_proposer_that_raises_costs_drafts_only(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    host, adapter = make()
    host.add("a", PROMPT)
    host.step()
    adapter.session.proposer.fail_in = "propose"
    with caplog.at_level(logging.ERROR):
        later = [host.step() for _ in range(5)]
    check_texts(host)
    assert later == [[[]]] * 5
    assert adapter.session.stats.faults == 1
    records = [r for r in caplog.records if "failed" in r.message]
    assert len(records) == 1
    assert "the proposer is broken" in str(records[0].exc_info)


def test_a_fault_of_the_adapter_costs_a_step_and_the_shared_text(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    host, adapter = make()
    host.add("a", PROMPT)
    host.step()
    healthy, host.runner.input_batch = host.runner.input_batch, None
    with caplog.at_level(logging.ERROR):
        assert adapter.propose([[1]], healthy.num_tokens_no_spec, healthy.token_ids_cpu) == [[]]
    host.runner.input_batch = healthy
    assert adapter.faults == 1
    assert "answers are not affected" in caplog.text
    for _ in range(4):
        host.step()
    assert host.accepted > 0
    check_texts(host)


def test_a_request_that_met_a_fault_is_not_kept_for_others(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, adapter = make()
    host.add("a", PROMPT)
    host.step()

    def broken(*_: Any) -> Any:
        raise RuntimeError("half observed")

    with monkeypatch.context() as patch:
        patch.setattr(adapter.session, "step", broken)
        assert host.step() == [[]]
    assert adapter.session.proposer.kept == [False]
    host.step()
    check_texts(host)


def test_many_faults_end_drafting_for_good(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    host, adapter = make()
    with caplog.at_level(logging.ERROR):
        for _ in range(MAX_FAULTS + 3):
            adapter.after_update(host.runner, None)
    host.add("a", PROMPT)
    assert host.step() == [[]]
    assert sum(r.exc_info is not None for r in caplog.records) == 1
    assert caplog.text.count("nothing is drafted any more") == 1


def test_other_tensor_parallel_ranks_do_not_draft(make: Any) -> None:
    host, adapter = make(tensor_parallel_rank=1)
    host.add("a", PROMPT)
    assert host.step() == [[]]
    assert adapter.session is None
    assert adapter not in active()
    assert adapter.snapshot()["session"] is None


def test_nothing_is_drafted_before_a_runner_is_known(make: Any) -> None:
    _, adapter = make()
    assert adapter.propose([[1], [2]], np.array([1, 1]), np.zeros((2, 8), np.int32)) == [[], []]


def test_later_versions_may_pass_more_or_less(make: Any) -> None:
    host, adapter = make()
    host.add("a", PROMPT)
    host.step()
    entry = host.running["a"]
    entry.draft = []
    host._sample(entry)
    host._fill_batch()
    fewer = adapter.propose([[entry.tokens[-1]]], unknown_argument=1)
    batch = host.runner.input_batch
    more = adapter.propose([[1]], batch.num_tokens_no_spec, batch.token_ids_cpu, None, extra=2)
    assert fewer == more != [[]]


def test_counters_can_be_read(make: Any) -> None:
    host, adapter = make()
    assert adapter.snapshot()["host_time"] == {"steps": 0, "median_us": None, "p99_us": None}
    host.add("a", PROMPT)
    for _ in range(3):
        host.step()
    found = adapter.snapshot()
    assert found["method"] == "specplug.specplug_test_recorder:Recorder"
    assert found["session"]["drafted"] > 0
    assert found["host_time"]["steps"] == 3
    assert 0 < found["host_time"]["median_us"] <= found["host_time"]["p99_us"]
