"""Slow twin of :mod:`specplug.session` driving the slow suffix drafter: the definition of what requests get.

Everything is kept as whole histories in dicts; what is new is found by comparing lengths, as in the fast session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specplug.reference.drafting import draft_row
from specplug.reference.learning import learn_batch, observe_batch
from specplug.reference.store import store_output
from specplug.reference.streams import append_tokens, begin_stream, free_stream, index_some
from specplug.reference.suffix_state import LINKED_PER_CALL, SEPARATOR, SuffixState
from specplug.reference.templates import Templates, copy_model
from specplug.types import Context, Request


@dataclass
class _Live:
    request: Request
    serial: int
    slot: int
    history: list[int] = field(default_factory=list)


class Session:
    """Requests by id, in the order in which they were last stepped."""

    def __init__(
        self, state: SuffixState, context: Context, cost: float, prompt_kept: int = 0
    ) -> None:
        self.state = state
        self.context = context
        self.cost = cost
        self.prompt_kept = prompt_kept
        self.live: dict[str, _Live] = {}
        self.started = 0
        self.namespaces: dict[str, int] = {}
        self.templates = Templates()

    def begin(self, request: Request, history: Sequence[int]) -> None:
        """Start a request, ending a live one of the same id, or the one stepped longest ago if all slots are taken."""
        self.finish(request.request_id, keep=False)
        if len(self.live) == self.context.max_requests:
            self.finish(next(iter(self.live)), keep=False)
        slot = min(set(range(self.context.max_requests)) - {e.slot for e in self.live.values()})
        tokens = [self._clean(t) for t in history]
        self.live[request.request_id] = _Live(request, self.started, slot, tokens)
        self.started += 1
        namespace = self.namespaces.setdefault(request.namespace, len(self.namespaces))
        learn_batch(self.state, self.cost)
        model, taken = self.templates.model_of(namespace, tokens)
        if taken:
            copy_model(self.state, model)
        begin_stream(self.state, slot, request.prompt_length, namespace, model, request.shares)
        append_tokens(self.state, slot, tokens)
        index_some(self.state, slot, LINKED_PER_CALL)

    def step(self, histories: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """Observe what is new, oldest request first, and draft for every row."""
        for request_id in [r for r in histories if r in self.live]:
            self.live[request_id] = self.live.pop(request_id)
        for request_id in sorted(histories):
            self._sync(request_id, histories[request_id])
        news = {}
        for request_id in sorted(histories, key=lambda r: self.live[r].serial):
            entry = self.live[request_id]
            new = [self._clean(t) for t in histories[request_id][len(entry.history) :]]
            if new:
                news[entry.slot] = new
                entry.history += new
        observe_batch(self.state, list(news), list(news.values()), self.cost)
        return {request_id: self._draft(self.live[request_id]) for request_id in histories}

    def finish(self, request_id: str, keep: bool = True) -> bool:
        """End a request; with ``keep`` its output, up to the first stop token, joins the store."""
        entry = self.live.pop(request_id, None)
        if entry is None:
            return False
        learn_batch(self.state, self.cost)
        start, end = entry.request.prompt_length, len(entry.history)
        for position in range(start, end):
            if entry.history[position] in entry.request.stop_token_ids:
                end = position + 1
                break
        start = max(0, start - self.prompt_kept)
        if keep and entry.request.shares and end > start:
            store_output(self.state, entry.slot, start, end)
        free_stream(self.state, entry.slot)
        return True

    def _sync(self, request_id: str, history: Sequence[int]) -> None:
        entry = self.live.get(request_id)
        if entry is None:
            self.begin(Request(request_id, prompt_length=len(history)), history)
        else:
            known = len(entry.history)
            shrunk = len(history) < known
            if shrunk or (known and self._clean(history[known - 1]) != entry.history[-1]):
                prompt_length = min(entry.request.prompt_length, len(history))
                self.begin(replace(entry.request, prompt_length=prompt_length), history)

    def _draft(self, entry: _Live) -> list[int]:
        tokens, _ = draft_row(self.state, entry.slot, self._ceiling(entry), self.cost)
        for position, token in enumerate(tokens):
            if token in entry.request.stop_token_ids:
                return tokens[: position + 1]
        return tokens

    def _ceiling(self, entry: _Live) -> int:
        known, request = len(entry.history), entry.request
        rooms = [self.context.max_draft, self.context.max_length - known - 1]
        if request.max_output is not None:
            rooms.append(request.prompt_length + request.max_output - known - 1)
        if request.draft_limit is not None:
            rooms.append(request.draft_limit)
        return max(0, min(rooms))

    def _clean(self, token: int) -> int:
        return int(token) if 0 <= token < self.context.vocab_size else SEPARATOR
