"""Between SGLang's batch and a session: whose drafts, and how long. Knows neither torch nor SGLang's classes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from specplug.adapters.common.timing import StepTimes
from specplug.adapters.common.trees import first_branch
from specplug.adapters.sglang_srt.requests import (
    History,
    describe,
    has_tokens,
    needs_own_logits,
)
from specplug.session import Session
from specplug.types import LENGTH_DTYPE, TOKEN_DTYPE, IntArray, TokenArray

#: Steps that may fail in the adapter itself before it stops trying.
MAX_FAULTS = 8


class Drafts(NamedTuple):
    """The drafts of one step.

    Attributes:
        tokens: int32 ``[B, K]``; what lies behind a row's length is 0.
        lengths: int32 ``[B]``.
        parents: int32 ``[B, K]`` if any row branches, else None.
    """

    tokens: TokenArray
    lengths: IntArray
    parents: IntArray | None = None


def no_drafts(rows: int, width: int) -> Drafts:
    """Plain decoding for ``rows`` requests."""
    return Drafts(np.zeros((rows, width), TOKEN_DTYPE), np.zeros(rows, LENGTH_DTYPE))


class Drafter:
    """Drafts for SGLang's decode batches. Whatever goes wrong in here costs drafts: no method raises.

    State is keyed by the request *object*: SGLang lets clients choose ids, and choose the same one twice.

    Args:
        build: makes the session; called again when the cache is flushed. None on a rank that takes drafts from
            another, where only the histories are kept.
        vocab_size: number of token ids.
        width: the most draft tokens per row.
        trees: whether branching drafts can be verified; otherwise their first branch is used.
        log: where complaints go.
    """

    def __init__(
        self,
        build: Callable[[], Session] | None,
        vocab_size: int,
        width: int,
        trees: bool,
        log: logging.Logger,
    ) -> None:
        self.width = width
        self.faults = 0
        self.withheld = 0
        self.times = StepTimes()
        self._build = build
        self._vocab_size = vocab_size
        self._trees = trees
        self._log = log
        self._histories: dict[str, History] = {}
        self._quiet: set[str] = set()
        self.session = build() if build is not None else None

    def histories(self, reqs: Sequence[Any], extras: Sequence[list[int]]) -> list[TokenArray]:
        """Per row all tokens, int32 ``[n]``; ``extras`` are tokens that SGLang has not put into the output yet."""
        try:
            self._leave(reqs)
            rows = []
            for req, extra in zip(reqs, extras, strict=True):
                known = self._histories.get(req.rid)
                if known is None or known.req is not req:
                    self._begin(req)
                    known = self._histories[req.rid]
                rows.append(known.follow(extra))
            return rows
        except Exception:  # noqa: BLE001  verification needs the tokens even where drafting failed
            self.fault("histories", reqs)
            return [
                History(req, self._vocab_size).follow(extra)
                for req, extra in zip(reqs, extras, strict=True)
            ]

    def draft(
        self, reqs: Sequence[Any], histories: Sequence[TokenArray], sound: Sequence[bool]
    ) -> Drafts:
        """Drafts for a decode batch; rows that are not ``sound`` (their tokens do not add up) get none."""
        drafts = no_drafts(len(reqs), self.width)
        session = self.session
        if session is None or session.faulted or self.faults >= MAX_FAULTS:
            return drafts
        try:
            rows = [
                row for row, req in enumerate(reqs) if sound[row] and req.rid not in self._quiet
            ]
            self.withheld += len(reqs) - len(rows)
            if not rows:
                return drafts
            out = session.step([reqs[r].rid for r in rows], [histories[r] for r in rows])
            return self._filled(drafts, rows, out.tokens, out.lengths, out.parents)
        except Exception:  # noqa: BLE001  a draft is never worth a request: this step decodes plainly
            self.fault("draft", reqs)
            return no_drafts(len(reqs), self.width)

    def finished(self, rid: str) -> None:
        """A request ended by itself; its text may serve others, what the last step said included."""
        self._end(rid, keep=True, ended=True)

    def flush(self) -> None:
        """The cache was emptied: forget every request and all that was learned but what a file keeps over restarts."""
        self._histories.clear()
        self._quiet.clear()
        if self._build is None:
            return
        try:
            if self.session is not None:
                self.session.close()
            self.session = self._build()
        except Exception:  # noqa: BLE001  flushing must not take the server down
            self.fault("flush", ())
            self.session = None

    def fault(self, where: str, reqs: Sequence[Any]) -> None:
        """Count an exception of ours, and start its requests afresh."""
        self.faults += 1
        if self.faults == 1:
            self._log.exception(
                "specplug: %s failed; answers are not affected, this step gets no drafts (later failures are "
                "only counted)",
                where,
            )
        if self.faults == MAX_FAULTS:
            self._log.error(
                "specplug: %d failures, nothing is drafted any more in this process", MAX_FAULTS
            )
        for req in reqs:
            self._end(req.rid, keep=False)

    def _begin(self, req: Any) -> None:
        """Note a request; the session meets it in :meth:`draft`."""
        self._end(req.rid, keep=True)
        self._histories[req.rid] = History(req, self._vocab_size)
        session = self.session
        if session is None:
            return
        if not has_tokens(req) or needs_own_logits(req):
            self._quiet.add(req.rid)
            return
        try:
            request, complaint = describe(req)
            if complaint:
                self._log.warning("specplug: request %s: %s; ignored", req.rid, complaint)
            session.begin(request, self._histories[req.rid].follow([]))
        except Exception:  # noqa: BLE001  a request that cannot be described is decoded plainly
            self.fault("begin", ())
            self._quiet.add(req.rid)

    def _leave(self, reqs: Sequence[Any]) -> None:
        """Requests that left the batch without an end: aborted ones may serve others, retracted ones come back."""
        present = {req.rid for req in reqs}
        for rid in [r for r in self._histories if r not in present]:
            retracted = bool(getattr(self._histories[rid].req, "is_retracted", False))
            self._end(rid, keep=not retracted)

    def _end(self, rid: str, keep: bool, ended: bool = False) -> None:
        history = self._histories.pop(rid, None)
        self._quiet.discard(rid)
        try:
            if self.session is not None:
                last = history.follow([]) if ended and history is not None else None
                self.session.finish(rid, keep, last)
        except Exception:  # noqa: BLE001  the state that failed may fail again; its request still must go on
            self.faults = MAX_FAULTS

    def _filled(
        self,
        drafts: Drafts,
        rows: list[int],
        tokens: TokenArray,
        lengths: IntArray,
        parents: IntArray | None,
    ) -> Drafts:
        branching = parents is not None and self._trees
        nodes = np.tile(np.arange(-1, self.width - 1, dtype=LENGTH_DTYPE), (len(drafts.lengths), 1))
        for i, row in enumerate(rows):
            length = int(min(lengths[i], self.width))
            taken: IntArray = np.arange(length, dtype=LENGTH_DTYPE)
            if parents is not None and not self._trees:
                taken = first_branch(parents[i, :length])
            drafts.tokens[row, : len(taken)] = tokens[i, taken]
            drafts.lengths[row] = len(taken)
            if branching and parents is not None:
                nodes[row, :length] = parents[i, :length]
        return Drafts(drafts.tokens, drafts.lengths, nodes if branching else None)
