"""The object that vLLM's V1 model runner holds as its ``drafter``."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from specplug.adapters.common import host_logger
from specplug.adapters.common.building import build_proposer
from specplug.adapters.common.timing import StepTimes
from specplug.adapters.common.trees import first_branch
from specplug.adapters.vllm_v1 import host_faults, metrics, setup
from specplug.adapters.vllm_v1.binding import bind
from specplug.adapters.vllm_v1.layers import LayerExecutor
from specplug.adapters.vllm_v1.options import ALIASES, PREFIX, Choice
from specplug.adapters.vllm_v1.requests import MaskedHistory, describe, has_tokens
from specplug.adapters.vllm_v1.salts import salt_of
from specplug.adapters.vllm_v1.steps import StepClock
from specplug.errors import SpecplugError
from specplug.session import Session
from specplug.types import TokenArray

#: Steps that may fail in the adapter itself before it stops trying.
MAX_FAULTS = 8

_running: weakref.WeakSet[VllmProposer]


class VllmProposer:
    """Translates between the runner's batch and a :class:`~specplug.session.Session`.

    State is keyed by vLLM's internal request id, never by batch row: rows move. The tokens of a request are read from
    the runner's own array at every step, so steps on which vLLM does not ask for drafts need no care. Whatever goes
    wrong in here costs drafts: :meth:`propose` and :meth:`after_update` do not raise.

    Attributes:
        session: the life cycle and its counters (``session.stats``); None on a rank whose drafts nobody takes.
        times: host time per step.
        faults: exceptions in this adapter (those of the proposer are counted by the session).
        unserved: rows without drafts because of the kind of their request, summed over steps.
        sampling: what became of the host function that :mod:`.host_faults` tests, or ``"not tested"``.
    """

    def __init__(self, vllm_config: Any, choice: Choice) -> None:
        started = time.perf_counter()
        self.log = host_logger("vllm")
        self.name = PREFIX + choice.name
        self.options = choice.options
        self.times = StepTimes()
        self.faults = 0
        self.unserved = 0
        self.runner: Any = None
        self.session: Session | None = None
        self.width = int(vllm_config.speculative_config.num_speculative_tokens)
        self.sampling = self._repair_host() if setup.on_cpu() else "not tested"
        self._masked: dict[str, MaskedHistory] = {}
        self._withheld: set[str] = set()
        self._salts: dict[str, str] = {}
        self._hook_time = 0
        self._published: metrics.Published | None = None
        self._clock = StepClock()
        self._cap = setup.HostCap(self.width)
        self._bind()
        if not setup.drafts_here(vllm_config):
            self.log.info("%s: drafts on the first tensor-parallel rank only, idle here", self.name)
            return
        context = setup.context(vllm_config)
        proposer = build_proposer(
            ALIASES.get(choice.name, choice.name), context, choice.options, "vLLM"
        )
        self._cap = setup.controller(choice, context, proposer.capabilities, vllm_config)
        self.session = Session(proposer, context, controller=self._cap)
        self._published = metrics.Published.from_environment(
            choice.name, setup.replica(vllm_config), self.session
        )
        _running.add(self)
        self.log.info(
            "%s ready in %.2f s: options %s, controller %s, at most %d draft tokens, vocabulary %d, %d thread(s)",
            self.name,
            time.perf_counter() - started,
            self.options,
            (choice.control or {"name": "fixed"})["name"],
            context.max_draft,
            context.vocab_size,
            context.threads,
        )

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is no draft model. vLLM's CPU runner calls this unconditionally."""

    def after_update(self, runner: Any, scheduler_output: Any) -> None:
        """Called by the wrapper around ``_update_states``: requests that ended, ids used again, this step's limits."""
        started = time.perf_counter_ns()
        try:
            self._attach(runner)
            self._clock.begin(scheduler_output)
            planned = getattr(scheduler_output, "num_spec_tokens_to_schedule", None)
            self._cap.cap = self.width if planned is None else max(0, min(self.width, int(planned)))
            self._end_all(scheduler_output.finished_req_ids)
            if scheduler_output.finished_req_ids and self.session is not None:
                self._publish(self.session, ended=True)
            for new in scheduler_output.scheduled_new_reqs:
                self._arrived(new)
        except Exception:  # noqa: BLE001  the runner must go on: without this, vLLM would fail every request
            self._fault("after_update", ())
        self._hook_time += time.perf_counter_ns() - started

    def propose(
        self,
        sampled_token_ids: Any,
        num_tokens_no_spec: Any = None,
        token_ids_cpu: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> list[list[int]]:
        """Drafts for every batch row, as lists of Python ints of at most ``num_speculative_tokens``.

        Args:
            sampled_token_ids: per row the tokens this step made certain; none in prefill, where nothing is drafted.
            num_tokens_no_spec: int32 ``[max_requests]``, tokens of each row, those just sampled included.
            token_ids_cpu: int32 ``[max_requests, max_model_len]``, the tokens themselves.
        """
        started = time.perf_counter_ns()
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        session = self.session
        if session is None or self.runner is None or self.stopped:
            return drafts
        ids: list[str] = []
        if self._rests(session, sampled_token_ids):
            self._clock.drafted(time.perf_counter_ns() - started + self._hook_time)
            self._hook_time = 0
            return drafts
        try:
            batch = self.runner.input_batch
            lengths = batch.num_tokens_no_spec if num_tokens_no_spec is None else num_tokens_no_spec
            tokens = batch.token_ids_cpu if token_ids_cpu is None else token_ids_cpu
            self._time(sampled_token_ids, lengths)
            rows, histories = self._collect(session, sampled_token_ids, lengths, tokens, ids)
            if ids:
                self._draft(session, ids, rows, histories, drafts)
        except Exception:  # noqa: BLE001  a draft is never worth a request: this step decodes plainly
            self._fault("propose", ids)
            drafts = [[] for _ in sampled_token_ids]
        spent = time.perf_counter_ns() - started + self._hook_time
        self.times.add(spent)
        self._clock.drafted(spent)
        self._hook_time = 0
        if self._published is not None:
            self._published.step(spent)
            self._publish(session)
        return drafts

    def _rests(self, session: Session, sampled: Any) -> bool:
        """Whether the session can be left alone in this step; the next one will tell it what it missed."""
        rests = getattr(session.proposer, "rests", None)
        try:
            if rests is None or not rests():
                return False
        except Exception:  # noqa: BLE001  the step itself will find out what is wrong
            return False
        session.stats.steps += 1
        session.stats.rows += sum(1 for new in sampled if len(new))
        return True

    @property
    def stopped(self) -> bool:
        """Whether nothing will be drafted any more in this process."""
        session = self.session
        return session is None or session.faulted or self.faults >= MAX_FAULTS

    def snapshot(self) -> dict[str, Any]:
        """Everything worth reporting, as plain values: options, counters, host time."""
        return {
            "method": self.name,
            "options": dict(self.options),
            "num_speculative_tokens": self.width,
            "adapter_faults": self.faults,
            "sampling": self.sampling,
            "host_time": self.times.as_dict(),
            "session": self.session.stats.as_dict() if self.session else None,
            "sources": self.session.sources.as_dict() if self.session else None,
            "checksum": self.session.checksum.value
            if self.session and self.session.checksum
            else None,
            "controller": self._controller(),
        }

    def _controller(self) -> dict[str, Any]:
        about = getattr(self._cap.inner, "as_dict", None)
        return {"controller": type(self._cap.inner).__name__} if about is None else about()

    def _publish(self, session: Session, ended: bool = False) -> None:
        if self._published is None:
            return
        try:
            self._published.update(session, self.faults, self.unserved, ended=ended)
        except Exception as error:  # noqa: BLE001  memory() of a foreign proposer may raise anything
            self._published = None
            self.log.warning("specplug: no more numbers for /metrics: %r", error)

    def _bind(self) -> None:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        bind(GPUModelRunner, VllmProposer)

    def _repair_host(self) -> str:
        return host_faults.repair(self.log)

    def _arrived(self, new: Any) -> None:
        # Still known: a streamed-in continuation of the prompt, or an id used again.
        self._end_all([new.req_id])
        salt = salt_of(new)
        if salt:
            self._salts[new.req_id] = salt

    def _attach(self, runner: Any) -> None:
        self._lend_layers(runner)
        self.runner = runner
        # vLLM skips the drafter for the *whole batch*, and drafts K zeros for every row, as soon as one request is
        # within K of the context end. The session cuts drafts there by itself, so there is nothing to skip for.
        limit = getattr(runner, "effective_drafter_max_model_len", None)
        if limit is not None and limit < runner.max_model_len + self.width:
            runner.effective_drafter_max_model_len = runner.max_model_len + self.width

    def _lend_layers(self, runner: Any) -> None:
        """Once: a proposer that drafts with the model's own layers gets what runs them."""
        use = getattr(self.session.proposer if self.session else None, "use_layers", None)
        if self.runner is not None or use is None:
            return
        try:
            use(LayerExecutor(runner))
        except SpecplugError as error:
            self.log.error("%s: layers draft nothing: %s", self.name, error)
        except Exception:
            # Modules of a foreign model may raise anything; text can still be drafted from.
            self.log.exception("%s: layers draft nothing, they could not be lent", self.name)

    def _time(self, sampled: Any, lengths: Any) -> None:
        """Tell a controller that wants to know how long this step took."""
        timed = getattr(self._cap.inner, "timed", None)
        if timed is None:
            return
        rows = len(sampled)
        in_prefill = rows - sum(1 for new in sampled if len(new))
        facts = self._clock.sampled(in_prefill, int(np.asarray(lengths)[:rows].sum()))
        if facts is not None:
            timed(facts)

    def _collect(
        self, session: Session, sampled: Any, lengths: Any, tokens: Any, ids: list[str]
    ) -> tuple[list[int], list[TokenArray]]:
        """The rows that want drafts: row numbers and histories; their ids are appended to ``ids``."""
        req_ids = self.runner.input_batch.req_ids
        known = np.asarray(lengths)[: len(sampled)].tolist()
        wanting = [row for row, new in enumerate(sampled) if len(new)]
        # By id: ranks need not have the same order of rows, and what is learned depends on who began first.
        for row in sorted(wanting, key=req_ids.__getitem__):
            if req_ids[row] not in session and req_ids[row] not in self._withheld:
                self._begin(session, req_ids[row], tokens[row, : known[row]])
        rows: list[int] = []
        histories: list[TokenArray] = []
        for row in wanting:
            request_id = req_ids[row]
            if request_id in self._withheld:
                self.unserved += 1
                continue
            history: TokenArray = tokens[row, : known[row]]
            masked = self._masked.get(request_id)
            ids.append(request_id)
            rows.append(row)
            histories.append(masked.follow(history) if masked else history)
        return rows, histories

    def _begin(self, session: Session, request_id: str, history: TokenArray) -> None:
        state = self.runner.requests[request_id]
        if not has_tokens(state):
            self._withheld.add(request_id)
            return
        request, complaint = describe(request_id, state, self._salts.get(request_id, ""))
        if complaint:
            self.log.warning("specplug: request %s: %s; ignored", request_id, complaint)
        features = getattr(state, "mm_features", None)
        if features:
            self._masked[request_id] = MaskedHistory(features)
            history = self._masked[request_id].follow(history)
        session.begin(request, history)

    def _draft(
        self,
        session: Session,
        ids: Sequence[str],
        rows: list[int],
        histories: list[TokenArray],
        drafts: list[list[int]],
    ) -> None:
        out = session.step(ids, histories)
        for i, length in enumerate(out.lengths.tolist()):
            if length and out.parents is None:
                drafts[rows[i]] = out.tokens[i, : min(length, self.width)].tolist()
            elif length and out.parents is not None:  # this runner verifies chains only
                branch = first_branch(out.parents[i, :length])
                drafts[rows[i]] = out.tokens[i, branch[: self.width]].tolist()

    def _end_all(self, request_ids: Iterable[str], keep: bool = True) -> None:
        for request_id in request_ids:
            self._withheld.discard(request_id)
            self._masked.pop(request_id, None)
            self._salts.pop(request_id, None)
        if self.session is not None:
            # An aborted request's text was emitted like any other, so it is kept too.
            self.session.finish_all(request_ids, keep)

    def _fault(self, where: str, ids: Sequence[str]) -> None:
        self.faults += 1
        if self.faults == 1:
            self.log.exception(
                "specplug: %s() failed; answers are not affected, this step gets no drafts "
                "(later failures are only counted)",
                where,
            )
        if self.faults == MAX_FAULTS:
            self.log.error(
                "specplug: %d failures, nothing is drafted any more in this process", MAX_FAULTS
            )
        for request_id in ids:
            salt = self._salts.get(request_id)
            try:
                # Half-observed: start afresh at the next step, and let nobody else read it.
                self._end_all([request_id], keep=False)
            except Exception:  # noqa: BLE001  the state that failed may fail again; its request still must go on
                self.faults = MAX_FAULTS
            # It arrives with the request, once, and says who may read the text.
            if salt is not None:
                self._salts[request_id] = salt


_running = weakref.WeakSet()


def announce(proposer: Any) -> None:
    """A proposer of another shape works in this process; it has a ``session`` and a ``snapshot()`` too."""
    _running.add(proposer)


def running() -> list[VllmProposer]:
    """The proposers alive in this process."""
    return list(_running)
