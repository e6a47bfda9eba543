"""``specplug.layerskip``: a proposer of whole batches, over an engine that can run parts of its model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specplug.errors import SettingsError
from specplug.layers.plan import Plan
from specplug.layers.policy import BatchExecutor, Feedback, StopRule
from specplug.proposers.layerskip.stopping import Always, Paying
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

    def preflight(self, vocab_size: int, tokenizer: Callable[[], str] | None) -> None:
        """What the options say together; see :func:`specplug.registry.preflight`.

        Raises:
            SettingsError: none of ``exit_layer`` and ``skip``, both, or a ``skip`` that lists no layers.
        """
        _layers_of(self)

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

    Drafts are deterministic, so any rule may end them. One rule decides for the batch, by the mean confidence of its
    rows: a pass for all delays all. Without an executor (:meth:`use_layers`) nothing is drafted.

    Raises:
        SettingsError: none of ``exit_layer`` and ``skip``, both, or a ``skip`` that lists no layers.
    """

    Settings = LayerSkipSettings
    capabilities = Capabilities()

    def __init__(self, context: Context, settings: LayerSkipSettings) -> None:
        self._settings = settings
        _layers_of(settings)
        self._executor: BatchExecutor | None = None
        self._plan: Plan | None = None
        self.rule: StopRule = Paying() if settings.pays else Always()
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

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        """Remember whose slot it is."""
        self._ids[slot] = request.request_id
        self._last[slot] = int(history[-1]) if len(history) else -1
        self._drafts.pop(slot, None)
        self._before -= {request.request_id}

    def observe(self, observed: Observed) -> None:
        """See how the newest drafts fared."""
        for i, slot in enumerate(observed.slots.tolist()):
            tokens = observed.tokens[observed.offsets[i] : observed.offsets[i + 1]].tolist()
            if not tokens:
                continue
            self._last[slot] = tokens[-1]
            draft = self._drafts.pop(slot, None)
            if draft is None:
                continue
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

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """Pass after pass, for the rows that still have room."""
        executor, plan = self._executor, self._plan
        before, self._before = self._before, frozenset(self._ids[slot] for slot in slots.tolist())
        if executor is None or plan is None or not self._before:
            return
        began = time.perf_counter()
        step = began - self._ended
        rows = slots.tolist()
        for slot in rows:
            self._drafts[slot] = _Draft([], [])
        places = self._pass_all(executor, plan, rows, ceilings, out)
        self._ended = time.perf_counter()
        timed = getattr(self.rule, "timed", None)
        # What passed since the last call was one step only if all of these requests were in it: otherwise it may have
        # been a prefill, or hours without requests.
        if places and timed is not None and self._before <= before:
            timed((self._ended - began) / places, step)

    def finish(self, slot: int, keep: bool) -> None:
        """Forget the slot."""
        self._ids.pop(slot, None)
        self._last.pop(slot, None)
        self._drafts.pop(slot, None)

    def _pass_all(
        self,
        executor: BatchExecutor,
        plan: Plan,
        slots: list[int],
        ceilings: IntArray,
        out: DraftBuffers,
    ) -> int:
        """Returns the number of passes."""
        ids = [self._ids[slot] for slot in slots]
        tokens = np.array([self._last[slot] for slot in slots], np.int32)
        limits = np.minimum(ceilings, executor.rooms(ids))
        limits[tokens < 0] = 0
        survival = np.ones(len(slots))
        self.rule.begin()
        place = 0
        while (rows := np.flatnonzero(limits > place)).size and self.rule.runs():
            found, confidences = executor.run(plan, [ids[i] for i in rows], tokens[rows], place)
            place += 1
            if not self.rule.proposes(float(confidences.mean())):
                break
            tokens[rows] = found
            survival[rows] *= confidences
            out.tokens[rows, place - 1] = found
            out.survival[rows, place - 1] = survival[rows]
            out.lengths[rows] = place
            for i, token, confidence in zip(rows.tolist(), found, confidences, strict=True):
                draft = self._drafts[slots[i]]
                draft.tokens.append(int(token))
                draft.confidences.append(float(confidence))
        return place


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
