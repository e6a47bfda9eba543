"""Drafts from one datastore (or one per namespace) for all requests of an engine process.

Keeps of every request its last 32 tokens and its last draft, whatever its length; the corpus stays in the mapped file.
"""

from __future__ import annotations

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from specplug.errors import DatastoreError, InvalidRequestError
from specplug.index.datastore_format import PLACEHOLDER
from specplug.index.datastore_format import layout as plan
from specplug.index.given import as_tokens, check_buffers, wrong_offsets
from specplug.index.volume import Volume, log
from specplug.kernels import datastore_layout as layout
from specplug.kernels._jit import direct
from specplug.kernels.forms import as_kernel_array
from specplug.kernels.lookup import ANY_LENGTH
from specplug.kernels.rest import begin_reader, draft_readers, observe_readers
from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
    allocate_drafts,
)

#: Datastores of namespaces that are open at once; the one used longest ago is closed.
MOST_OPEN = 256
#: Numba hoards some 20 kB of small objects over the first few hundred calls of a kernel with named tuples. Better now
#: than in service, where it would look like a leak.
WARM_CALLS = 400
#: What the adapter of an engine writes before the namespace that a client asked for.
_ASKED = "namespace="


def new_readers(context: Context, branches: int) -> layout.Readers:
    """Nothing known of any request."""
    n = context.max_requests
    nodes = (context.max_draft + 1) * branches
    # Written, not only reserved: the first steps would wait for the system to supply these pages.
    return layout.Readers(
        np.full((n, layout.MAX_DEPTH), 0, np.int32),
        np.tile(np.array([0, -1], np.int64), (n, 1)),
        np.full((n, nodes, layout.NODE_FIELDS), 0, np.int64),
    )


def new_model() -> layout.Model:
    """Estimates before anything was seen: long matches and undivided evidence are trusted more."""
    lengths = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9.5, 12, 15.5, 20.5, 28, 32])
    shares = np.array([0.05, 0.17, 0.32, 0.5, 0.7, 0.87, 0.97, 1.0])
    rate = np.minimum(0.97, 0.25 + 0.6 * (1 - np.exp(-lengths / 4)))[:, None] * shares
    coarse = np.stack([4.0 * rate.ravel(), np.full(layout.COARSE_CLASSES, 4.0)], axis=1)
    weights = np.arange(layout.MAX_DEPTH + 1, dtype=np.float64) ** 2
    return layout.Model(np.zeros((layout.CLASSES, 2)), coarse, weights, np.array([40.0, 20.0]))


def new_scratch(max_draft: int, branches: int) -> layout.Scratch:
    """Work space for one thread."""
    n = layout.MAX_FOUND
    return layout.Scratch(
        np.zeros((n, 2), np.int64),
        np.zeros((n, max_draft + 1), np.int32),
        np.zeros((n, 3), np.int64),
        np.zeros(n),
        np.zeros((max_draft + 1) * branches),
        np.zeros(layout.MAX_DEPTH, np.uint64),
    )


