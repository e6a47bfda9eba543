"""``specplug.layerskip``: a proposer of whole batches, over an engine that can run parts of its model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specplug import registry
from specplug.errors import SettingsError
from specplug.layers.plan import Plan
from specplug.layers.policy import BatchExecutor, Feedback, StopRule
from specplug.proposers.layerskip.gates import Gate, Planned, Ruled
from specplug.proposers.layerskip.stopping import Always, Paying
from specplug.proposers.layerskip.text import Text
from specplug.protocols import PassPlanner
from specplug.settings import option
from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
)


@dataclass(frozen=True)
class LayerSkipSettings:
    """Options of ``specplug.layerskip``; exactly one of ``exit_layer`` and ``skip`` says what is left out."""

    exit_layer: int | None = option(
        None, minimum=1, help="Drafts leave the model after so many layers."
    )
    skip: str = option("", help="Layers that drafts leave out, such as '12,13,16'.")
    pays: bool = option(
        True,
        help="Draft only while that is measured to pay; false drafts always, for measurements.",
    )
    text: str = option(
        "",
        help="Proposer that is asked first, such as 'suffix'; layers draft only where it has nothing.",
    )
    datastore: str = option("", help="Of the proposer in 'text', where it has one: rest, hybrid.")

    def preflight(self, vocab_size: int, tokenizer: Callable[[], str] | None) -> None:
        """What the options say together; see :func:`specplug.registry.preflight`.

        Raises:
            SettingsError: none of ``exit_layer`` and ``skip``, both, or a ``skip`` that lists no layers; or what the
                proposer in ``text`` says.
        """
        _layers_of(self)
        if self.text:
            registry.preflight(self.text, self.text_options(), lambda: vocab_size, tokenizer)

    def text_options(self) -> dict[str, str]:
        """Options of the proposer in ``text``."""
        return {"datastore": self.datastore} if self.datastore else {}

    def plan(self, layers: int) -> Plan:
        """What a draft pass runs of a model of ``layers`` layers.

        Raises:
            SettingsError: see :meth:`preflight`.
            SkipPlanError: layers that the model does not have, or layer 0.
        """
        skipped = _layers_of(self)
        if self.exit_layer is not None:
            return Plan.early_exit(layers, self.exit_layer)
        return Plan.skipping(layers, skipped, skipped)


@dataclass
class _Draft:
    """The newest draft of a slot, until the target has judged it."""

    tokens: list[int]
    confidences: list[float]


class LayerSkipProposer:
    """Greedy drafts of the model itself with layers left out, for all requests of a step in the same passes.

    Drafts are deterministic, so any rule may end them. One decision holds for the batch, since a pass for all delays
    all: that of the controller, if it plans passes (:meth:`use_planner`), else of a rule. Where another proposer drafts
    from text first, passes are for the rows in which it has nothing. Without an executor (:meth:`use_layers`) no pass
    is made.

    Raises:
        SettingsError: none of ``exit_layer`` and ``skip``, both, or a ``skip`` that lists no layers.
    """

    Settings = LayerSkipSettings
    capabilities = Capabilities(passes=True)

    def __init__(self, context: Context, settings: LayerSkipSettings) -> None:
        self._settings = settings
        _layers_of(settings)
        self._executor: BatchExecutor | None = None
        self._plan: Plan | None = None
        self.rule: StopRule = Paying() if settings.pays else Always()
        self._planner: PassPlanner | None = None
        self._text: Text | None = None
        if settings.text:
            self._text = Text(context, settings.text, settings.text_options())
            self.source_names, self.draft_sources = self._text.names, self._text.sources
        # Where drafts are made whatever they cost, there is nothing to plan.
        shares = self._text is not None and self._text.shares
        self.capabilities = Capabilities(shares_requests=shares, passes=settings.pays)
        self._ids: dict[int, str] = {}
        self._last: dict[int, int] = {}
        self._drafts: dict[int, _Draft] = {}
        self._ended = 0.0
        self._before: frozenset[str] = frozenset()

    def use_layers(self, executor: BatchExecutor) -> None:
        """The engine is ready.

        Raises:
            SkipPlanError: the options name layers that its model does not have.
        """
        self._plan = self._settings.plan(executor.layers)
        self._executor = executor

    def use_planner(self, planner: PassPlanner) -> None:
        """The controller plans passes, in place of the rule."""
        if self._settings.pays:
            self._planner = planner

    def rests(self) -> bool:
        """Whether nothing is drafted in this step anyway, so that an adapter need not ask: called once per step."""
        return self._planner is not None and self._text is None and self._planner.rests()

    def set_verify_cost(self, cost: float) -> None:
        """What verifying costs, for text."""
        if self._text is not None:
            self._text.set_verify_cost(cost)

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        """Remember whose slot it is."""
        if self._text is not None:
            self._text.inner.start(slot, request, history)
        self._ids[slot] = request.request_id
        self._last[slot] = int(history[-1]) if len(history) else -1
        self._drafts.pop(slot, None)
        self._before -= {request.request_id}

    def observe(self, observed: Observed) -> None:
        """See how the newest drafts fared."""
        if self._text is not None:
            self._text.inner.observe(observed)
        for i, slot in enumerate(observed.slots.tolist()):
            first, end = int(observed.offsets[i]), int(observed.offsets[i + 1])
            if end == first:
                continue
            self._last[slot] = int(observed.tokens[end - 1])
            draft = self._drafts.pop(slot, None)
            if draft is not None:
                self._judge(draft, observed.tokens[first:end].tolist())

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """Text first; then pass after pass, for the rows that have nothing yet and still have room."""
        before, self._before = self._before, frozenset([self._ids[slot] for slot in slots.tolist()])
        if self._text is not None:
            self._text.propose(slots, ceilings, out)
        executor, plan = self._executor, self._plan
        if executor is None or plan is None or not self._before:
            return
        began = time.perf_counter()
        rows = slots.tolist()
        if self._planner is None:
            for row, slot in enumerate(rows):
                if not out.lengths[row]:
                    self._drafts[slot] = _Draft([], [])
        gate: Gate = Ruled(self.rule) if self._planner is None else Planned(self._planner)
        passes, drafting = self._pass_all(executor, plan, gate, (slots, ceilings, out))
        step, self._ended = began - self._ended, time.perf_counter()
        if not passes:
            return
        if self._planner is not None:
            self._planner.passed(slots[drafting], passes, self._ended - began)
            return
        timed = getattr(self.rule, "timed", None)
        # What passed since the last call was one step only if all of these requests were in it: otherwise it may have
        # been a prefill, or hours without requests.
        if timed is not None and self._before <= before:
            timed((self._ended - began) / passes, step)

    def finish(self, slot: int, keep: bool) -> None:
        """Forget the slot."""
        if self._text is not None:
            self._text.inner.finish(slot, keep)
        self._ids.pop(slot, None)
        self._last.pop(slot, None)
        self._drafts.pop(slot, None)

    def close(self) -> None:
        """The process ends; text may be saved."""
        if self._text is not None:
            self._text.close()

    def memory(self) -> dict[str, int]:
        """Bytes that text takes."""
        return {} if self._text is None else self._text.memory()

    def _judge(self, draft: _Draft, tokens: list[int]) -> None:
        # A controller may have cut the draft: what lies behind the target's own tokens was judged by nobody.
        judged = draft.tokens[: len(tokens)]
        pairs = enumerate(zip(judged, tokens, strict=False))
        wrong = next((place for place, (ours, its) in pairs if ours != its), None)
        if wrong is None:
            right = len(judged)
            # The last token of a step is the target's own: it judges, but nothing is gained by it.
            feedback = Feedback(tuple(draft.confidences[:right]), right, len(tokens) - 1)
        else:
            feedback = Feedback(tuple(draft.confidences), wrong)
        self.rule.observe(feedback)

    def _pass_all(
        self,
        executor: BatchExecutor,
        plan: Plan,
        gate: Gate,
        step: tuple[IntArray, IntArray, DraftBuffers],
    ) -> tuple[int, NDArray[np.int64]]:
        """Returns the number of passes, and the rows that they were for."""
        slots, ceilings, out = step
        ids = [self._ids[slot] for slot in slots.tolist()]
        tokens = np.array([self._last[slot] for slot in slots.tolist()], np.int32)
        limits = np.minimum(ceilings, executor.rooms(ids))
        limits[(tokens < 0) | (out.lengths > 0)] = 0
        drafting = np.flatnonzero(limits > 0)
        if self._text is not None:
            self._text.mark(slots[drafting])
        gate.begin(slots, limits, drafting, out)
        place, rows = 0, drafting
        while rows.size and gate.runs(rows, place):
            found, confidences = executor.run(plan, [ids[i] for i in rows], tokens[rows], place)
            if not gate.proposes(confidences):
                place += 1
                break
            tokens[rows] = found
            before = out.survival[rows, place - 1] if place else 1.0
            out.tokens[rows, place] = found
            out.survival[rows, place] = before * confidences
            place += 1
            out.lengths[rows] = place
            self._remember(slots[rows], found, confidences)
            rows = np.flatnonzero(limits > place)
        return place, drafting

    def _remember(
        self, slots: IntArray, tokens: IntArray, confidences: NDArray[np.float64]
    ) -> None:
        if self._planner is not None:  # it is told by the session
            return
        for slot, token, confidence in zip(slots.tolist(), tokens, confidences, strict=True):
            draft = self._drafts[slot]
            draft.tokens.append(int(token))
            draft.confidences.append(float(confidence))


def _layers_of(settings: LayerSkipSettings) -> list[int]:
    if (settings.exit_layer is None) == (not settings.skip):
        raise SettingsError(
            'specplug.layerskip needs one of "exit_layer" (drafts leave the model there) and "skip" (layers that '
            f"drafts leave out), got exit_layer {settings.exit_layer!r} and skip {settings.skip!r}"
        )
    try:
        return [int(part) for part in settings.skip.split(",") if settings.skip]
    except ValueError:
        raise SettingsError(
            f"specplug.layerskip: skip lists layers, such as '12,13,16', got {settings.skip!r}"
        ) from None
