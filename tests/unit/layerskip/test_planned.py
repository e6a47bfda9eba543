"""Layer skipping under the goodput controller, which plans the passes: a toy model on a clock of its own."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from specplug.control import options
from specplug.control.cost import StepFacts
from specplug.control.passes import PassController, PassTimes
from specplug.errors import SettingsError, UnknownProposerError
from specplug.layers.plan import Plan
from specplug.proposers.layerskip import proposer as proposer_module
from specplug.proposers.layerskip import text as text_module
from specplug.proposers.layerskip.proposer import LayerSkipProposer, LayerSkipSettings
from specplug.session import Session
from specplug.testing import check_controller
from specplug.types import TOKEN_DTYPE, Capabilities, Context, Request

WIDTH = 3
CONTEXT = Context(1000, 4096, WIDTH, max_requests=2)


class Server:
    """Serves ``rows`` requests; after token ``t`` comes ``t + 1``. Time is counted in plain steps.

    Attributes:
        chance: that a pass is right, after right ones; it says so itself if ``honest``, else always 0.9.
    """

    layers = 6

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        rows: int = 1,
        *,
        cost: float = 0.4,
        per_token: float = 0.03,
        noise: float = 0.02,
        honest: bool = True,
        control: dict[str, object] | None = None,
        **settings: object,
    ) -> None:
        context = Context(1000, 1 << 20, WIDTH, max_requests=max(2, rows))
        self.proposer = LayerSkipProposer(context, LayerSkipSettings(exit_layer=2, **settings))  # type: ignore[arg-type]
        self.proposer.use_layers(self)
        self.controller = options.build(
            options.check({"name": "goodput", **control} if control else None),
            context,
            self.proposer.capabilities,
        )
        self.session = Session(self.proposer, context, controller=self.controller, on_fault="raise")
        self.clock, self.passes, self.rested = 0.0, 0, 0
        self.cost, self.per_token, self.noise, self.honest = cost, per_token, noise, honest
        self.chance = 0.0
        self.coins = np.random.default_rng(0)
        monkeypatch.setattr(proposer_module.time, "perf_counter", lambda: self.clock)
        self.histories = {str(i): [100 * i + 1] for i in range(rows)}
        for name in self.histories:
            self.session.begin(Request(name, 1), np.array(self.histories[name], TOKEN_DTYPE))
        self.drafts: list[list[int]] = [[] for _ in range(rows)]

    def check(self, plan: Plan) -> None:
        """Runs everything."""

    def rooms(self, request_ids: Sequence[str]) -> np.ndarray:
        return np.full(len(request_ids), 9, np.int32)

    def run(
        self, plan: Plan, request_ids: Sequence[str], tokens: np.ndarray, place: int
    ) -> tuple[np.ndarray, np.ndarray]:
        self.passes += 1
        self.clock += self.cost
        right = self.coins.random(len(tokens)) < self.chance
        found = np.where(right, (tokens + 1) % 1000, (tokens + 500) % 1000).astype(np.int32)
        return found, np.full(len(tokens), self.chance if self.honest else 0.9)

    def serve(self, steps: int) -> float:
        """Speed over plain decoding of these steps."""
        began, tokens, plain = self.clock, 0, 0.0
        rows = len(self.histories)
        for _ in range(steps):
            passing = getattr(self.controller, "_pass_seconds", 0.0)
            start = self.clock - passing
            drafted = sum(map(len, self.drafts))
            luck = self.coins.normal(1.0, self.noise)
            self.clock += (1.0 + self.per_token * drafted) * luck
            plain += luck / steps
            for draft, history in zip(self.drafts, self.histories.values(), strict=True):
                tokens += self._verify(history, draft)
            if self.proposer.rests():
                self.rested += 1
                self.drafts = [[] for _ in self.drafts]
                continue
            facts = StepFacts(self.clock - start, rows + drafted, rows, host=passing + 1e-4)
            self.controller.timed(facts)  # type: ignore[attr-defined]
            self._draft()
        return tokens / rows * plain / (self.clock - began)

    def _verify(self, history: list[int], draft: list[int]) -> int:
        before = len(history)
        for token in [*draft, -1]:
            history.append((history[-1] + 1) % 1000)
            if history[-1] != token:
                break
        return len(history) - before

    def _draft(self) -> None:
        arrays = [np.array(h, TOKEN_DTYPE) for h in self.histories.values()]
        out = self.session.step(list(self.histories), arrays)
        self.drafts = [out.tokens[i, :n].tolist() for i, n in enumerate(out.lengths.tolist())]


@pytest.mark.parametrize(
    ("rows", "cost", "honest"),
    [(1, 0.1, True), (4, 0.1, False), (1, 0.4, False), (4, 0.4, True), (1, 0.8, False)],
)
def test_a_hopeless_exit_costs_less_than_a_hundredth(
    monkeypatch: pytest.MonkeyPatch, rows: int, cost: float, honest: bool
) -> None:
    server = Server(monkeypatch, rows, cost=cost, honest=honest)
    server.chance = 0.02
    first, later = server.serve(200), server.serve(800)
    assert later > 0.99, (first, later)
    # Two or three plain steps of 200, however dear a pass and however sure of itself.
    assert first > 0.985, (first, later)
    # Most of the time nobody need even be asked.
    assert server.rested > 800
    assert server.session.stats.emitted > 950 * rows


@pytest.mark.parametrize("rows", [1, 4])
def test_a_good_exit_is_used(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Three drafts of a tenth each, right nine times out of ten: at best 3.44 tokens in 1.39 steps of one row."""
    server = Server(monkeypatch, rows, cost=0.1)
    server.chance = 0.9
    server.serve(50)
    ideal = (1 + 0.9 + 0.81 + 0.729) / (1 + 3 * 0.1 + 3 * rows * 0.03)
    assert server.serve(200) > 0.97 * ideal


