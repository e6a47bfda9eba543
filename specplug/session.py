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
from itertools import accumulate
from typing import Literal

import numpy as np

from specplug.checksum import Checksum
from specplug.control.fixed import FixedLength
from specplug.errors import InvalidRequestError
from specplug.protocols import Controller, Proposer
from specplug.sources import DraftSources
from specplug.stats import SessionStats
from specplug.steering import Offer, Places, Steering, clip_lengths
from specplug.steering import accepted_tokens as accepted_tokens
from specplug.types import (
    LENGTH_DTYPE,
    SEPARATOR,
    TOKEN_DTYPE,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
    allocate_drafts,
)

log = logging.getLogger("specplug")

#: Up to so many different stop tokens are looked for one by one.
_FEW = 8


@dataclass(slots=True)
class _Live:
    """What the session keeps of a running request: its slot and how far it has been observed."""

    request: Request
    serial: int
    slot: int
    known: int
    last_token: int
    offer: Offer | None = None


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
        self._views: dict[int, tuple[DraftBuffers, IntArray, IntArray, IntArray]] = {}
        self._places = Places()

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
        tokens = self._clean(history)
        request = self._with_real_stops(request)
        self._release(request.request_id, keep=False)
        if not self._free:
            oldest = next(iter(self._live))
            self.stats.recycled += 1
            self._release(oldest, keep=False)
        slot = self._free.pop()
        last = int(tokens[-1]) if len(tokens) else SEPARATOR
        self._live[request.request_id] = _Live(request, self.stats.started, slot, len(tokens), last)
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
        # Before any request begins, lest a newcomer takes the slot of another row of this step.
        for request_id in request_ids:
            if request_id in self._live:
                self._live.move_to_end(request_id)
        # By id: which slot a newcomer gets must not depend on the engine's order of rows, which ranks may not share.
        due = [i for i, r in enumerate(request_ids) if not self._continues(r, histories[i])]
        for i in sorted(due, key=request_ids.__getitem__):
            self._renew(request_ids[i], histories[i])
        live = [self._live[r] for r in request_ids]
        self._observe(live, histories)
        out, slots, limits, ceilings = self._view(rows)
        slots[:] = [entry.slot for entry in live]
        limits[:] = [self._limit(entry) for entry in live]
        out.lengths[:] = 0
        if rows and not self.faulted:
            ceilings[:] = 0
            self._steering.plan(slots, limits, ceilings)
            self._steering.hint(self.proposer)
            self._guarded("propose", slots, ceilings, out)
            self._make_safe(live, ceilings, out)
        self._settle(live, out, self._steering.trim(slots, out))
        return out

    def finish(self, request_id: str, keep: bool = True, history: TokenArray | None = None) -> bool:
        """End a request; with ``keep`` its text may serve others, unless the request itself does not want that.

        ``history``: all its tokens, if the last step's were not seen yet. False if the id is not live (never an error).
        """
        if history is not None and self._continues(request_id, history):
            self._observe([self._live[request_id]], [history])
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
        if len(set(request_ids)) != len(request_ids):
            twice = next(r for r in request_ids if list(request_ids).count(r) > 1)
            raise InvalidRequestError(
                f"request {twice!r} stands in more than one row of the same step"
            )

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

    def _continues(self, request_id: str, history: TokenArray) -> bool:
        entry = self._live.get(request_id)
        if entry is None or len(history) < entry.known:
            return False
        return entry.known == 0 or self._clean_id(int(history[entry.known - 1])) == entry.last_token

    def _observe(self, live: list[_Live], histories: Sequence[TokenArray]) -> None:
        """Feed the new tokens of all rows to the proposer, and how their last drafts fared to the controller."""
        news = [h[e.known :] for e, h in zip(live, histories, strict=True)]
        # By age of the request: what is learned must not depend on the engine's order of rows.
        grown = [i for i in sorted(range(len(live)), key=lambda i: live[i].serial) if len(news[i])]
        if not grown:
            return
        new = [news[i] for i in grown]
        ends = [0, *accumulate(map(len, new))]
        tokens = self._clean(new[0] if len(new) == 1 else np.concatenate(new))
        self._judge([live[i] for i in grown], ends, tokens)
        for row, i in enumerate(grown):
            live[i].known = len(histories[i])
            live[i].last_token = int(tokens[ends[row + 1] - 1])
        slots, offsets = self._places[len(grown)]
        slots[:], offsets[:] = [live[i].slot for i in grown], ends
        self._guarded("observe", Observed(slots, offsets, tokens))

    def _judge(self, live: list[_Live], ends: list[int], tokens: TokenArray) -> None:
        """Count accepted drafts: what the emitted tokens share with the draft, the target's own token excluded."""
        judged: list[tuple[int, Offer, TokenArray]] = []
        for row, entry in enumerate(live):
            new = tokens[ends[row] : ends[row + 1]]
            self.stats.emitted += len(new)
            if entry.offer is not None:
                judged.append((entry.slot, entry.offer, new))
                entry.offer = None
        self.stats.accepted += self._steering.judge(judged)

    def _limit(self, entry: _Live) -> int:
        """Draft tokens that could still be of use: the model's length, the output limit and the request's own wish.

        Each step emits one token more than it accepts, hence the ``- 1``.
        """
        request = entry.request
        room = min(self.context.max_draft, self.context.max_length - entry.known - 1)
        if request.max_output is not None:
            room = min(room, request.prompt_length + request.max_output - entry.known - 1)
        if request.draft_limit is not None:
            room = min(room, request.draft_limit)
        return max(0, room)

    def _make_safe(self, live: list[_Live], ceilings: IntArray, out: DraftBuffers) -> None:
        """Cut every draft to its ceiling, before an id outside the vocabulary, and after a stop token.

        Cutting a row to its first nodes leaves a valid tree, since parents stand before their children.
        """
        clip_lengths(out.lengths, ceilings)
        # As unsigned numbers negative ids are large ones. What lies behind the drafts is looked at too, for speed.
        if (out.tokens.view(np.uint32) >= self.context.vocab_size).any():
            inside = np.arange(out.tokens.shape[1]) < out.lengths[:, None]
            foreign = inside & ((out.tokens < 0) | (out.tokens >= self.context.vocab_size))
            for row in np.flatnonzero(foreign.any(axis=1)):
                self.stats.clipped += 1
                out.lengths[row] = int(np.argmax(foreign[row]))
        self._cut_after_stops(live, out)

    def _cut_after_stops(self, live: list[_Live], out: DraftBuffers) -> None:
        ends = frozenset().union(*{entry.request.stop_token_ids for entry in live})
        if len(ends) <= _FEW and not any((out.tokens == end).any() for end in ends):
            return
        found = np.isin(out.tokens, np.fromiter(ends, TOKEN_DTYPE, len(ends)))
        for row in np.flatnonzero(found.any(axis=1)).tolist():
            stops = live[row].request.stop_token_ids
            tokens = out.tokens[row, : out.lengths[row]].tolist()
            parents = range(-1, len(tokens) - 1)  # of a chain: each node hangs on the one before
            if out.parents is not None:
                parents = out.parents[row, : len(tokens)].tolist()
            for node, parent in enumerate(parents):
                if parent >= 0 and tokens[parent] in stops:
                    out.lengths[row] = node
                    break

    def _settle(self, live: list[_Live], out: DraftBuffers, offered: IntArray) -> None:
        """Remember what was drafted, to judge it when the next tokens are known."""
        lengths = out.lengths.tolist()
        most_of_all = offered.tolist()
        for row, (entry, length, most) in enumerate(zip(live, lengths, most_of_all, strict=True)):
            entry.offer = None
            if most:
                parents = None if out.parents is None else out.parents[row, :length].copy()
                entry.offer = Offer(out.tokens[row, :most].copy(), parents, length)
        self.stats.steps += 1
        self.stats.rows += len(live)
        self.stats.drafted_rows += sum(length > 0 for length in lengths)
        self.stats.offered += sum(most_of_all)
        self.stats.drafted += sum(lengths)

    def _view(self, rows: int) -> tuple[DraftBuffers, IntArray, IntArray, IntArray]:
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
            view = (buffers, columns[0, :rows], columns[1, :rows], columns[2, :rows])
            self._views[rows] = view
        return view

    def _clean_id(self, token: int) -> int:
        return token if 0 <= token < self.context.vocab_size else SEPARATOR

    def _clean(self, tokens: TokenArray) -> TokenArray:
        """A copy in which ids outside the vocabulary are separators, those beyond int32 too (hashes of images, say)."""
        given = np.asarray(tokens)
        if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
            raise InvalidRequestError(
                f"a history must be a one-dimensional array of integer token ids, got {given.dtype} {given.shape}"
            )
        if given.dtype == TOKEN_DTYPE and (given.view(np.uint32) < self.context.vocab_size).all():
            return given.copy()
        inside = (given >= 0) & (given < self.context.vocab_size)
        cleaned = np.full(len(given), SEPARATOR, TOKEN_DTYPE)
        # Chosen before the cast, which would turn 2**32 + 5 into 5.
        np.copyto(cleaned, given, casting="unsafe", where=inside)
        return cleaned

    def _with_real_stops(self, request: Request) -> Request:
        """Without stop ids that no token can have; users may write any number, and arrays of them are int32."""
        stops = request.stop_token_ids
        if all(0 <= stop < self.context.vocab_size for stop in stops):
            return request
        return replace(
            request, stop_token_ids=frozenset(s for s in stops if self._clean_id(s) >= 0)
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
