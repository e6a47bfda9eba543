"""The compiled suffix drafter against its slow twin: equal candidates, drafts and estimates, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from specplug.index.suffix import MOST_PROMPT, SuffixIndex
from specplug.index.templates import PREFIX, REMEMBERED, Templates
from specplug.kernels import layout, streams
from specplug.kernels.candidates import find_candidates
from specplug.kernels.match import load_context, match_in_stream
from specplug.reference import candidates as ref_candidates
from specplug.reference import drafting as ref_drafting
from specplug.reference import learning as ref_learning
from specplug.reference import match as ref_match
from specplug.reference import requests as ref_requests
from specplug.reference import streams as ref_streams
from specplug.reference import suffix_state
from specplug.reference import templates as ref_templates
from specplug.reference.branching import branch_row
from specplug.types import Capabilities, Context, Observed, allocate_drafts

COST = 0.03
WIDTH = 8


def test_constants_are_the_same_on_both_sides() -> None:
    names = {n for n in vars(suffix_state) if n.isupper()}
    differing = {
        n: (getattr(suffix_state, n), getattr(layout, n))
        for n in names
        if getattr(suffix_state, n) != getattr(layout, n)
    }
    assert len(names) > 15
    assert differing == {}
    assert (ref_templates.PREFIX, ref_templates.REMEMBERED) == (PREFIX, REMEMBERED)


class Pair:
    """A fast index and a slow state that are fed the same events."""

    def __init__(
        self,
        budget: int,
        max_length: int = 4096,
        trees: bool = False,
        common: str | None = None,
    ) -> None:
        self.trees = trees
        self.fast = SuffixIndex(Context(2**31 - 1, max_length, WIDTH, 3), budget, COST, common)
        store = self.fast.state.store
        rows = self.fast.state.slots.live.shape[1]
        self.slow = suffix_state.new_state(len(store.tokens), store.heads.shape[1], rows)
        self.namespaces = {} if common is None else {common: 0}
        self.slow.store.common = self.namespaces.get(common or "")
        self.templates = ref_templates.Templates()
        self.drafted = False

    def start(
        self,
        slot: int,
        namespace: str,
        history: list[int],
        prompt: int | None = None,
        shows: bool = True,
    ) -> None:
        prompt = len(history) if prompt is None else prompt
        number = self.namespaces.setdefault(namespace, len(self.namespaces))
        ref_learning.learn_batch(self.slow, COST)
        self.fast.start(slot, namespace, prompt, np.array(history, np.int32), shows)
        model, taken = self.templates.model_of(number, history)
        if taken:
            ref_templates.copy_model(self.slow, model)
        ref_requests.start_request(self.slow, slot, prompt, number, model, history, shows)

    def observe(self, rows: dict[int, list[int]]) -> None:
        self.drafted = False
        offsets = np.cumsum([0, *map(len, rows.values())]).astype(np.int64)
        tokens = np.array([t for row in rows.values() for t in row], np.int32)
        self.fast.observe(Observed(np.array(list(rows), np.int32), offsets, tokens))
        ref_learning.observe_batch(self.slow, list(rows), list(rows.values()), COST)

    def draft(self, slots: list[int], ceiling: int) -> list[list[int]]:
        if self.drafted:
            ref_learning.learn_batch(self.slow, COST)
        self.drafted = True
        out = allocate_drafts(len(slots), WIDTH, 1, Capabilities(trees=self.trees))
        ceilings = np.full(len(slots), ceiling, np.int32)
        self.fast.draft(np.array(slots, np.int32), ceilings, out)
        ref = ref_drafting.draft_batch(self.slow, slots, ceilings.tolist(), COST)
        for row, (ref_tokens, ref_survival) in enumerate(ref):
            length = int(out.lengths[row])
            if out.parents is not None:
                raw = self.slow.streams[slots[row]].chain
                ref_tokens, ref_survival, ref_parents = branch_row(
                    self.slow, slots[row], ref_tokens, raw, ceiling, COST
                )
                assert out.parents[row, :length].tolist() == ref_parents
                ref[row] = _a_branch(ref_tokens, ref_parents), ref_survival
            assert out.tokens[row, :length].tolist() == ref_tokens
            assert out.survival[row, :length].tolist() == ref_survival
            sources = self.fast.state.log.sources[slots[row], :length].tolist()
            assert sources == self.slow.streams[slots[row]].sources
        return [tokens for tokens, _ in ref]

    def finish(
        self, slot: int, stops: frozenset[int] = frozenset(), with_prompt: bool = False
    ) -> None:
        self.fast.finish(slot, True, stops, with_prompt)
        ref_learning.learn_batch(self.slow, COST)
        prompt = MOST_PROMPT if with_prompt else 0
        ref_requests.finish_request(self.slow, slot, True, sorted(stops), prompt)

    def compare_candidates(self, slot: int) -> int:
        state = self.fast.state
        size = load_context(state.slots, slot, state.scratch.context)
        count = find_candidates(state, slot, size) if size else 0
        columns = [layout.POSITION, layout.LENGTH, layout.CLASS, layout.SOURCE]
        got = state.scratch.candidates[:count, columns].tolist()
        ref = ref_candidates.find_candidates(self.slow, slot) if size else []
        assert got == [[c.position, c.length, c.kind, c.source] for c in ref]
        return count


def _a_branch(tokens: list[int], parents: list[int]) -> list[int]:
    """From the root to the last node, the least probable one."""
    path = []
    node = len(tokens) - 1
    while node >= 0:
        path.append(tokens[node])
        node = parents[node]
    return path[::-1]


# Few distinct tokens make long and many matches, many make short ones; -1 is a separator, the largest id a stress.
tokens = st.one_of(
    st.integers(0, 2), st.integers(0, 30), st.sampled_from([-1, 2**31 - 2, 2**24 + 1])
)
histories = st.lists(tokens, max_size=200)
phrases = st.lists(tokens, min_size=1, max_size=12)


@given(phrase=phrases, prefix=histories, repeats=st.integers(1, 30))
@example(phrase=[7], prefix=[], repeats=1)
@example(phrase=[7], prefix=[], repeats=2)
@example(phrase=[1, 2], prefix=[], repeats=200)  # several pages, chains longer than the step limit
@example(phrase=[-1], prefix=[], repeats=3)
def test_a_prompt_has_the_same_candidates(
    phrase: list[int], prefix: list[int], repeats: int
) -> None:
    pair = Pair(0)
    pair.start(0, "", prefix + phrase * repeats)
    found = pair.compare_candidates(0)
    event("some candidates" if found else "no candidate")
    pair.draft([0], WIDTH)


@given(phrase=phrases, repeats=st.integers(1, 30), data=st.data())
@example(phrase=[7], repeats=100, data=None)
def test_matches_end_where_what_may_be_read_begins(
    phrase: list[int], repeats: int, data: st.DataObject | None
) -> None:
    """Of the text of others that is their answer; matches go over the borders of pages."""
    pair = Pair(0)
    said = phrase * repeats
    pair.start(0, "", said)
    load_context(pair.fast.state.slots, 0, pair.fast.state.scratch.context)
    context = ref_match.load_context(pair.slow, 0)
    position = len(said) if data is None else data.draw(st.integers(0, len(said)))
    for first in {0, position, max(0, position - 9), len(said) // 2}:
        ref = ref_match.match_in_stream(pair.slow, 0, first, position, context)
        got = match_in_stream(pair.fast.state, 0, first, position, layout.MAX_MATCH)
        assert got == ref, (first, position)
    event("a match" if ref else "no match")


def test_an_empty_history_has_no_draft() -> None:
    pair = Pair(0)
    pair.start(0, "", [])
    assert pair.compare_candidates(0) == 0
    assert pair.draft([0], WIDTH) == [[]]


@given(data=st.data(), budget=st.sampled_from([0, 6000, 1 << 16]), size=st.integers(1, 40))
def test_drafts_and_estimates_are_equal_over_many_events(
    data: st.DataObject, budget: int, size: int
) -> None:
    """Requests come, accept parts of their drafts, say other things, end and are stored, in two namespaces or three."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    vocabulary = data.draw(st.sampled_from([2, 6, 40]), label="vocabulary")
    common = data.draw(st.sampled_from([None, "0", "2"]), label="common")
    pair = Pair(budget, trees=data.draw(st.booleans(), label="trees"), common=common)
    templates = [[], *rng.integers(0, vocabulary, (3, 20)).tolist()]
    drafts: dict[int, list[int]] = {}
    for _ in range(size):
        for slot in range(3):
            if slot not in drafts:
                # Some prompts begin alike, so that templates get models of their own.
                prompt = [*templates[rng.integers(0, len(templates))]]
                prompt += rng.integers(0, vocabulary, rng.integers(0, 90)).tolist()
                # One comes back with an answer begun, one does not share.
                begun = int(rng.integers(0, len(prompt) + 1)) if rng.random() < 0.2 else None
                shows = bool(rng.random() < 0.8)
                pair.start(slot, str(rng.integers(0, 2 + (common == "2"))), prompt, begun, shows)
                drafts[slot] = []
        rows = {}
        for slot in rng.permutation(3)[: rng.integers(1, 4)].tolist():
            accepted = drafts[slot][: rng.integers(0, len(drafts[slot]) + 1)]
            rows[slot] = accepted + rng.integers(0, vocabulary, rng.integers(0, 3)).tolist()
        pair.observe(rows)
        for slot in rows:
            pair.compare_candidates(slot)
        new = pair.draft(list(rows), int(rng.integers(0, WIDTH + 1)))
        drafts.update(zip(rows, new, strict=True))
        if rng.random() < 0.3:
            over = int(rng.integers(0, 3))
            pair.finish(over, frozenset(range(int(rng.integers(0, 2)))), rng.random() < 0.3)
            del drafts[over]
    assert pair.fast.check_invariants() == ""


