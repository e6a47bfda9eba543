"""A state machine over the life of requests: the session with the compiled drafter against the slow session.

Requests arrive, are stepped in any row order, accept parts of their drafts, miss steps, are preempted and resumed,
rewound, aborted, finished twice or reused under a live id, for two tenants and more requests than slots.
"""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from specplug.index.suffix import MOST_PROMPT
from specplug.proposers.suffix import SuffixProposer, SuffixSettings
from specplug.reference import suffix_state
from specplug.reference.session import Session as SlowSession
from specplug.session import Session
from specplug.types import Context, Request

VOCABULARY = 12
EOS = 11
SLOTS = 4
COST = 0.03

token = st.one_of(
    st.integers(0, 3), st.integers(-1, VOCABULARY)
)  # -1 and 12 are not in the vocabulary
prompts = st.lists(token, max_size=30)


class RequestLifeCycle(RuleBasedStateMachine):
    """``text`` holds every token of the requests that the simulated engine runs."""

    requests = Bundle("requests")

    @initialize(
        store_kb=st.sampled_from([0, 2, 64]),
        max_length=st.sampled_from([40, 400]),
        prompts_too=st.booleans(),
    )
    def build(self, store_kb: int, max_length: int, prompts_too: bool) -> None:
        context = Context(VOCABULARY, max_length, 6, SLOTS)
        self.budget = store_kb * 1024
        settings_ = SuffixSettings(
            store_mb=store_kb / 1024, verify_cost=COST, share_prompts=prompts_too
        )
        self.proposer = SuffixProposer(context, settings_)
        self.fast = Session(self.proposer, context, on_fault="raise")
        store = self.proposer.index.state.store
        rows = self.proposer.index.state.slots.live.shape[1]
        state = suffix_state.new_state(len(store.tokens), store.heads.shape[1], rows)
        self.slow = SlowSession(state, context, COST, MOST_PROMPT if prompts_too else 0)
        self.max_length = max_length
        self.keeps = store_kb > 0
        self.text: dict[str, list[int]] = {}
        self.draft: dict[str, list[int]] = {}
        self.emitted = 0

    @rule(
        target=requests,
        name=st.sampled_from("abcdef"),
        prompt=prompts,
        tenant=st.sampled_from(["", "x"]),
        max_output=st.none() | st.integers(1, 30),
        limit=st.none() | st.integers(0, 6),
        ignore_eos=st.booleans(),
        shares=st.booleans(),
    )
    def arrive(
        self,
        name: str,
        prompt: list[int],
        tenant: str,
        max_output: int | None,
        limit: int | None,
        ignore_eos: bool,
        shares: bool,
    ) -> str:
        """A request begins; a live one of the same id is thereby over."""
        stops = frozenset() if ignore_eos else frozenset({EOS})
        request = Request(name, len(prompt), stops, max_output, limit, tenant, shares=shares)
        self.fast.begin(request, np.array(prompt, np.int64))
        self.slow.begin(request, prompt)
        self.text[name] = list(prompt)
        self.draft[name] = []
        return name

    @rule(
        names=st.lists(requests, min_size=1, max_size=SLOTS, unique=True),
        data=st.data(),
    )
    def step(self, names: list[str], data: st.DataObject) -> None:
        """Some requests (the others are preempted) accept part of their draft, emit a token, and are drafted for."""
        for name in names:
            accepted = data.draw(st.integers(0, len(self.draft[name])), label=f"{name} accepts")
            own = data.draw(st.lists(token, min_size=1, max_size=2), label=f"{name} emits")
            self._emit(name, self.draft[name][:accepted] + own)
        self._step(names)

    @rule(name=requests, copied=st.integers(1, 25))
    def repeat(self, name: str, copied: int) -> None:
        """A request says again what it said a while ago."""
        text = self.text[name]
        for _ in range(3):
            self._emit(name, text[-copied : len(text) - copied + 2] or [0])
            self._step([name])

    @rule(name=requests, other=requests, back=st.integers(1, 25), count=st.integers(2, 12))
    def say_what_another_says(self, name: str, other: str, back: int, count: int) -> None:
        """A request copies what another one has said a while ago and may go on saying."""
        text = self.text[other]
        self._emit(name, text[-back : len(text) - back + count] or [0])
        self._step([name, other] if name != other else [name])
        self._emit(name, self.draft[name])
        self._step([name])

    @rule(name=requests, tokens=prompts)
    def miss_a_step(self, name: str, tokens: list[int]) -> None:
        """The engine went on without asking for drafts."""
        self._emit(name, tokens)
        self.draft[name] = []

    @rule(name=requests, keep=st.integers(0, 30))
    def rewind(self, name: str, keep: int) -> None:
        """The history shrinks."""
        del self.text[name][keep:]
        self._step([name])

    @rule(name=consumes(requests), keep=st.booleans())
    def end(self, name: str, keep: bool) -> None:
        """Finished or aborted; the second time changes nothing."""
        live = name in self.fast
        assert self.fast.finish(name, keep and self.keeps) is live
        assert self.slow.finish(name, keep and self.keeps) is live
        assert not self.fast.finish(name)

    @rule(target=requests, names=st.lists(consumes(requests), max_size=3, unique=True))
    def end_many(self, names: list[str]) -> object:
        """Several requests end in the same step, in whatever order the engine lists them."""
        self.fast.finish_all(names, self.keeps)
        alive = [r for r in self.slow.live if r in names]
        for name in sorted(alive, key=lambda r: self.slow.live[r].serial):
            self.slow.finish(name, self.keeps)
        return multiple()

    def _emit(self, name: str, tokens: list[int]) -> None:
        room = self.max_length - len(self.text[name])
        self.text[name] += tokens[: max(0, room)]

    def _step(self, names: list[str]) -> None:
        histories = [np.array(self.text[n], np.int32) for n in names]
        out = self.fast.step(names, histories)
        ref = self.slow.step({n: self.text[n] for n in names})
        for row, name in enumerate(names):
            got = out.tokens[row, : out.lengths[row]].tolist()
            assert got == ref[name], f"{name}: drafted {got}, the slow session {ref[name]}"
            self._check_draft(name, got, out.survival[row, : len(got)])
            self.draft[name] = got

    def _check_draft(self, name: str, draft: list[int], survival: np.ndarray) -> None:
        assert all(0 <= t < VOCABULARY for t in draft)
        assert len(self.text[name]) + len(draft) < self.max_length or not draft
        assert (np.diff(survival) <= 0).all()
        assert ((survival > 0) & (survival <= 1)).all()

    @invariant()
    def the_index_is_sound(self) -> None:
        if hasattr(self, "proposer"):
            assert self.proposer.index.check_invariants() == ""
            assert self.fast.live == len(self.slow.live) <= SLOTS
            assert set(self.slow.live) == {r for r in "abcdef" if r in self.fast}

    @invariant()
    def the_store_stays_within_its_budget(self) -> None:
        if hasattr(self, "proposer"):
            index = self.proposer.index
            assert index.store_bytes <= self.budget
            assert 0 <= index.stored_tokens <= index.store_capacity

    @invariant()
    def rejected_drafts_leave_no_trace(self) -> None:
        """Streams hold what the target said and nothing else, and so does the store."""
        if not hasattr(self, "proposer"):
            return
        index = self.proposer.index
        for name, entry in self.slow.live.items():
            slot = self.fast._live[name].slot
            assert index.tokens(slot).tolist() == entry.history, name
        ring, said = index.state.store.tokens, self.slow.state.store.tokens
        alive = range(max(16, len(said) - len(ring)), len(said))
        assert [int(ring[p % len(ring)]) for p in alive] == said[alive.start :] or not len(ring)

    @invariant()
    def the_counters_add_up(self) -> None:
        if hasattr(self, "fast"):
            stats = self.fast.stats
            assert stats.accepted <= stats.drafted
            assert stats.started - stats.finished == self.fast.live
            assert stats.faults == 0


TestRequestLifeCycle = RequestLifeCycle.TestCase
TestRequestLifeCycle.settings = settings(
    max_examples=settings().max_examples, stateful_step_count=40
)