def test_an_exit_that_becomes_good_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, cost=0.2)
    server.chance = 0.02
    assert server.serve(1500) > 0.99
    server.chance = 0.9
    server.serve(150)
    assert server.serve(100) > 1.7
    server.chance = 0.02
    server.serve(100)
    assert server.serve(500) > 0.985


def test_passes_of_little_use_are_fewer_than_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right six times out of ten at a third of a step: the first pass pays, the second does not."""
    server = Server(monkeypatch, cost=0.33, per_token=0.0)
    server.coins = np.random.default_rng(1)  # with another luck it takes longer to begin
    server.chance = 0.6
    server.serve(100)
    before = server.passes
    assert server.serve(400) > 1.05
    assert 0.4 < (server.passes - before) / 400 < 1.4


@pytest.mark.parametrize(
    ("control", "most"),
    [({"max_draft_tokens": 0}, 0), ({"max_draft_tokens": 1}, 0), ({"slo_ms": 1200.0}, 4)],
)
def test_no_pass_is_made_whose_tokens_may_not_be_verified_in_the_time_allowed(
    monkeypatch: pytest.MonkeyPatch, control: dict[str, object], most: int
) -> None:
    """Passes were paid for at every step and then cut; a step of 1.2 has no room for a pass of 0.4."""
    server = Server(monkeypatch, rows=2, cost=0.4, control=control)
    server.chance = 0.95
    speed = server.serve(800)
    assert server.passes <= most
    assert speed > 0.99
    roomy = Server(monkeypatch, rows=2, cost=0.4, control={"slo_ms": 1600.0})
    roomy.chance = 0.95
    assert roomy.serve(800) > 1.2, "one pass fits"
    assert roomy.passes < 1000, "a second one does not"


@pytest.mark.parametrize("cost", [2.0, 8.0])
def test_asking_for_dear_passes_costs_no_more_than_for_cheap_ones(
    monkeypatch: pytest.MonkeyPatch, cost: float
) -> None:
    """What a pass took was booked as one plain step at most."""
    server = Server(monkeypatch, cost=cost)
    server.serve(1000)
    assert server.serve(6000) > 0.99


def test_the_cost_of_verifying_is_learned_without_that_of_the_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(monkeypatch, cost=0.25)
    server.chance = 0.95
    server.serve(300)
    controller = server.controller
    assert isinstance(controller, PassController)
    assert controller.times.of(1) == pytest.approx(0.25, rel=0.1)
    costs = controller.cost.table(1, 3, 1)
    assert costs[3] / costs[0] == pytest.approx(1.09, abs=0.03)
    assert controller.as_dict()["passes"] == server.passes


def test_without_a_clock_a_good_exit_is_used_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    server.chance = 1.0
    server.controller.timed = lambda facts: None  # type: ignore[attr-defined]
    server.serve(100)
    assert server.session.stats.accepted > 100


def test_drafts_for_measurements_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, pays=False)
    assert not isinstance(server.controller, PassController)
    server.serve(20)
    assert server.passes == 20 * WIDTH


def test_layers_draft_only_where_text_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request repeats itself, the others never do."""
    server = Server(monkeypatch, 3, cost=0.1, text="suffix")
    server.chance = 0.9
    loop = [5, 6, 7, 8]
    server.histories["0"][:] = loop * 6
    asked: list[set[str]] = []
    run = server.run

    def seen(plan: Plan, ids: Sequence[str], tokens: np.ndarray, place: int) -> object:
        asked.append(set(ids))
        return run(plan, ids, tokens, place)

    server.run = seen  # type: ignore[method-assign, assignment]
    verify = server._verify

    def repeats(history: list[int], draft: list[int]) -> int:
        if history[:4] != loop:
            return verify(history, draft)
        before = len(history)
        for token in [*draft, -1]:
            history.append(loop[len(history) % 4])
            if history[-1] != token:
                break
        return len(history) - before

    server._verify = repeats  # type: ignore[method-assign]
    server._draft()
    server.serve(60)
    assert asked
    assert all("0" not in ids for ids in asked[3:])
    assert {"1", "2"} in asked
    by_source = server.session.sources.as_dict()
    assert by_source["layers"]["accepted"] > 50
    assert sum(by_source[name]["accepted"] for name in ("prompt", "output", "store")) > 50
    assert sum(s["accepted"] for s in by_source.values()) == server.session.stats.accepted