@given(data=st.data(), edits=st.sampled_from([0.0, 0.05, 0.3]))
def test_answers_to_one_prompt_are_drafted_alike(data: st.DataObject, edits: float) -> None:
    """Three requests write much the same text at once, at their own pace, over several pages; some begin anew."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    alphabet = data.draw(st.sampled_from([3, 30, 3000]), label="alphabet")
    text = rng.integers(0, alphabet, 300).tolist()
    pair = Pair(1 << 16, trees=data.draw(st.booleans(), label="trees"))
    places = [0, 0, 0]
    others = 0
    for slot in range(3):
        pair.start(slot, "x" if slot == 2 and rng.random() < 0.2 else "", text[-70:][: 35 * slot])
    for _ in range(40):
        rows = {}
        for slot in range(3):
            count = int(rng.integers(0, 12))
            said = text[places[slot] : places[slot] + count]
            rows[slot] = [t if rng.random() >= edits else int(rng.integers(0, 9)) for t in said]
            places[slot] += count + int(rng.integers(-1, 2)) * bool(rng.random() < edits)
        pair.observe(rows)
        for slot in range(3):
            found = pair.compare_candidates(slot)
            places_found = pair.fast.state.scratch.candidates[:found, layout.POSITION]
            others += int((places_found >= layout.LIVE).sum())
        pair.draft([2, 0, 1], WIDTH)
        if rng.random() < 0.05:
            over = int(rng.integers(0, 3))
            pair.finish(over)
            pair.start(over, "", [])
            places[over] = 0
    event("found in running answers" if others else "nothing found in running answers")
    # Chance contexts of two tokens are few among 3000; without edits the same text is said at other paces.
    assert others > 0 or edits > 0
    assert pair.fast.check_invariants() == ""


@given(
    hashed=st.integers(0, 2**32 - 1),
    pages=st.integers(1, 5000),
    token=st.integers(-1, 2**31 - 2),
)
@example(hashed=2**32 - 1, pages=1, token=0)
def test_hashing_is_equal(hashed: int, pages: int, token: int) -> None:
    assert int(streams.mix(np.uint64(hashed), token)) == ref_streams.mix(hashed, token)
    page = streams.bucket_page(hashed, pages)
    assert page == ref_streams.bucket_page(hashed, pages)
    assert 0 <= page < pages
    assert streams.bucket_of(hashed) == ref_streams.bucket_of(hashed) < layout.BUCKETS


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 1000])
def test_indexing_in_one_go_or_token_by_token_is_the_same(length: int) -> None:
    """A step on which the engine did not ask for drafts must not change later drafts."""
    text = np.random.default_rng(length).integers(0, 5, length).tolist()
    at_once, by_token = Pair(0), Pair(0)
    at_once.start(0, "", text)
    by_token.start(0, "", [])
    for token in text:
        by_token.observe({0: [token]})
    assert at_once.compare_candidates(0) > 0 or length < 3
    for pair in (at_once, by_token):
        pair.fast.state.slots.numbers[0, layout.N_PROMPT] = 0
        pair.slow.streams[0].prompt_length = 0
    assert at_once.draft([0], WIDTH) == by_token.draft([0], WIDTH)


@given(data=st.data())
def test_templates_get_the_same_models(data: st.DataObject) -> None:
    fast, slow = Templates(layout.N_MODELS), ref_templates.Templates()
    starts = st.integers(0, 3 * layout.N_MODELS)
    for start in data.draw(st.lists(starts, max_size=200)):
        prompt = [start] * (PREFIX + start % 3 - 1)
        namespace = start % 2
        got = fast.model_of(namespace, np.array(prompt, np.int32))
        assert got == slow.model_of(namespace, prompt)
        assert 0 <= got[0] < layout.N_MODELS


def test_a_long_prompt_is_indexed_over_several_steps() -> None:
    """The calls that the engine waits for stay short; drafts come from what is indexed so far."""
    budget = layout.LINKED_PER_CALL
    phrase = list(range(100))
    filler = np.random.default_rng(0).integers(1000, 2000, 2 * budget).tolist()
    pair = Pair(0, max_length=4 * budget)
    pair.start(0, "", [*filler, *phrase, *phrase[:50]])
    linked = []
    for _ in range(4):
        linked.append(int(pair.fast.state.slots.numbers[0, layout.N_INDEXED]))
        drafts = pair.draft([0], WIDTH)[0]
        pair.observe({0: []})
    assert linked[:2] == [budget + 1, 2 * budget + 1]
    assert linked[2] == linked[3] == len(filler) + 150
    assert drafts == phrase[50 : 50 + WIDTH]
