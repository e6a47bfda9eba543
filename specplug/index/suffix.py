"""The suffix drafter's state: request streams, the store of finished outputs and the model that ranks candidates.

Requests that run at the same time read each other's streams, see :mod:`specplug.kernels.live`.

Ownership: the arrays belong to this class; kernels change them in place. Memory: 22 bytes per token of a live
request in pages of 64 tokens, the store's bytes within its budget, 5 MB of tables, and for each slot a log of the
last two drafts (112 kB at 16 draft tokens), a table of the last places of tokens (16 kB) and 4 kB of the table of
running answers (64 kB to 1 MB in all).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.errors import InvalidRequestError
from specplug.index.arrays import copy_model, grow_slots, new_scratch, new_state
from specplug.index.given import as_tokens, check_buffers, wrong_offsets
from specplug.index.helpers import Helpers
from specplug.index.templates import Namespaces, Templates
from specplug.kernels import layout
from specplug.kernels._jit import direct
from specplug.kernels.drafting import draft_batch
from specplug.kernels.forms import as_kernel_array
from specplug.kernels.handle import Packed
from specplug.kernels.learning import learn_batch, observe_batch
from specplug.kernels.requests import finish_request, start_request
from specplug.types import Context, DraftBuffers, IntArray, Observed, TokenArray

#: Batches of at least so many rows are shared among threads; handing work over costs some 50 us.
SHARED_ROWS = 64

_NO_STOPS: TokenArray = np.zeros(0, np.int32)
_ARRAY, _TOKENS = np.ndarray, np.dtype(np.int32)

#: Tokens of a prompt that are stored at most, so that no end of a request takes long.
MOST_PROMPT = 1 << 14


class SuffixIndex:
    """See the module. Not thread-safe. Building the first one of a process compiles or loads the kernels.

    Args:
        context: limits of the engine process.
        store_budget: bytes for the outputs of finished requests.
        cost: what verifying one more draft token costs, in units of a plain step.
        common: the namespace whose outputs serve requests of all namespaces, beside those of their own.
        shows: whether requests draft from answers of others that are still being written; never without a store.
    """

    def __init__(
        self,
        context: Context,
        store_budget: int,
        cost: float,
        common: str | None = None,
        shows: bool = True,
    ) -> None:
        self.context = context
        self.cost = float(cost)
        self.namespaces = Namespaces(kept=common)
        self._templates = Templates(layout.N_MODELS)
        self._run = _warm_up()
        # Looked up once: a step has no other work in Python than to find its kernels and arrays.
        self._take_in, self._rank = self._run.observe, self._run.draft
        self._packed = Packed(
            new_state(context, store_budget, shows),
            [new_scratch(context) for _ in range(1, context.threads)],
        )
        self._shows = self.state.slots.live.shape[1] > 0
        self._helpers = Helpers(context.threads)
        self._shares = context.threads > 1
        self._handle = self._packed.handle
        if common is not None:
            self.state.store.numbers[layout.S_COMMON] = self.namespaces.number_of(common)
        # Drafts came after the last outcome was noted: it is time to learn from it.
        self._drafted = False
        self._chains = self.state.calls.parents
        # The caller's arrays that kernels know by address, see `_bind_observed` and `_bind_drafts`.
        self._observed: tuple[object, object] = (None, None)
        self._drafts: tuple[object, object, object] = (None, None, None)
        # For a reader in another thread: positions of the store below `settled` are written, those from `claimed`
        # on are not being written. Kernels move the store's own end while they run.
        self.settled = self.claimed = layout.BLOCK

    @property
    def state(self) -> layout.State:
        """The arrays."""
        return self._packed.state

    def start(
        self, slot: int, namespace: str, prompt_length: int, history: TokenArray, shows: bool = True
    ) -> None:
        """Begin a stream in ``slot``, freeing what it held; a long ``history`` is indexed over several calls.

        With ``shows`` other requests of the namespace draft from its output while it is written.
        """
        slot = self._check_slot(slot)
        history = as_tokens(history, "the history of a request")
        self._check_room(slot, len(history))
        number = self.namespaces.number_of(namespace)
        model, taken = self._templates.model_of(number, history)
        self.learn()
        if taken:
            copy_model(self.state.model, model)
        while missing := self._run.start(
            self._handle,
            slot,
            int(prompt_length),
            number,
            model,
            history,
            self._shows and bool(shows),
        ):
            self._grow(missing)

    def observe(self, observed: Observed) -> None:
        """Index new tokens, and note how the last drafts fared; O(1) per token."""
        if self._shares:
            self._helpers.wait()
        slots, offsets, tokens = observed
        known = self._observed
        if slots is not known[0] or offsets is not known[1]:
            self._bind_observed(slots, offsets, len(tokens))
        # The compiled code looks at the address only.
        if not (
            type(tokens) is _ARRAY
            and tokens.dtype is _TOKENS
            and tokens.ndim == 1
            and tokens.flags.carray
        ):
            tokens = as_tokens(tokens, "Observed.tokens")
        while missing := self._take_in(self._handle, tokens, self.cost):
            if missing < 0:
                self._refuse_observed(len(tokens))
            self._grow(missing)
        self._drafted = False

    def draft(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """Draft for a batch; bounded work per draft token, whatever the length of the history.

        A large batch is shared among the threads of the context, which afterwards learn while the target works. The
        drafts are the same with any number of threads. With ``out.parents`` the drafts are trees.
        """
        if self._drafted:
            self.learn()
        known = self._drafts
        if slots is not known[0] or ceilings is not known[1] or out is not known[2]:
            self._bind_drafts(slots, ceilings, out)
        rows = len(slots)
        if rows < SHARED_ROWS or not self._shares:
            failed = self._rank(self._handle, 0, rows, self.cost)
        else:
            failed = self._helpers.share(draft_batch, self._packed.handles, rows, self.cost)
            self._helpers.start(learn_batch, self._handle, self.cost)
        self._drafted = True
        if failed:
            self._check_slots(self.state.calls.slots)

    def learn(self) -> None:
        """Learn from how the last drafts fared. The next call that needs it does so if nobody has."""
        self._helpers.wait()
        self._run.learn(self._handle, self.cost)

    def finish(
        self, slot: int, keep: bool, stop_ids: frozenset[int], with_prompt: bool = False
    ) -> None:
        """Free a stream; with ``keep`` its output, up to the first stop token, joins the store.

        With ``with_prompt`` the prompt does too, as one text with the output: the last :data:`MOST_PROMPT` tokens.
        """
        slot = self._check_slot(slot)
        self.learn()
        stops = np.fromiter(stop_ids, np.int32, len(stop_ids)) if stop_ids else _NO_STOPS
        length = int(self.state.slots.numbers[slot, layout.N_LENGTH])
        self.claimed = self.settled + length + 2 * layout.BLOCK
        prompt = MOST_PROMPT if with_prompt else 0
        self._run.finish(self._handle, slot, bool(keep), stops, prompt)
        self.settled = self.claimed = int(self.state.store.numbers[layout.S_END])

    def store_text(self, namespace: str, text: TokenArray) -> None:
        """Store ``text`` as if a request had said it. Needs slot 0, so no request may be live there."""
        if self.state.slots.numbers[0, layout.N_LENGTH]:
            raise InvalidRequestError("text can only be stored while slot 0 is free")
        text = as_tokens(text, "a text to be stored")
        number = self.namespaces.number_of(namespace)
        room = min(layout.LINKED_PER_CALL, self.state.slots.pages.shape[1] * layout.PAGE)
        for begin in range(0, len(text), room):
            piece = text[begin : begin + room]
            while missing := self._run.start(self._handle, 0, 0, number, 0, piece, False):
                self._grow(missing)
            self.finish(0, True, frozenset())

    def tokens(self, slot: int) -> TokenArray:
        """A copy of the stream of ``slot``."""
        slot = self._check_slot(slot)
        slots = self.state.slots
        length = int(slots.numbers[slot, layout.N_LENGTH])
        used = slots.pages[slot, : -(-length // layout.PAGE)]
        return slots.tokens.reshape(-1, layout.PAGE)[used].reshape(-1)[:length].copy()

    @property
    def store_bytes(self) -> int:
        """Bytes of the store's arrays; constant, never above the budget. 0 if that is too small for a store."""
        store = self.state.store
        return sum(a.nbytes for a in store) if len(store.tokens) else 0

    @property
    def stored_tokens(self) -> int:
        """Tokens of finished outputs that still exist, padding included."""
        store = self.state.store
        return min(len(store.tokens), int(store.numbers[layout.S_END]) - layout.BLOCK)

    @property
    def evicted_tokens(self) -> int:
        """Tokens of finished outputs that were overwritten, padding included."""
        return int(self.state.store.numbers[layout.S_END]) - layout.BLOCK - self.stored_tokens

    @property
    def store_capacity(self) -> int:
        """The most tokens that the store can hold."""
        return len(self.state.store.tokens)

    @property
    def live_tokens(self) -> int:
        """Tokens of all running requests."""
        return int(self.state.slots.numbers[:, layout.N_LENGTH].sum())

    @property
    def live_bytes(self) -> int:
        """Bytes of the pages that running requests hold, the unused end of each last page included."""
        slots = self.state.slots
        per_page = sum(a.nbytes for a in (slots.tokens, slots.links, slots.heads)) // len(
            slots.free
        )
        in_use = len(slots.free) - int(slots.free_count[0])
        return in_use * (per_page + slots.pages.itemsize)

    def state_digest(self) -> bytes:
        """Of streams, store and model: equal where later drafts will be. Reads the whole state."""
        from specplug.index.invariants import state_digest

        self.learn()
        return state_digest(self.state)

    def check_invariants(self) -> str:
        """Recount everything by brute force; "" or a sentence naming the broken invariant."""
        from specplug.index.invariants import broken_invariant

        self._helpers.wait()
        return broken_invariant(self.state)

    def _check_slot(self, slot: int) -> int:
        if not 0 <= slot < self.context.max_requests:
            raise InvalidRequestError(
                f"slot must lie in 0 .. {self.context.max_requests - 1} (Context.max_requests), got {slot}"
            )
        return int(slot)

    def _check_slots(self, slots: IntArray) -> None:
        for slot in slots.tolist():
            self._check_slot(slot)

    def _bind(self, group: str, name: str, array: NDArray[Any]) -> None:
        self._packed.bind(group, name, array)
        self._handle = self._packed.handle

    def _bind_observed(self, slots: IntArray, offsets: NDArray[np.int64], most: int) -> None:
        """Tell kernels where the caller's arrays lie; most callers use the same ones at each step."""
        bound, ends = as_kernel_array(slots, np.int32), as_kernel_array(offsets, np.int64)
        if len(ends) != len(bound) + 1:
            raise wrong_offsets(len(bound), most, ends)
        self._bind("calls", "observed", bound)
        self._bind("calls", "offsets", ends)
        # What had to be copied would have to be copied anew at the next call.
        same = bound is slots and ends is offsets
        self._observed = (slots, offsets) if same else (None, None)

    def _bind_drafts(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        bound, limits = as_kernel_array(slots, np.int32), as_kernel_array(ceilings, np.int32)
        self._drafts = (None, None, None)
        if len(limits) != len(bound):
            raise InvalidRequestError(f"got {len(limits)} ceilings for {len(bound)} slots")
        check_buffers(out, len(bound))
        arrays: tuple[NDArray[Any], ...] = (
            bound,
            limits,
            out.tokens,
            out.survival,
            out.lengths,
        )
        for name, array in zip(layout.Calls._fields, arrays, strict=False):
            self._bind("calls", name, array)
        self._bind("calls", "parents", self._chains if out.parents is None else out.parents)
        if bound is slots and limits is ceilings:
            self._drafts = (slots, ceilings, out)

    def _refuse_observed(self, count: int) -> None:
        """Say what a kernel has found wrong with the arrays that it was given."""
        calls = self.state.calls
        self._check_slots(calls.observed)
        ends = calls.offsets.tolist()
        if ends[0] < 0 or ends[-1] > count:
            raise wrong_offsets(len(calls.observed), count, calls.offsets)
        lengths = self.state.slots.numbers[calls.observed, layout.N_LENGTH].tolist()
        for slot, length, start, end in zip(
            calls.observed.tolist(), lengths, ends, ends[1:], strict=False
        ):
            if end < start:
                raise InvalidRequestError(f"Observed.offsets must not descend, got {ends}")
            self._check_room(slot, length + end - start)
        raise InvalidRequestError(f"Observed.offsets must not descend, got {ends}")

    def _check_room(self, slot: int, length: int) -> None:
        """Refuse what the page table of a slot cannot hold (a little more than ``max_length``)."""
        room = self.state.slots.pages.shape[1] * layout.PAGE
        if length > room:
            raise InvalidRequestError(
                f"the request in slot {slot} would have {length} tokens, but Context.max_length is "
                f"{self.context.max_length}; build the proposer with the length limit of the engine"
            )

    def _grow(self, missing: int) -> None:
        """Make room for at least ``missing`` more pages, by doubling."""
        slots = self.state.slots
        pages = len(slots.free)
        grown = grow_slots(slots, max(2 * pages, pages + missing))
        for name in layout.Slots._fields:
            self._bind("slots", name, getattr(grown, name))


class _Kernels(NamedTuple):
    """The kernels of a step and of a request's life, as they are called in service."""

    start: Callable[..., int]
    observe: Callable[..., int]
    draft: Callable[..., int]
    learn: Callable[..., None]
    finish: Callable[..., None]


@functools.cache
def _warm_up() -> _Kernels:
    """Run every kernel once on a tiny state, so that none is compiled while a request waits."""
    context = Context(vocab_size=8, max_length=64, max_draft=2, max_requests=2)
    packed = Packed(new_state(context, 4096, True))
    tokens = np.zeros(8, np.int32)
    start_request(packed.handle, 0, 4, 0, 0, tokens, False)
    draft_batch(packed.handle, 0, 0, 0.1)
    learn_batch(packed.handle, 0.1)
    observe_batch(packed.handle, tokens[:0], 0.1)
    finish_request(packed.handle, 0, True, _NO_STOPS, 0)
    return _Kernels(
        direct(start_request),
        direct(observe_batch),
        direct(draft_batch),
        direct(learn_batch),
        direct(finish_request),
    )