class RestIndex:
    """See the module; a :class:`~specplug.protocols.Proposer`. Not thread-safe.

    Args:
        context: limits of the engine process.
        path: of a datastore; may hold :data:`PLACEHOLDER`, then every namespace has one of its own, opened when
            its first request starts, and a request of a namespace that has none gets no drafts.
        namespace: only requests of this namespace are served; None serves all.
        cost: of a draft token, in plain decoding steps.
        branches: children per node; 1 drafts chains.
        refresh: seconds between two looks for a new version.

    Raises:
        DatastoreError: there is no datastore at ``path``, or it does not fit the model.
    """

    def __init__(
        self,
        context: Context,
        path: str,
        *,
        namespace: str | None = None,
        cost: float = 0.03,
        branches: int = 1,
        refresh: float = 2.0,
    ) -> None:
        self.context, self.path, self.namespace = context, path, namespace
        self._cost, self._branches = float(cost), branches
        # A tree needs to know the alternatives; for a chain more occurrences change next to nothing.
        self._found = 24 if branches == 1 else layout.MAX_FOUND
        # Evidence goes with the square of the match: what is shorter than a quarter of the longest hardly counts.
        self._fold = 4 if branches == 1 else ANY_LENGTH
        # A worker has no tokenizer by itself: asked once, because loading one takes seconds.
        self._vocabulary = context.tokenizer() if context.tokenizer is not None else ""
        self._refresh = refresh
        self._volumes: OrderedDict[str, Volume | None] = OrderedDict()
        self._of_slot: list[Volume | None] = [None] * context.max_requests
        self.capabilities = Capabilities(trees=branches > 1)
        self.readers = new_readers(context, branches)
        self.model = new_model()
        self._scratch = new_scratch(context.max_draft, branches)
        self._parents = np.zeros((context.max_requests, context.max_draft), np.int32)
        #: One source, hence no :attr:`draft_sources`, see :class:`specplug.sources.DraftSources`.
        self.source_names, self.draft_sources = (path,), None
        self._kernels = _warm_up()
        # What the caller handed over last, and the same in the form that kernels take: most use it at each step.
        self._given: tuple[Any, ...] = (None, None, None)
        self._bound: tuple[Any, ...] = ()
        if PLACEHOLDER not in path:
            self._open("").open()

    @property
    def volumes(self) -> list[Volume]:
        """The open ones."""
        return [volume for volume in self._volumes.values() if volume is not None]

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        """See :class:`specplug.protocols.Proposer`. O(1), whatever the length of ``history``."""
        if not 0 <= slot < self.context.max_requests:
            raise InvalidRequestError(
                f"slot must be 0 .. {self.context.max_requests - 1}, got {slot}"
            )
        self._of_slot[slot] = self._volume_for(request.namespace)
        ending = as_tokens(history[-layout.MAX_DEPTH :], "the history of a request")
        self._kernels.begin(self.readers, slot, ending)

    def observe(self, observed: Observed) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        slots = as_kernel_array(observed.slots, np.int32)
        self._check_slots(slots)
        offsets = as_kernel_array(observed.offsets, np.int64)
        tokens = as_tokens(observed.tokens, "Observed.tokens")
        ends = offsets.tolist()
        if (
            offsets.shape != (len(slots) + 1,)
            or not 0 <= ends[0] <= ends[-1] <= len(tokens)
            or ends != sorted(ends)
        ):
            raise wrong_offsets(len(slots), len(tokens), offsets)
        self._kernels.observe(self.readers, self.model, slots, offsets, tokens, self._cost)

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """See :class:`specplug.protocols.Proposer`. One look-up per row."""
        volumes = list(map(self._of_slot.__getitem__, self._check_slots(slots)))
        if volumes and volumes.count(volumes[0]) == len(volumes):
            # The usual case: one datastore for all.
            shelf = None if volumes[0] is None else volumes[0].shelf()
            if shelf is None:
                out.lengths[: len(volumes)] = 0
            else:
                self._draft_rows(shelf, slots, ceilings, out)
            return
        out.lengths[: len(volumes)] = 0
        groups: dict[int, list[int]] = {}
        for row, volume in enumerate(volumes):
            if volume is not None:
                groups.setdefault(id(volume), []).append(row)
        for rows in groups.values():
            volume = volumes[rows[0]]
            shelf = None if volume is None else volume.shelf()
            if shelf is not None:
                self._draft_some(shelf, np.array(rows), slots, ceilings, out)

    def finish(self, slot: int, keep: bool) -> None:
        """See :class:`specplug.protocols.Proposer`. Nothing that a request said is kept."""
        self._of_slot[slot] = None

    def set_verify_cost(self, cost: float) -> None:
        """What verifying one more draft token costs from now on, as a fraction of a plain step."""
        self._cost = float(cost)

    def state_digest(self) -> bytes:
        """Of all that later drafts depend on besides the files, for :mod:`specplug.checksum`."""
        digest = hashlib.sha256()
        for array in (*self.readers, *self.model):
            digest.update(array.tobytes())
        return digest.digest()

    def _draft_rows(
        self, shelf: layout.Shelf, slots: IntArray, ceilings: IntArray, out: DraftBuffers
    ) -> None:
        last = self._given
        if slots is not last[0] or ceilings is not last[1] or out is not last[2]:
            self._bind(slots, ceilings, out)
        self._kernels.draft(
            *(shelf, self.readers, self.model, self._scratch, *self._bound),
            (self._found, self._fold, self._branches, self._cost),
        )

    def _bind(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        bound, limits = as_kernel_array(slots, np.int32), as_kernel_array(ceilings, np.int32)
        self._given = (None, None, None)
        if bound.ndim != 1 or limits.shape != bound.shape:
            raise InvalidRequestError(
                f"slots and ceilings must have one axis and the same length, got {bound.shape} and {limits.shape}"
            )
        if len(bound) > self.context.max_requests:
            raise InvalidRequestError(
                f"a batch has at most {self.context.max_requests} rows (Context.max_requests), got {len(bound)}; "
                "a slot may be named once"
            )
        check_buffers(out, len(bound))
        parents = self._parents if out.parents is None else out.parents
        self._bound = (bound, limits, (out.tokens, out.survival, out.lengths, parents))
        if bound is slots and limits is ceilings:  # what had to be copied has to be copied anew
            self._given = (slots, ceilings, out)

    def _draft_some(
        self,
        shelf: layout.Shelf,
        rows: IntArray,
        slots: IntArray,
        ceilings: IntArray,
        out: DraftBuffers,
    ) -> None:
        part = DraftBuffers(
            *(out.tokens[rows], out.lengths[rows], out.survival[rows]),
            None if out.parents is None else out.parents[rows],
        )
        self._draft_rows(shelf, slots[rows], ceilings[rows], part)
        out.tokens[rows], out.lengths[rows] = part.tokens, part.lengths
        out.survival[rows] = part.survival
        if out.parents is not None and part.parents is not None:
            out.parents[rows] = part.parents

    def _check_slots(self, slots: IntArray) -> list[int]:
        # Kernels do not check bounds: a wrong slot would be another request's memory.
        listed: list[int] = slots.tolist()
        most = self.context.max_requests
        if listed and not 0 <= min(listed) <= max(listed) < most:
            wrong = next(slot for slot in listed if not 0 <= slot < most)
            raise InvalidRequestError(f"slot must be 0 .. {most - 1}, got {wrong}")
        return listed

    def _volume_for(self, namespace: str) -> Volume | None:
        asked = namespace.removeprefix(_ASKED)
        if self.namespace is not None and self.namespace not in (namespace, asked):
            return None
        if PLACEHOLDER not in self.path:
            return self._volumes[""]
        if asked in self._volumes:
            self._volumes.move_to_end(asked)
            return self._volumes[asked]
        return self._open_named(asked)

    def _open_named(self, name: str) -> Volume | None:
        """The datastore of a namespace, which a client chose: never a reason to refuse its request."""
        volume: Volume | None = self._open(name)
        try:
            if volume is not None:
                volume.open()
        except DatastoreError as error:
            # Remembered, so that it is said once; looked for again when the name was forgotten.
            log.info("specplug: no datastore for namespace %r: %s", name, error)
            volume = self._volumes[name] = None
        while len(self._volumes) > MOST_OPEN:
            self._volumes.popitem(last=False)
        return volume

    def _open(self, name: str) -> Volume:
        # Quoted, so that a namespace cannot name a path outside of the place that the option gives it.
        quoted = quote(name, safe="").replace(".", "%2E") or "_"
        volume = Volume(
            *(self.path.replace(PLACEHOLDER, quoted), self.context.vocab_size, self._vocabulary),
            refresh=self._refresh,
        )
        self._volumes[name] = volume
        return volume


class _Kernels(NamedTuple):
    """Without their dispatchers, which take 4 microseconds to look at all that a draft needs."""

    begin: Callable[..., None]
    observe: Callable[..., None]
    draft: Callable[..., None]


@functools.cache
def _warm_up() -> _Kernels:
    """Run every kernel once on a tiny store, so that none is compiled while a request waits."""
    context = Context(vocab_size=2, max_length=8, max_draft=2, max_requests=1)
    sections = plan(2, 3, 1)
    meta = np.array(
        [
            *(3, 1, 2, layout.MAX_DEPTH, sections["tokens"].bits, 0),
            *(sections["entries"].bits, 1, sections["buckets"].bits, 2, 0),
        ],
        np.int64,
    )
    words = np.array([0b100000, 1, 0b110, 0], np.uint64)
    words.flags.writeable = False
    shelf = layout.Shelf(words, meta)
    readers, model, scratch = new_readers(context, 1), new_model(), new_scratch(2, 1)
    slots, ceilings = np.zeros(1, np.int32), np.full(1, 2, np.int32)
    out = allocate_drafts(1, 2)
    buffers = (out.tokens, out.survival, out.lengths, np.zeros((1, 2), np.int32))
    offsets, token = np.array([0, 1], np.int64), np.zeros(1, np.int32)
    for _ in range(WARM_CALLS):
        begin_reader(readers, 0, token)
        draft_readers(*(shelf, readers, model, scratch, slots, ceilings), buffers, (24, 4, 1, 0.1))
        observe_readers(readers, model, slots, offsets, token, 0.1)
    return _Kernels(direct(begin_reader), direct(observe_readers), direct(draft_readers))
