"""The V2 runner's habits on a stand-in: requests that come back as new ones, rows used again, tokens on the device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specplug.adapters import vllm_v2
from specplug.adapters.vllm_v1.options import Choice, translate
from specplug.adapters.vllm_v1.proposer import MAX_FAULTS
from specplug.adapters.vllm_v2 import door, requirements
from specplug.adapters.vllm_v2.door import Held, bind_runner, choice_of
from specplug.adapters.vllm_v2.histories import Histories
from specplug.adapters.vllm_v2.proposer import V2Proposer
from specplug.errors import HostMismatchError
from specplug.testing.stub_host import (
    DefaultParams,
    configuration,
    periodic_target,
    plain_continuation,
    stub_modules,
    stub_vllm,
)
from specplug.types import SEPARATOR, TOKEN_DTYPE, TokenArray

PROMPT = [10 + n % 7 for n in range(12)]
GOOD = {"method": "specplug.null", "num_speculative_tokens": 4}
WIDTH = 4


class GPUModelRunner:
    """What is touched of V2's class of this name: it verifies drafts greedily, and keeps tokens by row."""

    def __init__(self, proposer: V2Proposer, requests: int = 4) -> None:
        self.proposer = proposer
        self.free = list(range(requests))
        self.rows: dict[str, int] = {}
        self.tokens: dict[int, list[int]] = {}
        self.drafts: dict[str, list[int]] = {}
        self.accepted = 0
        self.most = WIDTH
        self.features: list[Any] = []

    def step(
        self,
        new: Sequence[tuple[str, list[int], int]] = (),
        finished: Sequence[str] = (),
        preempted: Sequence[str] = (),
        prefill: Sequence[str] = (),
        **params: Any,
    ) -> dict[str, list[int]]:
        """One step; ``new`` holds id, all tokens, and how many of them are the prompt."""
        for request_id in (*finished, *preempted):
            self.free.append(self.rows.pop(request_id))
            self.drafts.pop(request_id, None)
        for request_id, tokens, _ in new:
            self.rows[request_id] = self.free.pop()
            self.tokens[self.rows[request_id]] = list(tokens)
        self.proposer.after_update(self, self._output(new, finished, preempted, params))
        ids = list(self.rows)
        sampled = [0 if r in prefill else self._verify(r) for r in ids]
        every = [self.tokens[self.rows[r]] for r in ids]
        tails = np.array([([0] * WIDTH + t)[-WIDTH - 1 :] for t in every], np.int32)
        lengths = np.array([len(t) for t in every], np.int32)
        drafts = self.proposer.drafts(
            ids,
            lengths,
            np.array(sampled, np.int32),
            tails,
            lambda row: _array(every[row]),
            self.most,
        )
        self.drafts = dict(zip(ids, drafts, strict=True))
        return self.drafts

    def _output(self, new: Any, finished: Any, preempted: Any, params: Any) -> Any:
        return SimpleNamespace(
            finished_req_ids=set(finished),
            preempted_req_ids=set(preempted),
            scheduled_new_reqs=[
                SimpleNamespace(
                    req_id=r,
                    prompt_len=prompt,
                    prefill_token_ids=tokens,
                    sampling_params=DefaultParams(**params),
                    mm_features=self.features,
                )
                for r, tokens, prompt in new
            ],
            num_scheduled_tokens=dict.fromkeys(self.rows, 1),
            scheduled_spec_decode_tokens={r: d for r, d in self.drafts.items() if d},
        )

    def _verify(self, request_id: str) -> int:
        tokens = self.tokens[self.rows[request_id]]
        before = len(tokens)
        for guess in [*self.drafts.get(request_id, []), None]:
            tokens.append(periodic_target(_array(tokens)))
            if tokens[-1] != guess:
                break
        self.accepted += len(tokens) - before - 1
        return len(tokens) - before


def _array(tokens: Sequence[int]) -> TokenArray:
    return np.array(tokens, TOKEN_DTYPE)


class _Bare:
    """A runner class to be wrapped."""

    speculator: Any = None

    def update_requests(self, scheduler_output: Any) -> None:
        pass

    def take_draft_token_ids(self) -> str:
        return "vLLM's own"


@pytest.fixture
def runner() -> GPUModelRunner:
    """A runner with our proposer, which copies from the history."""
    config = configuration(max_draft=WIDTH, max_requests=4)
    with stub_vllm(), stub_modules({door.RUNNER: {"GPUModelRunner": _Bare}}):
        proposer = V2Proposer(config, Choice("specplug.testing.toys:CopyProposer", {}, None))
    return GPUModelRunner(proposer)


