"""The life cycle of requests between an engine and a proposer: the only stateful façade of the core.

An adapter hands over, every step, the ids of the running requests and *all* tokens each of them has. The session
finds out what is new, feeds it to the proposer and the controller, asks for drafts and makes them safe. Adapters
therefore never track tokens, and steps on which an engine does not ask for drafts need no care: what was missed is
observed at the next call.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from specplug.checksum import Checksum
from specplug.control.fixed import FixedLength
from specplug.errors import InvalidRequestError
from specplug.protocols import Controller, Proposer
from specplug.safety import Safety
from specplug.sources import DraftSources
from specplug.stats import SessionStats
from specplug.steering import Offer, Places, Steering
from specplug.steering import accepted_tokens as accepted_tokens
from specplug.types import (
    LENGTH_DTYPE,
    SEPARATOR,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
    allocate_drafts,
)

log = logging.getLogger("specplug")


@dataclass(slots=True)
class _Live:
    """What the session keeps of a running request: its slot and how far it has been observed."""

    request: Request
    serial: int
    slot: int
    known: int
    last_token: int
    #: Draft tokens that it can use at most, and tokens with which it ends, the target's last one not counted.
    most: int
    end: int
    offer: Offer | None = None


class _View(NamedTuple):
    """The arrays of a step with so many rows, the same objects at each step; and two of them as plain memory."""

    out: DraftBuffers
    slots: IntArray
    limits: IntArray
    ceilings: IntArray
    slot_cells: memoryview[int]
    limit_cells: memoryview[int]


class Session:
    """Drives one proposer for one engine process. Not thread-safe; called from the engine's step.

    Invariants: a slot belongs to at most one live request; the proposer sees ``start`` and ``finish``
    in turn for each slot; after :meth:`step` every token of every history given was observed exactly once.

    Args:
        proposer: what guesses.
        context: limits of the engine process.
        controller: how many guesses are worth verifying; by default always the ceiling.
        on_fault: ``"disable"`` turns an exception of the proposer into one log line, a counter and empty drafts
            from then on; ``"raise"`` lets it through (for tests).
    """

    def __init__(
        self,
        proposer: Proposer,
        context: Context,
        *,
        controller: Controller | None = None,
        on_fault: Literal["disable", "raise"] = "disable",
    ) -> None:
        self.proposer = proposer
        self.context = context
        self.stats = SessionStats()
        self.faulted = False
        if on_fault not in ("disable", "raise"):
            raise InvalidRequestError(f"on_fault must be 'disable' or 'raise', got {on_fault!r}")
        self._raise = on_fault == "raise"
        self.checksum = Checksum.from_environment()
        self.sources = DraftSources(proposer, context)
        self._steering = Steering(
            controller or FixedLength(), proposer.capabilities, self._raise, self.sources
        )
        self._live: OrderedDict[str, _Live] = OrderedDict()
        self._free = list(range(context.max_requests - 1, -1, -1))
        self._buffers = allocate_drafts(
            context.max_requests, context.max_draft, context.vocab_size, proposer.capabilities
        )
        self._columns = np.zeros((3, context.max_requests), LENGTH_DTYPE)
        self._views: dict[int, _View] = {}
        self._places = Places()
        self._safety = Safety(context, self.stats)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    @property
    def controller(self) -> Controller:
        """What decides how many guesses are worth verifying; one that drafts nothing after a fault of it."""
        return self._steering.controller

    @property
    def live(self) -> int:
        """Number of requests that hold a slot."""
        return len(self._live)

    def begin(self, request: Request, history: TokenArray) -> None:
        """Start a request with the tokens it has so far (prompt, and output if it has any).

        A live request of the same id is finished first: its state never leaks into the new one. When all slots
        are taken, the request that was stepped longest ago is dropped (its end must have been missed).

        Raises:
            InvalidRequestError: ``history`` is no one-dimensional array of integers.
        """
        tokens = self._safety.clean(history)
        request = self._with_real_stops(request)
        self._release(request.request_id, keep=False)
        if not self._free:
            oldest = next(iter(self._live))
            self.stats.recycled += 1
            self._release(oldest, keep=False)
        slot = self._free.pop()
        last = int(tokens[-1]) if len(tokens) else SEPARATOR
        self._live[request.request_id] = _Live(
            request, self.stats.started, slot, len(tokens), last, *self._room_of(request)
        )
        self.stats.started += 1
        self._steering.begin(slot, request)
        self._guarded("start", slot, request, tokens)

    def step(self, request_ids: Sequence[str], histories: Sequence[TokenArray]) -> DraftBuffers:
        """Observe what is new and draft for every row.

        Args:
            request_ids: the ``B`` requests of this step, each at most once; an unknown id starts a request whose whole
                history counts as prompt.
            histories: per row an int32 array of *all* tokens of the request, prompt included.

        Returns:
            Draft buffers with ``B`` rows in the order given; views that the next call overwrites.

        Raises:
            InvalidRequestError: more rows than slots, a repeated id, or histories that do not match the ids.
        """
        rows = len(request_ids)
        self._check_rows(request_ids, histories)
        live = self._entries(request_ids, histories)
        self._observe(live, histories)
        view = self._view(rows)
        out, slots, limits, ceilings, slot_cells, limit_cells = view
        for row, entry in enumerate(live):
            room = entry.end - entry.known
            slot_cells[row] = entry.slot
            limit_cells[row] = entry.most if room >= entry.most else max(0, room)
        out.lengths.fill(0)
        drafts: list[list[int]] = [[]] * rows
        if rows and not self.faulted:
            ceilings.fill(0)
            self._steering.plan(slots, limits, ceilings)
            self._steering.hint(self.proposer)
            most = ceilings.tolist()
            self._guarded("propose", slots, ceilings, out)
            stops = [entry.request.stop_token_ids for entry in live]
            drafts = self._safety.cut(out, out.lengths.tolist(), most, stops)
        self._settle(live, out, drafts, self._steering.trim(slots, out))
        return out

    def finish(self, request_id: str, keep: bool = True, history: TokenArray | None = None) -> bool:
        """End a request; with ``keep`` its text may serve others, unless the request itself does not want that.

        ``history``: all its tokens, if the last step's were not seen yet. False if the id is not live (never an error).
        """
        entry = self._live.get(request_id)
        if history is not None and entry is not None and self._continues(entry, history):
            self._observe([entry], [history])
        return self._release(request_id, keep)

    def finish_all(self, request_ids: Iterable[str], keep: bool = True) -> None:
        """End several requests in the order in which they began, whatever order (of a set, say) they come in.

        Engines keep finished ids in sets, whose order differs between processes; what proposers learn must not.
        """
        serials = {r: self._live[r].serial for r in request_ids if r in self._live}
        for request_id in sorted(serials, key=serials.__getitem__):
            self._release(request_id, keep)

    def close(self) -> None:
        """End all requests without keeping their text, and let the proposer save what it keeps over restarts.

        A proposer that has something to do at the end has a method ``close()``; it is optional.
        """
        for request_id in list(self._live):
            self._release(request_id, keep=False)
        if callable(getattr(self.proposer, "close", None)):
            self._guarded("close")

    def _release(self, request_id: str, keep: bool) -> bool:
        entry = self._live.pop(request_id, None)
        if entry is None:
            return False
        self._free.append(entry.slot)
        self.stats.finished += 1
        self._guarded("finish", entry.slot, keep and entry.request.shares)
        return True

    def _check_rows(self, request_ids: Sequence[str], histories: Sequence[TokenArray]) -> None:
        if len(request_ids) != len(histories):
            raise InvalidRequestError(
                f"step needs one history per request, got {len(request_ids)} ids and {len(histories)} histories"
            )
        if len(request_ids) > self.context.max_requests:
            raise InvalidRequestError(
                f"step got {len(request_ids)} requests, but Context.max_requests is {self.context.max_requests}"
            )
        if len(request_ids) > 1 and len(set(request_ids)) != len(request_ids):
            twice = next(r for r in request_ids if list(request_ids).count(r) > 1)
            raise InvalidRequestError(
                f"request {twice!r} stands in more than one row of the same step"
            )

    def _entries(self, request_ids: Sequence[str], histories: Sequence[TokenArray]) -> list[_Live]:
        """What is kept of each row's request; unknown requests begin, and those whose history is another begin anew."""
        live, found, due = self._live, [], []
        for row, request_id in enumerate(request_ids):
            entry = live.get(request_id)
            if entry is not None:
                # Before any request begins, lest a newcomer takes the slot of another row of this step.
                live.move_to_end(request_id)
                if self._continues(entry, histories[row]):
                    found.append(entry)
                    continue
            due.append(row)
        if not due:
            return found
        # By id: which slot a newcomer gets must not depend on the engine's order of rows, which ranks may not share.
        for row in sorted(due, key=request_ids.__getitem__):
            self._renew(request_ids[row], histories[row])
        return [live[request_id] for request_id in request_ids]

    def _renew(self, request_id: str, history: TokenArray) -> None:
        """Begin an unknown request, or begin anew one whose history shrank or is another one."""
        entry = self._live.get(request_id)
        if entry is None:
            self.begin(Request(request_id, prompt_length=len(history)), history)
            return
        # An engine rewound the request or reused its id without telling: what was known is void.
        self.stats.restarted += 1
        prompt_length = min(entry.request.prompt_length, len(history))
        self.begin(replace(entry.request, prompt_length=prompt_length), history)

    def _continues(self, entry: _Live, history: TokenArray) -> bool:
        known = entry.known
        if len(history) < known:
            return False
        if known == 0:
            return True
        token = int(history[known - 1])
        return token == entry.last_token or self._safety.clean_id(token) == entry.last_token

    def _observe(self, live: list[_Live], histories: Sequence[TokenArray]) -> None:
        """Feed the new tokens of all rows to the proposer, and how their last drafts fared to the controller."""
        grown = [(e, h) for e, h in zip(live, histories, strict=True) if len(h) > e.known]
        if not grown:
            return
        # By age of the request: what is learned must not depend on the engine's order of rows.
        grown.sort(key=_age)
        news = [history[entry.known :] for entry, history in grown]
        joined = news[0] if len(news) == 1 else np.concatenate(news)
        tokens, listed = self._safety.clean_with_list(joined)
        slots, offsets, slot_cells, ends = self._places[len(grown)]
        judged: list[tuple[int, Offer, list[int]]] = []
        # All of it anew: the proposer may have used the arrays for work of its own.
        ends[0] = start = 0
        for row, (entry, _) in enumerate(grown):
            end = start + len(news[row])
            slot_cells[row], ends[row + 1] = entry.slot, end
            if entry.offer is not None:
                judged.append((entry.slot, entry.offer, listed[start:end]))
                entry.offer = None
            start = end
        self.stats.emitted += start
        if judged:
            self.stats.accepted += self._steering.judge(judged)
        end = 0
        for (entry, history), new in zip(grown, news, strict=True):
            end += len(new)
            entry.known, entry.last_token = len(history), listed[end - 1]
        self._guarded("observe", Observed(slots, offsets, tokens))

    def _room_of(self, request: Request) -> tuple[int, int]:
        """Draft tokens that could be of use at most, and the length from which on none is, of a request.

        Limits are the model's length, the output limit and the request's own wish. Each step emits one token more than
        it accepts, hence the ``- 1``.
        """
        most, end = self.context.max_draft, self.context.max_length
        if request.max_output is not None:
            end = int(min(end, request.prompt_length + request.max_output))
        if request.draft_limit is not None:
            most = int(max(0, min(most, request.draft_limit)))
        return most, end - 1

    def _settle(
        self,
        live: list[_Live],
        out: DraftBuffers,
        drafts: list[list[int]],
        lengths: tuple[list[int], list[int]],
    ) -> None:
        """Remember what was drafted, to judge it when the next tokens are known."""
        offered, left = lengths
        for row, (entry, draft, length) in enumerate(zip(live, drafts, left, strict=True)):
            entry.offer = None
            if draft:
                parents = None if out.parents is None else out.parents[row, :length].tolist()
                entry.offer = Offer(draft, parents, length)
        self.stats.count_drafts(offered, left)

    def _view(self, rows: int) -> _View:
        """Draft buffers, slots, limits and ceilings for ``rows`` requests; the same objects at each step."""
        view = self._views.get(rows)
        if view is None:
            full, columns = self._buffers, self._columns
            buffers = DraftBuffers(
                full.tokens[:rows],
                full.lengths[:rows],
                full.survival[:rows],
                None if full.parents is None else full.parents[:rows],
                None if full.draft_probs is None else full.draft_probs[:rows],
            )
            slots, limits, ceilings = columns[:, :rows]
            view = _View(buffers, slots, limits, ceilings, slots.data, limits.data)
            self._views[rows] = view
        return view

    def _with_real_stops(self, request: Request) -> Request:
        """Without stop ids that no token can have; users may write any number, and arrays of them are int32."""
        stops = request.stop_token_ids
        if all(0 <= stop < self.context.vocab_size for stop in stops):
            return request
        return replace(
            request, stop_token_ids=frozenset(s for s in stops if self._safety.clean_id(s) >= 0)
        )

    def _guarded(self, method: str, *arguments: object) -> None:
        """Call the proposer; a fault costs its drafts from now on, never the request."""
        if self.faulted:
            return
        try:
            getattr(self.proposer, method)(*arguments)
            if self.checksum is not None:
                self.checksum.note(self.proposer, method, arguments)
        except Exception:  # whatever a third party's proposer raises, the engine must go on
            if self._raise:
                raise
            self.faulted = True
            self.stats.faults += 1
            if method == "propose":
                out = arguments[-1]
                assert isinstance(out, DraftBuffers)
                out.lengths[:] = 0
            log.exception(
                "specplug: proposer %s failed in %s(); answers are not affected, "
                "but nothing is drafted from now on",
                type(self.proposer).__name__,
                method,
            )


def _age(grown: tuple[_Live, TokenArray]) -> int:
    return grown[0].serial
