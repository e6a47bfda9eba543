"""The suffix drafter's state: request streams, the store of finished outputs and the model that ranks candidates.

Ownership: the arrays belong to this class; kernels change them in place. Memory: 22 bytes per token of a live
request in pages of 64 tokens, the store's bytes within its budget, 9 MB of tables, and a log of the last draft of each
slot (62 kB at 16 draft tokens).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specplug.errors import InvalidRequestError
from specplug.index.arrays import (
    copy_model,
    grow_slots,
    new_log,
    new_model,
    new_scratch,
    new_slots,
    new_store,
)
from specplug.index.templates import Namespaces, Templates
from specplug.kernels import layout
from specplug.kernels.drafting import draft_batch, observe_batch
from specplug.kernels.handle import pack
from specplug.kernels.store import store_output
from specplug.kernels.streams import append_tokens, begin_stream, free_stream, index_some
from specplug.types import (
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    TokenArray,
    allocate_drafts,
)


class SuffixIndex:
    """See the module. Not thread-safe. Building the first one of a process compiles or loads the kernels.

    Args:
        context: limits of the engine process.
        store_budget: bytes for the outputs of finished requests.
        cost: what verifying one more draft token costs, in units of a plain step.
    """

    def __init__(self, context: Context, store_budget: int, cost: float) -> None:
        self.context = context
        self.cost = float(cost)
        self._namespaces = Namespaces()
        self._templates = Templates(layout.N_MODELS)
        _warm_up()
        self.state = layout.State(
            new_slots(context),
            new_store(store_budget),
            new_model(),
            new_log(context),
            new_scratch(context),
        )
        self.handle = pack(self.state)

    def start(self, slot: int, namespace: str, prompt_length: int, history: TokenArray) -> None:
        """Begin a stream in ``slot``, freeing what it held; a long ``history`` is indexed over several calls."""
        slot = self._check_slot(slot)
        history = as_kernel_array(history, np.int32)
        self._check_room(slot, len(history))
        slots = self.state.slots
        free_stream(slots, slot)
        number = self._namespaces.number_of(namespace)
        model, taken = self._templates.model_of(number, history)
        if taken:
            copy_model(self.state.model, model)
        begin_stream(slots, slot, int(prompt_length), number, model)
        self._reserve(len(history))
        append_tokens(self.state.slots, slot, history)
        index_some(self.state.slots, slot, layout.LINKED_PER_CALL)

    def observe(self, observed: Observed) -> None:
        """Learn from and index new tokens; O(1) per token."""
        slots = as_kernel_array(observed.slots, np.int32)
        offsets = as_kernel_array(observed.offsets, np.int64)
        tokens = as_kernel_array(observed.tokens, np.int32)
        self._check_observed(slots, offsets, tokens)
        self._reserve(len(tokens) + layout.PAGE * len(slots))
        observe_batch(self.handle, slots, offsets, tokens, self.cost)

    def draft(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """Draft for a batch; bounded work per draft token, whatever the length of the history."""
        slots = as_kernel_array(slots, np.int32)
        self._check_slots(slots)
        _check_buffers(out, len(slots))
        widest = min(self.context.max_draft, out.tokens.shape[1])
        ceilings = np.minimum(as_kernel_array(ceilings, np.int32), np.int32(widest))
        if len(ceilings) != len(slots):
            raise InvalidRequestError(f"got {len(ceilings)} ceilings for {len(slots)} slots")
        draft_batch(self.handle, slots, ceilings, self.cost, out.tokens, out.survival, out.lengths)

    def finish(self, slot: int, keep: bool, stop_ids: frozenset[int]) -> None:
        """Free a stream; with ``keep`` its output, up to the first stop token, joins the store."""
        slot = self._check_slot(slot)
        slots = self.state.slots
        if keep and len(self.state.store.tokens):
            start, end = self._output(slot, stop_ids)
            if end > start:
                store_output(slots, slot, self.state.store, start, end)
        free_stream(slots, slot)

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

    def check_invariants(self) -> str:
        """Recount everything by brute force; "" or a sentence naming the broken invariant."""
        from specplug.index.invariants import broken_invariant

        return broken_invariant(self.state)

    def _output(self, slot: int, stop_ids: frozenset[int]) -> tuple[int, int]:
        numbers = self.state.slots.numbers[slot]
        start, end = int(numbers[layout.N_PROMPT]), int(numbers[layout.N_LENGTH])
        if stop_ids and end > start:
            found = np.isin(
                self.tokens(slot)[start:], np.fromiter(stop_ids, np.int32, len(stop_ids))
            )
            if found.any():
                end = start + int(np.argmax(found)) + 1
        return start, end

    def _check_slot(self, slot: int) -> int:
        if not 0 <= slot < self.context.max_requests:
            raise InvalidRequestError(
                f"slot must lie in 0 .. {self.context.max_requests - 1} (Context.max_requests), got {slot}"
            )
        return int(slot)

    def _check_slots(self, slots: IntArray) -> None:
        # Kernels do not check bounds: a wrong slot would write into another request's text.
        for slot in slots.tolist():
            self._check_slot(slot)

    def _check_observed(
        self, slots: IntArray, offsets: NDArray[np.int64], tokens: TokenArray
    ) -> None:
        self._check_slots(slots)
        ends = offsets.tolist()
        if len(ends) != len(slots) + 1 or ends[0] < 0 or ends[-1] > len(tokens):
            raise InvalidRequestError(
                f"Observed.offsets must hold {len(slots) + 1} ascending numbers from 0 to at most {len(tokens)}, "
                f"got {ends}"
            )
        lengths = self.state.slots.numbers[slots, layout.N_LENGTH].tolist()
        for slot, length, start, end in zip(slots.tolist(), lengths, ends, ends[1:], strict=False):
            if end < start:
                raise InvalidRequestError(f"Observed.offsets must not descend, got {ends}")
            self._check_room(slot, length + end - start)

    def _check_room(self, slot: int, length: int) -> None:
        """Refuse what the page table of a slot cannot hold (a little more than ``max_length``)."""
        room = self.state.slots.pages.shape[1] * layout.PAGE
        if length > room:
            raise InvalidRequestError(
                f"the request in slot {slot} would have {length} tokens, but Context.max_length is "
                f"{self.context.max_length}; build the proposer with the length limit of the engine"
            )

    def _reserve(self, tokens: int) -> None:
        """Make sure that ``tokens`` more tokens find free pages; grows by doubling."""
        slots = self.state.slots
        needed = tokens // layout.PAGE + 1
        if needed <= slots.free_count[0]:
            return
        pages = len(slots.free)
        grown = max(2 * pages, pages + needed)
        self.state = self.state._replace(slots=grow_slots(slots, grown))
        self.handle = pack(self.state)


def as_kernel_array(values: ArrayLike, dtype: type[np.generic]) -> NDArray[Any]:
    """``values`` in the one form that the kernels are compiled for: contiguous, aligned, writable.

    Any other form would be compiled anew, in the middle of a request.
    """
    array = np.ascontiguousarray(values, dtype)
    return array if array.flags.carray else array.copy()


def _check_buffers(out: DraftBuffers, rows: int) -> None:
    for name, array, dtype in (
        ("tokens", out.tokens, np.int32),
        ("survival", out.survival, np.float64),
        ("lengths", out.lengths, np.int32),
    ):
        if array.dtype != dtype or not array.flags.carray or len(array) < rows:
            raise InvalidRequestError(
                f"draft buffer {name!r} must be a contiguous, writable {np.dtype(dtype).name} array of at least {rows} "
                f"rows, got {array.dtype} {array.shape}; specplug.types.allocate_drafts makes such buffers"
            )


@functools.cache
def _warm_up() -> None:
    """Run every kernel once on a tiny state, so that none is compiled while a request waits."""
    context = Context(vocab_size=8, max_length=64, max_draft=2, max_requests=2)
    state = layout.State(
        new_slots(context), new_store(4096), new_model(), new_log(context), new_scratch(context)
    )
    tokens = np.zeros(8, np.int32)
    begin_stream(state.slots, 0, 4, 0, 0)
    append_tokens(state.slots, 0, tokens)
    index_some(state.slots, 0, 8)
    slots, ceilings = np.zeros(1, np.int32), np.full(1, 2, np.int32)
    drafts = allocate_drafts(1, 2)
    draft_batch(pack(state), slots, ceilings, 0.1, drafts.tokens, drafts.survival, drafts.lengths)
    observe_batch(pack(state), slots, np.array([0, 2], np.int64), tokens[:2], 0.1)
    store_output(state.slots, 0, state.store, 4, 8)
    free_stream(state.slots, 0)