def check_text(runner: GPUModelRunner, request_id: str, prompt: list[int]) -> None:
    tokens = runner.tokens[runner.rows[request_id]]
    assert tokens == plain_continuation(periodic_target, prompt, len(tokens))


def test_drafts_are_accepted_and_the_text_is_the_plain_one(runner: GPUModelRunner) -> None:
    runner.step(new=[(name, PROMPT, len(PROMPT)) for name in ("a", "b")])
    for _ in range(12):
        runner.step()
    for name in ("a", "b"):
        check_text(runner, name, PROMPT)
    session = runner.proposer.session
    assert session is not None
    assert session.stats.accepted == runner.accepted > 30
    assert runner.proposer.snapshot()["histories_reread"] == runner.proposer.faults == 0


def test_rows_in_prefill_get_no_draft(runner: GPUModelRunner) -> None:
    assert runner.step(new=[("a", PROMPT, len(PROMPT))], prefill=["a"]) == {"a": []}
    assert runner.step(prefill=["a"]) == {"a": []}
    assert runner.step()["a"]


def test_a_preempted_request_comes_back_in_another_row_as_itself(runner: GPUModelRunner) -> None:
    runner.step(new=[("a", PROMPT, len(PROMPT)), ("b", PROMPT, len(PROMPT))])
    runner.step()
    tokens = list(runner.tokens[runner.rows["a"]])
    runner.step(preempted=["a"])
    # Its row goes to somebody else meanwhile.
    runner.step(new=[("c", PROMPT[:5], 5)])
    runner.step(new=[("a", tokens, len(PROMPT))])
    for _ in range(6):
        runner.step()
    check_text(runner, "a", PROMPT)
    session = runner.proposer.session
    assert session is not None
    assert (session.stats.started, session.stats.finished, session.stats.restarted) == (3, 0, 0)
    assert runner.proposer.histories.reread == 0


def test_an_id_used_again_in_the_same_step_is_a_new_request(runner: GPUModelRunner) -> None:
    runner.step(new=[("a", PROMPT, len(PROMPT))])
    runner.step()
    other = [500, 501, 502, 500, 501]
    runner.step(new=[("a", other, len(other))], finished=["a"])
    session = runner.proposer.session
    assert session is not None
    assert (session.stats.started, session.stats.finished, session.live) == (2, 1, 1)
    check_text(runner, "a", other)


def test_an_aborted_request_is_forgotten_preempted_or_not(runner: GPUModelRunner) -> None:
    runner.step(new=[(name, PROMPT, len(PROMPT)) for name in ("a", "b")])
    runner.step(finished=["a"])
    runner.step(preempted=["b"])
    runner.proposer.after_update(runner, runner._output([], ["b"], [], {}))
    session = runner.proposer.session
    assert session is not None
    assert session.live == len(runner.proposer.histories) == 0
    assert runner.proposer.runner.requests == {}


def test_requests_that_warm_up_kernels_are_nobodys_text(runner: GPUModelRunner) -> None:
    runner.step(new=[("_v2_mixed_warmup_decode_", PROMPT, len(PROMPT))])
    assert runner.step() == {"_v2_mixed_warmup_decode_": []}
    session = runner.proposer.session
    assert session is not None
    assert session.stats.started == 0


