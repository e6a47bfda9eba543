"""What goes between V2's tensors and our proposer; needs torch, but no engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specplug.adapters.vllm_v2.speculator import PADDING, Exchange

WIDTH, REQUESTS, LENGTH = 4, 8, 64


class Recorder:
    """In place of the proposer: remembers what it was shown, drafts what it is told."""

    stopped = False

    def __init__(self) -> None:
        self.shown = 0
        self.answer: list[list[int]] = []
        self.seen: Any = None
        self.failures: list[tuple[str, list[str]]] = []

    def after_update(self, runner: Any, scheduler_output: Any) -> None:
        pass

    def failed(self, where: str, request_ids: list[str]) -> None:
        self.failures.append((where, request_ids))

    def drafts(self, ids: Any, lengths: Any, sampled: Any, tails: Any, read: Any, most: int) -> Any:
        self.shown += 1
        self.seen = (
            ids,
            *(np.array(each) for each in (lengths, sampled, tails)),
            [read(row) for row in range(len(ids))],
        )
        return self.answer


def states(rng: np.random.Generator) -> Any:
    tokens = torch.from_numpy(rng.integers(0, 1000, (REQUESTS, LENGTH)).astype(np.int32))
    lengths = torch.from_numpy(rng.integers(1, LENGTH + 1, REQUESTS).astype(np.int32))
    return SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=tokens),
        total_len=SimpleNamespace(gpu=lengths),
        draft_tokens=torch.full((REQUESTS, WIDTH), -1, dtype=torch.int64),
    )


def batch(rows: list[int]) -> Any:
    return SimpleNamespace(
        num_reqs=len(rows),
        req_ids=[f"r{row}" for row in rows],
        idx_mapping=torch.tensor(rows, dtype=torch.int32),
    )


def test_the_proposer_sees_what_the_device_has_and_its_drafts_come_back_padded() -> None:
    rng = np.random.default_rng(11)
    recorder = Recorder()
    for _ in range(200):
        state = states(rng)
        exchange = Exchange(recorder, REQUESTS, WIDTH, "cpu", state)  # type: ignore[arg-type]
        rows = rng.permutation(REQUESTS)[: rng.integers(1, REQUESTS + 1)].tolist()
        drafts = [rng.integers(1, 1000, rng.integers(0, WIDTH + 1)).tolist() for _ in rows]
        recorder.answer = drafts
        sampled = torch.from_numpy(rng.integers(0, WIDTH + 2, len(rows)).astype(np.int32))
        out = exchange.step(batch(rows), sampled, WIDTH)
        assert out.tolist() == [[PADDING] * WIDTH] * len(rows)
        assert out.dtype == torch.int64
        # As the runner does with what it is given, before the scheduler takes drafts.
        state.draft_tokens[rows] = out
        assert exchange.take() == ([f"r{row}" for row in rows], drafts)
        assert exchange.take() is None
        ids, lengths, counts, tails, read = recorder.seen
        assert ids == [f"r{row}" for row in rows]
        assert counts.tolist() == sampled.tolist()
        for i, row in enumerate(rows):
            length = int(state.total_len.gpu[row])
            every = state.all_token_ids.gpu[row, :length].numpy()
            assert lengths[i] == length
            assert np.array_equal(read[i], every)
            last = every[-WIDTH - 1 :]
            assert np.array_equal(tails[i][-len(last) :], last)
            stored = state.draft_tokens[row].tolist()
            assert stored == drafts[i] + [PADDING] * (WIDTH - len(drafts[i]))
        others = [row for row in range(REQUESTS) if row not in rows]
        assert (state.draft_tokens[others] == -1).all(), "a row of somebody else"


def test_what_vllm_writes_behind_a_shorter_draft_does_not_stay() -> None:
    recorder = Recorder()
    state = states(np.random.default_rng(3))
    exchange = Exchange(recorder, REQUESTS, WIDTH, "cpu", state)  # type: ignore[arg-type]
    for answer in ([5, 6, 7, 8], [9]):
        recorder.answer = [answer]
        out = exchange.step(batch([2]), torch.ones(1, dtype=torch.int32), WIDTH)
        assert out.tolist() == [[PADDING] * WIDTH]
        out[:, 2:] = -1
        state.draft_tokens[[2]] = out
        exchange.take()
    assert state.draft_tokens[2].tolist() == [9, 0, 0, 0]
    assert exchange.empty(3).tolist() == [[PADDING] * WIDTH] * 3


def test_the_copy_begins_with_the_step_and_is_waited_for_where_drafts_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The runner's own work on the step, and the engine's on its tokens, lie between the two."""
    order: list[str] = []
    buffers: list[Any] = []
    event = SimpleNamespace(
        record=lambda: order.append("record"), synchronize=lambda: order.append("wait")
    )
    copy = torch.Tensor.copy_

    def copied(to: Any, source: Any, non_blocking: bool = False) -> Any:
        assert non_blocking
        order.append("to host" if to.data_ptr() == buffers[0].data_ptr() else "to device")
        return copy(to, source, non_blocking=non_blocking)

    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    recorder = Recorder()
    exchange = Exchange(recorder, REQUESTS, WIDTH, "cpu", states(np.random.default_rng(3)))  # type: ignore[arg-type]
    exchange._copied = event  # type: ignore[assignment]
    buffers.append(exchange._host_in)
    recorder.answer = [[5, 6], []]
    with torch.inference_mode():
        exchange.step(batch([2, 3]), torch.ones(2, dtype=torch.int32), WIDTH)
    assert (order, recorder.shown) == (["to host", "record"], 0)
    assert exchange.take() == (["r2", "r3"], [[5, 6], []])
    assert order == ["to host", "record", "wait", "to device"]
    recorder.answer = [[], []]
    exchange.step(batch([2, 3]), torch.ones(2, dtype=torch.int32), WIDTH)
    exchange.take()
    assert order[4:] == ["to host", "record", "wait"], "nothing goes back where there is no draft"


