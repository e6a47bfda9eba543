"""Drafts for SGLang's batches: requests come, grow, leave, come back, and share ids."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from specplug.adapters.common.trees import first_branch
from specplug.adapters.sglang_srt.drafting import MAX_FAULTS, Drafter
from specplug.adapters.sglang_srt.requests import History

from .conftest import VOCABULARY, Bench, make_req

LOOP = [5, 6, 7, 8] * 3


def test_a_repeated_prompt_is_continued(bench: Bench) -> None:
    req = make_req("a", LOOP)
    req.output_ids.append(5)
    (draft,) = bench.step(req)
    assert draft == [6, 7, 8]
    assert bench.proposer.started[0].prompt_length == len(LOOP)


def test_rows_of_different_kind_share_a_batch(bench: Bench) -> None:
    rows = [make_req("a", LOOP), make_req("b", list(range(20, 40)))]
    for req in rows:
        req.output_ids.append(req.origin_input_ids[0])
    drafts = bench.step(*rows)
    assert drafts == [[6, 7, 8], [21, 22, 23, 24]]


def test_tokens_that_are_a_step_late_are_spliced_in(bench: Bench) -> None:
    req = make_req("a", LOOP)
    (draft,) = bench.step(req, extras=[[5]])  # the output is still empty
    assert draft == [6, 7, 8]
    req.output_ids.append(5)
    (draft,) = bench.step(req, extras=[[6, 7]])
    assert draft == [8, 5, 6]
    assert bench.drafter.session is not None
    assert bench.drafter.session.stats.restarted == 0


def test_unsound_rows_get_no_draft(bench: Bench) -> None:
    req = make_req("a", LOOP)
    histories = bench.drafter.histories([req], [[5]])
    assert bench.drafter.draft([req], histories, [False]).lengths.tolist() == [0]


def test_a_custom_logits_processor_withholds_drafts(bench: Bench) -> None:
    req = make_req("a", LOOP, custom_logit_processor="{}")
    assert bench.step(req, extras=[[5]]) == [[]]
    assert bench.drafter.withheld == 1


def test_embeddings_withhold_drafts(bench: Bench) -> None:
    assert bench.step(make_req("a", LOOP, input_embeds=[[0.1]]), extras=[[5]]) == [[]]


def test_an_aborted_request_serves_others_and_a_retracted_one_does_not(bench: Bench) -> None:
    aborted, retracted = make_req("a", LOOP), make_req("b", LOOP)
    last = make_req("c", LOOP)
    bench.step(aborted, retracted, last, extras=[[5]] * 3)
    retracted.is_retracted = True
    bench.step(last, extras=[[5, 6]])
    assert sorted(bench.proposer.kept) == [False, True]


def test_a_retracted_request_comes_back_with_its_output(bench: Bench) -> None:
    req, other = make_req("a", LOOP), make_req("b", LOOP)
    req.output_ids.extend([5, 6])
    bench.step(req, other, extras=[[], [5]])
    bench.step(other, extras=[[5, 6]])
    req.output_ids.append(7)
    (draft, _) = bench.step(req, other, extras=[[], [5, 6, 7]])
    assert draft == [8, 5, 6]
    assert bench.proposer.started[-1].prompt_length == len(LOOP)


def test_an_id_used_again_is_another_request(bench: Bench) -> None:
    bench.step(make_req("a", LOOP), extras=[[5]])
    second = make_req("a", [*range(100, 112), 100])
    (draft,) = bench.step(second, extras=[[101]])
    assert draft == [102, 103, 104, 105]
    assert len(bench.proposer.started) == 2


def test_the_end_of_a_request_keeps_its_text(bench: Bench) -> None:
    bench.step(make_req("a", LOOP), extras=[[5]])
    bench.drafter.finished("a")
    bench.drafter.finished("never seen")
    assert bench.proposer.kept == [True]


def test_what_the_last_step_said_is_kept_too(bench: Bench) -> None:
    """SGLang says that a request ended after its last tokens were appended, and asks for no drafts with them."""
    req = make_req("a", LOOP)
    bench.step(req, extras=[[5]])
    req.output_ids.extend([5, 6, 7, 2])
    before = bench.proposer.histories[0]
    bench.drafter.finished("a")
    assert before[-4:] == [5, 6, 7, 2]
    assert bench.proposer.kept == [True]


def test_flushing_the_cache_forgets_everything(bench: Bench) -> None:
    req = make_req("a", LOOP)
    bench.step(req, extras=[[5]])
    bench.drafter.flush()
    assert len(bench.proposers) == 2
    assert bench.proposers[0].kept == [False]
    assert bench.step(req, extras=[[5]]) == [[6, 7, 8]]


def test_a_fault_of_the_adapter_costs_drafts_only(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = bench.drafter.session
    assert session is not None

    def broken(*arguments: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(session, "step", broken)
    req = make_req("a", LOOP)
    with caplog.at_level(logging.ERROR, logger="specplug"):
        for _ in range(MAX_FAULTS + 2):
            assert bench.step(req, extras=[[5]]) == [[]]
    assert bench.drafter.faults == MAX_FAULTS
    assert len(caplog.records) == 2, "the first failure and the last, no more"


def test_a_history_survives_a_fault_of_its_bookkeeping(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(bench.drafter, "_leave", broken)
    (history,) = bench.drafter.histories([make_req("a", [1, 2])], [[3]])
    assert history.tolist() == [1, 2, 3]


def test_a_rank_that_does_not_draft_still_knows_the_tokens() -> None:
    drafter = Drafter(None, VOCABULARY, 4, False, logging.getLogger("specplug"))
    req = make_req("a", LOOP)
    histories = drafter.histories([req], [[5]])
    assert histories[0].tolist() == [*LOOP, 5]
    assert drafter.draft([req], histories, [True]).lengths.tolist() == [0]
    drafter.histories([make_req("b", LOOP)], [[5]])
    drafter.flush()


def test_placeholders_of_images_are_separators() -> None:
    history = History(make_req("a", [1, 1_000_000 + 2**29, 3]), VOCABULARY)
    assert history.follow([2**40]).tolist() == [1, -1, 3, -1]


def test_a_long_output_is_followed_in_small_steps() -> None:
    req = make_req("a", [1, 2, 3])
    history = History(req, VOCABULARY)
    expected = [1, 2, 3]
    for token in range(700):
        req.output_ids.append(token)
        expected.append(token)
        assert history.follow([9])[:-1].tolist() == expected
    assert history.follow([]).tolist() == expected


def test_only_the_first_branch_is_taken_without_a_tree_mask() -> None:
    parents = np.array([-1, -1, 0, 1, 2, 2], np.int32)
    assert first_branch(parents).tolist() == [0, 2, 4]
    assert first_branch(parents[:0]).tolist() == []
