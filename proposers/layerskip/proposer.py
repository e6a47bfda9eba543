"""``specplug.layerskip``: a proposer of whole batches, over an engine that can run parts of its model."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specplug import registry
from specplug.errors import ExitHeadError, SettingsError
from specplug.layers.exit_file import read_facts
from specplug.layers.plan import Plan
from specplug.layers.policy import BatchExecutor, Feedback, StopRule
from specplug.proposers.layerskip.gates import Gate, Planned, Ruled
from specplug.proposers.layerskip.searching import POLICIES, Search
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

_SKIPPED = re.compile(r"(-?\d+)([am]?)")


@dataclass(frozen=True)
class LayerSkipSettings:
    """Options of ``specplug.layerskip``; one of ``exit_layer``, ``skip`` and ``policy`` says what is left out."""

    exit_layer: int | None = option(
        None, minimum=1, help="Drafts leave the model after so many layers."
    )
    skip: str = option(
        "",
        help="Layers that drafts leave out, such as '12,13a,16m'; with a or m only their attention or MLP.",
    )
    policy: Literal["", "swift", "clasp", "conflayers"] = option(
        "", help="Find the layers to leave out while serving."
    )
    ratio: float = option(
        0.45, minimum=0.01, maximum=0.99, help="Share that swift and clasp leave out."
    )
    search_share: float = option(
        0.05,
        minimum=0.0,
        maximum=1.0,
        help="Share of the time that a policy may spend on its search.",
    )
    heads: str = option(
        "", help="File of exit heads for this model, written by specplug fit-exit; with exit_layer."
    )
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
            SettingsError: not exactly one of ``exit_layer``, ``skip`` and ``policy``, a ``skip`` that lists no layers,
                ``heads`` that are no file of exit heads or have none for this exit, or what the proposer in ``text``
                says.
        """
        _skipped(self)
        if self.heads:
            _check_heads(self)
        if self.text:
            registry.preflight(self.text, self.text_options(), lambda: vocab_size, tokenizer)

    def text_options(self) -> dict[str, str]:
        """Options of the proposer in ``text``."""
        return {"datastore": self.datastore} if self.datastore else {}

    def plan(self, layers: int) -> Plan:
        """What the first draft pass runs of a model of ``layers`` layers, see :meth:`search`."""
        return self.search(layers).policy.plan()

    def search(self, layers: int) -> Search:
        """What chooses the layers of a model that has ``layers`` of them.

        Raises:
            SettingsError: see :meth:`preflight`.
            SkipPlanError: layers that the model does not have, or layer 0, or too few to search.
        """
        attention, mlp = _skipped(self)
        if self.policy:
            return Search(POLICIES[self.policy](layers, self.ratio), self.search_share)
        if self.exit_layer is not None:
            return Search.fixed(Plan.early_exit(layers, self.exit_layer))
        return Search.fixed(Plan.skipping(layers, attention, mlp))


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
        SettingsError: not exactly one of ``exit_layer``, ``skip`` and ``policy``, or a ``skip`` that lists no layers.
    """

    Settings = LayerSkipSettings
    capabilities = Capabilities(passes=True)

    def __init__(self, context: Context, settings: LayerSkipSettings) -> None:
        self._settings = settings
        _skipped(settings)
        self._executor: BatchExecutor | None = None
        self.search: Search | None = None
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
            ExitHeadError: the heads belong to another model.
        """
        search = self._settings.search(executor.layers)
        executor.check(search.policy.plan())
        if self._settings.policy:
            executor.check_search()
        if self._settings.heads:
            executor.use_heads(Path(self._settings.heads).expanduser())
        self.search = search
        self._executor = executor

    def use_planner(self, planner: PassPlanner) -> None:
        """The controller plans passes, in place of the rule."""
        if self._settings.pays:
            self._planner = planner

    def rests(self) -> bool:
        """Whether nothing is drafted in this step anyway, so that an adapter need not ask: called once per step."""
        if self._planner is None or self._text is not None or self._settings.policy:
            return False  # text and searches go on where no pass is made
        return self._planner.rests()

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
        executor, plan = self._executor, self._chosen()
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

    def _chosen(self) -> Plan | None:
        """What a draft pass of this step runs, if there shall be any; a search may ask the model first."""
        if self.search is None or self._executor is None or not self._before:
            return None
        self.search.look(self._executor, self._before)
        return self.search.plan()

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


def _skipped(settings: LayerSkipSettings) -> tuple[list[int], list[int]]:
    """Layers whose attention and whose MLP ``skip`` leaves out."""
    ways = (settings.exit_layer is not None) + bool(settings.skip) + bool(settings.policy)
    if ways != 1:
        raise SettingsError(
            'specplug.layerskip needs one of "exit_layer" (drafts leave the model there), "skip" (layers that drafts '
            f'leave out) and "policy" (finds them), got exit_layer {settings.exit_layer!r}, skip {settings.skip!r} and '
            f"policy {settings.policy!r}"
        )
    attention: list[int] = []
    mlp: list[int] = []
    for part in settings.skip.split(",") if settings.skip else ():
        found = _SKIPPED.fullmatch(part.strip())
        if found is None:
            raise SettingsError(
                "specplug.layerskip: skip lists layers, such as '12,13a,16m' (a: only its attention, m: only its MLP), "
                f"got {settings.skip!r}"
            )
        layer, kind = int(found.group(1)), found.group(2)
        attention += [layer] if kind != "m" else []
        mlp += [layer] if kind != "a" else []
    return attention, mlp


def _check_heads(settings: LayerSkipSettings) -> None:
    """Before the model loads: is it a file of heads, with one for this exit? Whose they are is asked later."""
    try:
        entries = read_facts(Path(settings.heads).expanduser()).get("heads", [])
        exits = [entry["exit_layer"] for entry in entries]
    except (ExitHeadError, KeyError, TypeError) as error:
        raise SettingsError(f"specplug.layerskip: heads: {error}") from None
    if settings.exit_layer not in exits:
        raise SettingsError(
            f"specplug.layerskip: {settings.heads} has heads for exits after {exits} layers, but exit_layer is "
            f"{settings.exit_layer}; choose one of these, or fit it: specplug fit-exit --layers {settings.exit_layer}"
        )