def test_drafts_that_cannot_be_sent_back_are_not_given_to_the_scheduler() -> None:
    """It would verify the padding that stands on the device in their place."""
    recorder = Recorder()
    state = states(np.random.default_rng(3))
    exchange = Exchange(recorder, REQUESTS, WIDTH, "cpu", state)  # type: ignore[arg-type]
    recorder.answer = [[5], [6, 7]]
    exchange.step(batch([1, 4]), torch.ones(2, dtype=torch.int32), WIDTH)
    del state.draft_tokens
    assert exchange.take() == (["r1", "r4"], [[], []])
    assert recorder.failures == [("take", ["r1", "r4"])]


def test_drafts_that_nobody_took_are_void_with_the_next_step() -> None:
    recorder = Recorder()
    exchange = Exchange(recorder, REQUESTS, WIDTH, "cpu", states(np.random.default_rng(3)))  # type: ignore[arg-type]
    recorder.answer = [[5]]
    exchange.step(batch([2]), torch.ones(1, dtype=torch.int32), WIDTH)
    exchange.after_update(None, None)
    assert exchange.take() is None
    assert recorder.shown == 0


def test_a_device_that_cannot_be_read_costs_the_drafts_of_the_step() -> None:
    recorder = Recorder()
    exchange = Exchange(recorder, REQUESTS, WIDTH, "cpu", SimpleNamespace())  # type: ignore[arg-type]
    out = exchange.step(batch([1, 4]), torch.ones(2, dtype=torch.int32), WIDTH)
    assert out.tolist() == [[PADDING] * WIDTH] * 2
    assert exchange.take() == (["r1", "r4"], [[], []])
    assert recorder.failures == [("fetch", ["r1", "r4"])]


def test_counting_a_step_waits_for_the_copy_that_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count stood in the place of what is waited for, so that on a GPU the host read what had not arrived yet."""
    root = Path(__file__).resolve().parents[2]
    for folder in ("examples", "benchmarks"):
        monkeypatch.syspath_prepend(str(root / folder))
    import _v2_step

    found = _v2_step.Batch(2, 100, 4, "cpu", seed=7).counted()
    # As docs/vllm.md has it.
    assert (found["copies"], found["launches"], found["synchronisations"]) == (2, 10, 1)
    pending: list[Any] = []

    class Late(_v2_step.TimedExchange):
        """Copies arrive when the event is waited for."""

        def _fetch(self, index: Any, num_sampled: Any) -> Any:
            seen = super()._fetch(index, num_sampled)
            arrived = seen.clone()
            seen.zero_()
            pending.append(lambda: seen.copy_(arrived))
            return seen

    event = SimpleNamespace(
        record=lambda: None,
        synchronize=lambda: [pending.pop()() for _ in range(len(pending))],
    )
    monkeypatch.setattr(_v2_step, "TimedExchange", Late)
    one = _v2_step.Batch(2, 100, 4, "cpu", seed=7)
    one.exchange._copied = event  # type: ignore[assignment]
    for _ in range(3):
        one.step()
    found = one.counted()
    assert found["synchronisations"] == 1
    assert not pending
    assert one.proposer.faults == one.proposer.histories.reread == 0


def test_once_nothing_is_drafted_any_more_nothing_is_copied() -> None:
    """It used to copy every step, and wait for it, for a proposer that had given up."""
    recorder = Recorder()
    state = states(np.random.default_rng(3))
    exchange = Exchange(recorder, REQUESTS, WIDTH, "cpu", state)  # type: ignore[arg-type]
    recorder.answer = [[5, 6]]
    exchange.step(batch([2]), torch.ones(1, dtype=torch.int32), WIDTH)
    assert exchange.take() == (["r2"], [[5, 6]])
    recorder.stopped = True
    # Whatever is read of these fails.
    exchange._states = SimpleNamespace()
    out = exchange.step(batch([2, 3]), torch.ones(2, dtype=torch.int32), WIDTH)
    assert out.tolist() == [[PADDING] * WIDTH] * 2
    assert exchange.take() == (["r2", "r3"], [[], []])
    assert recorder.shown == 1
    assert not recorder.failures
