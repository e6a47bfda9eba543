"""The kernels of datastores and their slow twins: same bits, same order, same drafts."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specplug.datastore.sorting import sorted_entries
from specplug.index.contest import new_contest
from specplug.index.datastore_format import bits_for
from specplug.index.datastore_format import layout as plan
from specplug.index.rest import new_model, new_readers, new_scratch
from specplug.kernels import contest as contest_kernels
from specplug.kernels import contexts as context_kernels
from specplug.kernels import datastore_layout as layout
from specplug.kernels import lookup as lookup_kernels
from specplug.kernels import merging as merging_kernels
from specplug.kernels import ordering as ordering_kernels
from specplug.kernels import packed as packed_kernels
from specplug.kernels import rest as rest_kernels
from specplug.kernels.desk import Desk
from specplug.kernels.ordering import COUNTS, FEW, LARGE, SMALL
from specplug.reference import contest as contest_reference
from specplug.reference import contexts as context_reference
from specplug.reference import corpus as lists
from specplug.reference import lookup as lookup_reference
from specplug.reference import merging as merging_reference
from specplug.reference import ordering as ordering_reference
from specplug.reference import rest as rest_reference
from specplug.types import Context

VOCAB = 3
#: Few tokens, so that everything repeats; documents may be empty, or have one token.
CORPORA = st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=40), min_size=1, max_size=6).filter(
    lambda documents: any(len(document) > 1 for document in documents)
)


def build(
    corpus: list[list[int]], memory: int = 1 << 20, sparse: bool = False, vocab: int = VOCAB
) -> layout.Shelf:
    """A datastore in memory; ``sparse``: only tokens that are a last token have a bucket."""
    tokens = np.array([t for document in corpus for t in [*document, vocab]], np.int64)
    blank = plan(vocab, len(tokens), 0, listed=int(sparse))
    shelf = place(vocab, blank, (len(tokens), 0, 0), [tokens, tokens[:0], tokens[:0]])
    tally = tally_of(shelf, vocab)
    entries = np.concatenate(list(sorted_entries(shelf, tally, memory)))
    listed = len(tally.present) if sparse else 0
    starts = np.zeros((listed or vocab) + 1, np.int64)
    context_kernels.number_buckets(tally, vocab, bits_for(len(entries)) if listed else 0, starts)
    sections = plan(vocab, len(tokens), len(entries), listed=listed)
    return place(vocab, sections, (len(tokens), len(entries), listed), [tokens, entries, starts])


def tally_of(shelf: layout.Shelf, vocab: int, module: ModuleType = context_kernels) -> layout.Tally:
    """Entries by last token."""
    counts, marks = np.zeros(vocab, np.int64), np.zeros(-(-vocab // 64), np.uint64)
    present, starts = np.full(vocab, 7, np.int64), np.full(vocab + 1, 7, np.int64)
    found = module.tally_entries(shelf, counts, marks, present, starts)
    assert not marks.any()
    return layout.Tally(counts, present[:found], starts[: found + 1])


def place(
    vocab: int, sections: Any, sizes: tuple[int, int, int], values: list[Any]
) -> layout.Shelf:
    """The sections, packed one after the other. ``sizes``: tokens, entries, last tokens listed."""
    meta = [sizes[0], sizes[1], vocab, layout.MAX_DEPTH]
    words = []
    for section, numbers in zip(sections.values(), values, strict=True):
        meta += [section.bits, sum(map(len, words))]
        words.append(np.zeros(section.size // 8 + 8, np.uint64))
        packed_kernels.pack(np.asarray(numbers, np.int64), section.bits, 0, words[-1])
    meta.append(sizes[2])
    everything = np.concatenate(words)
    everything.flags.writeable = False
    return layout.Shelf(everything, np.array(meta, np.int64))


@given(corpus=CORPORA, memory=st.sampled_from([1, 500, 1 << 20]), sparse=st.booleans())
@example(corpus=[[0] * 40, [0] * 40, [0] * 39], memory=1, sparse=False)
@example(corpus=[[0] * 40, [0] * 40, [0] * 39], memory=1 << 20, sparse=True)
def test_sorting(corpus: list[list[int]], memory: int, sparse: bool) -> None:
    shelf = build(corpus, memory, sparse)
    count = int(shelf.meta[layout.ENTRIES])
    ref = lists.entries(shelf)
    ref.sort(key=lambda p: (lists.context_of(shelf, p), p))
    got = [lookup_kernels.entry_of(shelf, i) for i in range(count)]
    assert got == ref
    starts = [lookup_kernels.bucket_start(shelf, t) for t in range(VOCAB + 1)]
    lasts = [context_kernels.token_of(shelf, p - 1) for p in ref]
    assert starts == [sum(last < t for last in lasts) for t in range(VOCAB + 1)]
    assert starts == [lookup_reference.bucket_start(shelf, t) for t in range(VOCAB + 1)]


@given(
    corpus=st.lists(st.lists(st.sampled_from([0, 1, 62, 63, 64, 127, 128]), max_size=9), max_size=6)
)
@example(corpus=[[128, 127, 64, 63, 0, 0]])
@example(corpus=[[63, 63]])
@example(corpus=[[], [5]])
def test_entries_by_last_token(corpus: list[list[int]]) -> None:
    vocab = 129
    tokens = np.array([t for document in corpus for t in [*document, vocab]], np.int64)
    sizes = (len(tokens), 0, 0)
    shelf = place(vocab, plan(vocab, len(tokens), 0), sizes, [tokens, tokens[:0], tokens[:0]])
    for shift in (0, 7):
        got, ref = (
            tally_of(shelf, vocab, module) for module in (context_kernels, context_reference)
        )
        assert [part.tolist() for part in got] == [part.tolist() for part in ref]
        lasts = [first for document in corpus for first in document[:-1]]
        assert got.present.tolist() == sorted(set(lasts))
        numbers = []
        for module, tally in ((context_kernels, got), (context_reference, ref)):
            out = np.full((len(tally.present) if shift else vocab) + 1, 7, np.int64)
            module.number_buckets(tally, vocab, shift, out)
            assert not tally.counts.any()
            numbers.append(out.tolist())
        assert numbers[0] == numbers[1]
        assert numbers[0][-1] & 127 == len(lasts)


@given(corpus=CORPORA, per_key=st.integers(1, 4), two=st.booleans())
@example(corpus=[[0] * 40, [0] * 40, [0] * 39, [1, 0, 0, 0, 0, 0]], per_key=1, two=False)
@example(corpus=[[0] * 40, [0] * 40, [0] * 39, [1, 0, 0, 0, 0, 0]], per_key=1, two=True)
@example(corpus=[[0, 1, 2] * 30, [1, 2] * 8], per_key=2, two=True)
def test_rounds_of_sorting(corpus: list[list[int]], per_key: int, two: bool) -> None:
    """Each round of the kernels leaves the numbers, runs and ranks of the reference, and the last one the order."""
    shelf = build(corpus)
    size, tokens = int(shelf.meta[layout.ENTRIES]), int(shelf.meta[layout.TOKENS])
    tally = tally_of(shelf, VOCAB)
    before = tally.counts.tolist()
    bits, below, depth = 2, bits_for(tokens), layout.MAX_DEPTH
    lives: list[list[Any]] = []
    for module in (ordering_kernels, ordering_reference):
        keys = np.zeros(size, np.uint64)
        runs = np.zeros((size + VOCAB, 2), np.int32)
        module.deal_entries(shelf, tally, runs, (per_key, bits, below), keys, keys.copy())
        order = layout.Ordering(keys, keys.copy(), np.zeros(COUNTS, np.int64))
        lives.append([module, order, np.zeros(tokens, np.int32), runs, len(tally.present)])
    assert tally.counts.tolist() == before
    assert lives[0][3].tolist() == lives[1][3].tolist()
    more, compared = np.uint64(3 << below), 1 + per_key
    above = below + (per_key - 1) * bits
    while True:
        for life in lives:
            module, order, ranks, runs, count = life
            left = np.zeros((size // 2 + 1, 2), np.int32)
            life[4] = module.sort_runs(order, runs, count, (below, more, 0, above), ranks, left)
            life[3] = left
        assert lives[0][1].keys.tolist() == lives[1][1].keys.tolist(), compared
        assert lives[0][2].tolist() == lives[1][2].tolist(), compared
        got, ref = (life[3][: life[4]].tolist() for life in lives)
        assert got == ref, compared
        if compared == depth:
            break
        steps = [module.round_after(compared, depth, below, below) for module, *_ in lives]
        assert steps[0] == steps[1]
        back, further = steps[0] if two else (steps[0][0], 0)
        for module, order, ranks, runs, count in lives:
            module.rank_keys(order, runs, count, ranks, (below, back, further, below))
        assert lives[0][1].keys.tolist() == lives[1][1].keys.tolist(), compared
        compared, above = compared + max(back, further), 0
        assert ordering_kernels.bits_above(9, below) == ordering_reference.bits_above(9, below)
        more = np.uint64(ordering_kernels.bits_above(below, below) if compared < depth else 0)
    ref = sorted(lists.entries(shelf), key=lambda p: (lists.context_of(shelf, p), p))
    mask = np.uint64((1 << below) - 1)
    assert (lives[0][1].keys & mask).tolist() == ref
    for module, order, ranks, _, _ in lives:
        runs, left = np.zeros((size, 2), np.int32), np.zeros((size // 2 + 1, 2), np.int32)
        how = (per_key, bits, below, below)
        module.order_entries(shelf, tally, order, runs, left, ranks, how)
        assert (order.keys & mask).tolist() == ref


@pytest.mark.parametrize(
    "size", [2, FEW, FEW + 1, SMALL, SMALL + 1, 3 * SMALL + 1, LARGE - 1, LARGE, 2 * LARGE + 1]
)
@pytest.mark.parametrize("distinct", [1, 2, 50, 1 << 30])
def test_runs_of_any_length_are_sorted(size: int, distinct: int) -> None:
    rng = np.random.default_rng(size)
    below = bits_for(size + 2)
    keys = rng.integers(0, distinct, size).astype(np.uint64) << np.uint64(below)
    keys = np.concatenate([[99], keys | np.arange(1, size + 1, dtype=np.uint64), [7]])
    order = layout.Ordering(
        keys.astype(np.uint64), np.zeros(size + 2, np.uint64), np.zeros(COUNTS, np.int64)
    )
    left = np.zeros((size // 2 + 2, 2), np.int32)
    how = (below, ~np.uint64((1 << below) - 1), 0, 0)
    runs, ranks = np.array([[1, size + 1]], np.int32), np.zeros(size + 2, np.int32)
    ordering_kernels.sort_runs(order, runs, 1, how, ranks, left)
    assert order.keys.tolist() == [99, *sorted(keys[1:-1].astype(np.uint64).tolist()), 7]


@given(
    corpus=CORPORA,
    size=st.integers(0, 40),
    most=st.integers(1, 12),
    fold=st.sampled_from([2, 4, lookup_kernels.ANY_LENGTH]),
    kind=st.sampled_from([(3, False), (3, True), (40, True), (70_000, True)]),
    data=st.data(),
)
@example(corpus=[[0] * 40], size=40, most=3, fold=4, kind=(3, True), data=None)
@example(corpus=[[0] * 40], size=40, most=3, fold=4, kind=(70_000, True), data=None)
def test_look_up(
    corpus: list[list[int]],
    size: int,
    most: int,
    fold: int,
    kind: tuple[int, bool],
    data: st.DataObject | None,
) -> None:
    """Words of the text hold 32 tokens, 10 or 3."""
    vocab, sparse = kind
    shelf = build(corpus, sparse=sparse, vocab=vocab)
    tokens = [0] * 40
    if data is not None:
        # Mostly text of the corpus, so that matches are long; sometimes a separator or a foreign id.
        text = [token for document in corpus for token in document]
        start = data.draw(st.integers(0, len(text) - 1))
        tokens = text[start : start + 40]
        tokens += data.draw(st.lists(st.sampled_from([-1, 0, 1, 2, vocab]), max_size=3))
    row = np.array([([0] * 40 + tokens)[-40:]], np.int32)
    found = [np.zeros((layout.MAX_FOUND, 2), np.int64) for _ in range(2)]
    size = min(size, len(tokens))
    question = np.full(layout.MAX_DEPTH, 1, np.uint64)  # what an earlier search left
    limits = (most, fold)
    ref = lookup_reference.find_occurrences(shelf, row, 0, size, limits, found[1], question)
    got = lookup_kernels.find_occurrences(shelf, row, 0, size, limits, found[0], question)
    assert (got, found[0].tolist()) == (ref, found[1].tolist())


@given(
    corpus=CORPORA,
    context=st.lists(st.integers(-1, VOCAB), max_size=40),
    most=st.sampled_from([-1, 0, 3, 60]),
)
@example(corpus=[[0] * 60], context=[0] * 40, most=60)
@example(corpus=[[0, 1, 2, 0, 1, 2]], context=[0, 1], most=3)
def test_look_up_for_python(corpus: list[list[int]], context: list[int], most: int) -> None:
    shelf = build(corpus)
    got = []
    desk = Desk(shelf)
    for module, handle in ((lookup_kernels, desk.handle), (lookup_reference, desk._arrays)):
        for room in desk._arrays[2:]:
            room[:] = 1  # what an earlier search left
        count = module.find_for(handle, np.array(context, np.int32), most)
        got.append((count, desk.found.tolist()))
    assert got[0] == got[1]


class Life(NamedTuple):
    """One drafter: kernels or reference, with its own state."""

    module: ModuleType
    readers: layout.Readers
    model: layout.Model
    scratch: layout.Scratch


def new_life(module: ModuleType, width: int, branches: int) -> Life:
    context = Context(VOCAB, 100, width, 2)
    return Life(module, new_readers(context, branches), new_model(), new_scratch(width, branches))


def draft(life: Life, shelf: layout.Shelf, how: Any, ceilings: list[int], width: int) -> Any:
    rows = len(ceilings)
    out = (
        *(np.zeros((rows, width), np.int32), np.zeros((rows, width))),
        *(np.zeros(rows, np.int32), np.zeros((rows, width), np.int32)),
    )
    life.module.draft_readers(
        *(shelf, life.readers, life.model, life.scratch),
        *(np.arange(rows, dtype=np.int32), np.array(ceilings, np.int32), out, how),
    )
    return [part.tolist() for part in out]


@given(
    corpus=CORPORA,
    branches=st.integers(1, 3),
    found=st.integers(1, 12),
    fold=st.sampled_from([2, lookup_kernels.ANY_LENGTH]),
    steps=st.lists(
        st.tuples(
            st.lists(st.integers(0, VOCAB - 1), max_size=4),
            st.lists(st.integers(-1, VOCAB - 1), max_size=4),
            st.integers(0, 7),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_drafts(
    corpus: list[list[int]],
    branches: int,
    found: int,
    fold: int,
    steps: list[tuple[list[int], list[int], int]],
) -> None:
    shelf = build(corpus)
    width = 5
    got, ref = (new_life(module, width, branches) for module in (rest_kernels, rest_reference))
    for life in (got, ref):
        life.module.begin_reader(life.readers, 0, np.array(corpus[0], np.int32))
        life.module.begin_reader(life.readers, 1, np.zeros(0, np.int32))
    for first, second, ceiling in steps:
        offsets = np.array([0, len(first), len(first) + len(second)], np.int64)
        tokens = np.array(first + second, np.int32)
        slots = np.arange(2, dtype=np.int32)
        for life in (got, ref):
            life.module.observe_readers(life.readers, life.model, slots, offsets, tokens, 0.1)
        how = (found, fold, branches, 0.1)
        drafts = [draft(life, shelf, how, [ceiling, 5], width + 1) for life in (got, ref)]
        assert drafts[0] == drafts[1]
        for part in ("contexts", "sizes"):
            assert getattr(got.readers, part).tolist() == getattr(ref.readers, part).tolist()
        for part in ("cells", "coarse", "numbers"):
            assert getattr(got.model, part).tolist() == getattr(ref.model, part).tolist()


@given(value=st.integers(1, 60), share=st.floats(1e-9, 1.0))
@example(value=24, share=0.25)
@example(value=32, share=0.95)
def test_classes(value: int, share: float) -> None:
    for name, argument in (("length_class", value), ("count_class", value), ("share_class", share)):
        ref = getattr(merging_reference, name)(argument)
        assert getattr(merging_kernels, name)(argument) == ref, (name, argument)


@given(
    rounds=st.lists(
        st.tuples(
            st.lists(st.lists(st.integers(0, 1), max_size=3) | st.none(), min_size=3, max_size=3),
            st.floats(0.0, 1.0),
            st.lists(st.integers(0, 1), max_size=4),
        ),
        max_size=12,
    )
)
def test_contest(rounds: list[tuple[list[list[int] | None], float, list[int]]]) -> None:
    context = Context(VOCAB, 100, 3, 1)
    states = [new_contest(context, 3) for _ in range(2)]
    modules = (contest_kernels, contest_reference)
    slots = np.zeros(1, np.int32)
    for drafts, estimate, truth in rounds:
        offers = contest_kernels.Offers(
            np.zeros((3, 1, 3), np.int32), np.zeros((3, 1, 3)), np.full((3, 1), -1, np.int32)
        )
        for source, tokens in enumerate(drafts):
            if tokens is not None or source == 0:
                tokens = tokens or []
                offers.lengths[source, 0] = len(tokens)
                offers.tokens[source, 0, : len(tokens)] = tokens
                offers.survival[source, 0] = estimate ** np.arange(1, 4) * (1 - 0.1 * source)
        outs = []
        for module, state in zip(modules, states, strict=True):
            out = (np.zeros((1, 3), np.int32), np.zeros((1, 3)), np.zeros(1, np.int32))
            module.choose(state, slots, offers, 0.1, out)
            offsets = np.array([0, len(truth)], np.int64)
            module.judge_drafts(state, slots, offsets, np.array(truth, np.int32), 0.1)
            outs.append([part.tolist() for part in out])
        assert outs[0] == outs[1]
        for name in ("drafts", "slots", "table", "record", "goodput"):
            assert getattr(states[0], name).tolist() == getattr(states[1], name).tolist(), name