def test_steps_that_warm_up_kernels_teach_the_controller_nothing(
    runner: GPUModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(runner.proposer._cap.inner, "timed", told.append, raising=False)
    runner.step(new=[("_warmup_0_", PROMPT, len(PROMPT))])
    for _ in range(4):
        runner.step()
    assert not told
    runner.step(finished=["_warmup_0_"], new=[("a", PROMPT, len(PROMPT))])
    for _ in range(4):
        runner.step()
    assert told


def test_no_draft_is_longer_than_this_step_has_room_for(runner: GPUModelRunner) -> None:
    """vLLM writes -1 behind it, which must not be verified."""
    runner.step(new=[("a", PROMPT, len(PROMPT))])
    assert len(runner.step()["a"]) > 1
    runner.most = 1
    assert len(runner.step()["a"]) == 1
    runner.most = 0
    assert runner.step()["a"] == []


def test_a_broken_step_decodes_plainly_and_the_next_one_drafts(runner: GPUModelRunner) -> None:
    runner.step(new=[("a", PROMPT, len(PROMPT))])
    whole, runner.proposer.histories = runner.proposer.histories, None  # type: ignore[assignment]
    assert runner.step() == {"a": []}
    runner.proposer.histories = whole
    # What that step added was missed, so the history is read from the device.
    assert runner.step()["a"]
    assert (runner.proposer.faults, whole.reread) == (1, 1)
    check_text(runner, "a", PROMPT)


def test_after_too_many_faults_nothing_is_kept_any_more(runner: GPUModelRunner) -> None:
    runner.step(new=[("a", PROMPT, len(PROMPT))])
    for _ in range(MAX_FAULTS):
        runner.proposer.failed("test", ())
    assert runner.proposer.stopped
    assert runner.step(new=[("b", PROMPT, len(PROMPT))]) == {"a": [], "b": []}
    assert len(runner.proposer.histories) == 0


def test_placeholders_of_images_are_neither_matched_nor_drafted(runner: GPUModelRunner) -> None:
    image = 77
    prompt = [*PROMPT, *[image] * 6, *PROMPT]
    feature = SimpleNamespace(mm_position=SimpleNamespace(offset=len(PROMPT), length=6))
    seen: list[TokenArray] = []
    session = runner.proposer.session
    assert session is not None
    begin = session.begin
    session.begin = lambda request, history: (seen.append(history.copy()), begin(request, history))[
        1
    ]  # type: ignore[method-assign]
    runner.features = [feature]
    runner.step(new=[("a", prompt, len(prompt))])
    assert len(seen) == 1
    assert image not in seen[0]
    assert (seen[0] == SEPARATOR).sum() == 6
    for _ in range(4):
        assert image not in runner.step()["a"]


def test_histories_follow_and_notice_what_does_not_fit() -> None:
    histories = Histories()
    rng = np.random.default_rng(7)
    every = rng.integers(0, 1000, 900).astype(TOKEN_DTYPE)
    histories.begin("a", every[:3].tolist())
    known = 3

    def fail() -> TokenArray:
        raise AssertionError("read although everything was known")

    while known < 890:
        sampled = int(rng.integers(0, 6))
        known += sampled
        got = histories.follow("a", known, sampled, every[max(0, known - 6) : known], fail)
        assert np.array_equal(got, every[:known])
    assert np.array_equal(
        histories.follow("a", 100, 1, every[99:100], lambda: every[:100]), every[:100]
    )
    assert histories.reread == 1


def test_the_wrappers_pass_on_what_is_not_ours() -> None:
    class Ours(Held):
        seen: Any = None

        def after_update(self, runner: Any, scheduler_output: Any) -> None:
            self.seen = scheduler_output

        def take(self) -> Any:
            return None

    class Runner(_Bare):
        update_requests = _Bare.update_requests
        take_draft_token_ids = _Bare.take_draft_token_ids

    for _ in range(2):
        bind_runner(Runner)
    runner = Runner()
    assert runner.take_draft_token_ids() == "vLLM's own"
    runner.speculator = ours = Ours()
    runner.update_requests("output")
    assert ours.seen == "output"
    assert runner.take_draft_token_ids() is None


def test_init_speculator_is_wrapped_once_and_in_both_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requirements, "require", lambda: None)

    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> str:
        return "vLLM's own"

    members = {"init_speculator": init_speculator}
    with stub_modules({door.PACKAGE: members, door.RUNNER: members}):
        for _ in range(2):
            door.install()
        package, runner = (sys.modules[name] for name in (door.PACKAGE, door.RUNNER))
        assert package.init_speculator is runner.init_speculator is not init_speculator  # type: ignore[attr-defined]
        assert package.init_speculator.__wrapped__ is init_speculator  # type: ignore[attr-defined]
        theirs = SimpleNamespace(speculative_config=SimpleNamespace(method="ngram", model="ngram"))
        assert package.init_speculator(theirs, None, None) == "vLLM's own"  # type: ignore[attr-defined]
    ours = SimpleNamespace(**vllm_v2.prepare(SimpleNamespace(), translate(GOOD)))
    assert ours.method == "ngram"
    choice = choice_of(SimpleNamespace(speculative_config=ours))
    assert choice is not None
    assert choice.name == "null"
    foreign = SimpleNamespace(method="custom_class", model="their.module.Class")
    assert choice_of(SimpleNamespace(speculative_config=foreign)) is None


def test_a_vllm_whose_v2_runner_is_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = SimpleNamespace(
        problem="vllm.x has no y", symbol=SimpleNamespace(required=True, purpose="")
    )
    monkeypatch.setattr(requirements, "examine", lambda: (problem,))
    with pytest.raises(
        HostMismatchError, match=r"V2 model runner, .*has no y.*VLLM_USE_V2_MODEL_RUNNER=0"
    ):
        requirements.require()