def test_text_and_searches_go_on_where_no_pass_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in ({"text": "suffix"}, {"exit_layer": None, "policy": "clasp"}):
        proposer = LayerSkipProposer(CONTEXT, LayerSkipSettings(**{"exit_layer": 2, **settings}))  # type: ignore[arg-type]
        proposer.use_planner(SimpleNamespace(rests=lambda: True))  # type: ignore[arg-type]
        assert not proposer.rests()
    proposer = LayerSkipProposer(CONTEXT, LayerSkipSettings(exit_layer=2))
    assert not proposer.rests()
    proposer.use_planner(SimpleNamespace(rests=lambda: True))  # type: ignore[arg-type]
    assert proposer.rests()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"text": "specplug.proposers.layerskip.proposer:LayerSkipProposer"}, "needs one of"),
        ({"text": "suffx"}, "did you mean 'suffix'"),
        ({"text": "rest"}, "option 'datastore' must name a folder"),
    ],
)
def test_text_that_cannot_come_first_is_refused(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], message: str
) -> None:
    with pytest.raises((SettingsError, UnknownProposerError), match=message):
        Server(monkeypatch, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["trees", "sampled", "passes"])
def test_text_first_means_chains_that_cost_nothing(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    other = SimpleNamespace(capabilities=Capabilities(**{kind: True}))
    monkeypatch.setattr(text_module.registry, "build", lambda *arguments: other)
    with pytest.raises(SettingsError, match=r"'text' names a proposer of chains .* got 'other'"):
        Server(monkeypatch, text="other")


def test_the_first_pass_of_a_process_says_nothing() -> None:
    times = PassTimes()
    times.add(1, 7.0)
    times.add(1, 0.2)
    times.add(40, 0.6)
    assert (times.of(1), times.of(2), times.of(64), times.of(9)) == (0.2, 0.2, 0.6, 0.6)


def test_it_passes_the_kit_of_controllers() -> None:
    context = Context(100, 64, 9, max_requests=8)
    check_controller(lambda: PassController(context), max_examples=6)
