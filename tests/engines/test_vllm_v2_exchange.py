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
        all_token_ids=SimpleNamespace(gpu=tokens), total_len=SimpleNamespace(gpu=lengths)
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
            assert out[i].tolist() == drafts[i] + [PADDING] * (WIDTH - len(drafts[i]))
        assert out.dtype == torch.int64
        assert exchange.take() == (ids, drafts)
        assert exchange.take() is None


def test_what_vllm_writes_behind_a_shorter_draft_does_not_stay() -> None:
    recorder = Recorder()
    exchange = Exchange(recorder, REQUESTS, WIDTH, "cpu", states(np.random.default_rng(3)))  # type: ignore[arg-type]
    recorder.answer = [[5, 6, 7, 8]]
    exchange.step(batch([2]), torch.ones(1, dtype=torch.int32), WIDTH)[:, 2:] = -1
    recorder.answer = [[9]]
    assert exchange.step(batch([2]), torch.ones(1, dtype=torch.int32), WIDTH).tolist() == [
        [9, 0, 0, 0]
    ]
    assert exchange.empty(3).tolist() == [[PADDING] * WIDTH] * 3


def test_drafts_that_nobody_took_are_void_with_the_next_step() -> None:
    recorder = Recorder()
    exchange = Exchange(recorder, REQUESTS, WIDTH, "cpu", states(np.random.default_rng(3)))  # type: ignore[arg-type]
    recorder.answer = [[5]]
    exchange.step(batch([2]), torch.ones(1, dtype=torch.int32), WIDTH)
    exchange.after_update(None, None)
    assert exchange.take() is None


def test_a_device_that_cannot_be_read_costs_the_drafts_of_the_step() -> None:
    recorder = Recorder()
    exchange = Exchange(recorder, REQUESTS, WIDTH, "cpu", SimpleNamespace())  # type: ignore[arg-type]
    out = exchange.step(batch([1, 4]), torch.ones(2, dtype=torch.int32), WIDTH)
    assert out.tolist() == [[PADDING] * WIDTH] * 2
    assert exchange.take() == (["r1", "r4"], [[], []])
    assert recorder.failures == [("fetch", ["r1", "r4"])]


def test_counting_a_step_waits_for_the_copy_that_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count stood in the stream's place, so that on a GPU the host read what had not arrived yet."""
    root = Path(__file__).resolve().parents[2]
    for folder in ("examples", "benchmarks"):
        monkeypatch.syspath_prepend(str(root / folder))
    import _v2_step

    pending: list[Any] = []

    class Late(_v2_step.TimedExchange):
        """Copies arrive when the stream is waited for."""

        def _fetch(self, index: Any, num_sampled: Any) -> Any:
            seen = super()._fetch(index, num_sampled)
            arrived, seen[:] = seen.copy(), 0
            pending.append(lambda: seen.__setitem__(slice(None), arrived))
            torch.accelerator.current_stream().synchronize()
            return seen

    stream = SimpleNamespace(synchronize=lambda: [pending.pop()() for _ in range(len(pending))])
    monkeypatch.setattr(_v2_step, "TimedExchange", Late)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda: stream)
    one = _v2_step.Batch(2, 100, 4, "cpu", seed=7)
    # As on a GPU, but for where the tensors are.
    one.exchange._away = True
    for _ in range(3):
        one.step()
    found = one.counted()
    assert found["synchronisations"] == 2, "the adapter's, and that of the copy made late here"
    assert not pending
    assert one.proposer.faults == one.proposer.histories.reread == 0


def test_once_nothing_is_drafted_any_more_nothing_is_copied() -> None:
    """It used to copy every step, and wait for it, for a proposer that had given up."""
    recorder = Recorder()
    state = states(np.random.default_rng(3))
    exchange = Exchange(recorder, REQUESTS, WIDTH, "cpu", state)  # type: ignore[arg-type]
    recorder.answer = [[5, 6]]
    exchange.step(batch([2]), torch.ones(1, dtype=torch.int32), WIDTH)
    recorder.stopped = True
    # Whatever is read of these fails.
    exchange._states = SimpleNamespace()
    out = exchange.step(batch([2, 3]), torch.ones(2, dtype=torch.int32), WIDTH)
    assert out.tolist() == [[PADDING] * WIDTH] * 2
    assert exchange.take() == (["r2", "r3"], [[], []])
    assert recorder.shown == 1
    assert not recorder.failures
