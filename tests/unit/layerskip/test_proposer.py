"""``specplug.layerskip`` as a proposer, over a toy engine whose next tokens are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from specplug.errors import SettingsError, SkipPlanError
from specplug.layers.exit_file import save_heads
from specplug.layers.exit_head import ExitHead
from specplug.layers.plan import Plan
from specplug.proposers.layerskip import proposer as proposer_module
from specplug.proposers.layerskip.proposer import LayerSkipProposer, LayerSkipSettings
from specplug.proposers.layerskip.stopping import Paying
from specplug.proposers.layerskip.swift import Swift
from specplug.session import Session
from specplug.types import TOKEN_DTYPE, Context, Request

CONTEXT = Context(vocab_size=100, max_length=64, max_draft=4, max_requests=4)


class Engine:
    """After token ``t`` comes ``t + 1``; ``wrong`` passes say something else. Each request owns ``room`` slots."""

    layers = 6

    def __init__(self, room: int = 9, wrong: bool = False, confidence: float = 0.8) -> None:
        self.room, self.wrong, self.confidence = room, wrong, confidence
        self.calls: list[tuple[list[str], list[int], int]] = []
        self.plans: list[Plan] = []

    def check(self, plan: Plan) -> None:
        """Runs everything."""

    def use_heads(self, path: Path) -> frozenset[int]:
        self.heads = path
        return frozenset({2})

    def check_search(self) -> None:
        """All of it can be searched."""

    def probe(self, request_id: str) -> None:
        """There is no text."""

    def rooms(self, request_ids: Sequence[str]) -> np.ndarray:
        return np.array([self.room - int(name) for name in request_ids], np.int32)

    def run(
        self, plan: Plan, request_ids: Sequence[str], tokens: np.ndarray, place: int
    ) -> tuple[np.ndarray, np.ndarray]:
        self.calls.append((list(request_ids), tokens.tolist(), place))
        self.plans.append(plan)
        step = 7 if self.wrong else 1
        return (tokens + step) % 100, np.full(len(tokens), self.confidence)


def session_over(engine: Engine | None, **options: object) -> Session:
    settings = LayerSkipSettings(**{"exit_layer": 2, "pays": False, **options})
    proposer = LayerSkipProposer(CONTEXT, settings)
    if engine is not None:
        proposer.use_layers(engine)
    session = Session(proposer, CONTEXT, on_fault="raise")
    return session


def step(session: Session, histories: dict[str, list[int]]) -> list[list[int]]:
    arrays = [np.array(history, TOKEN_DTYPE) for history in histories.values()]
    for name, history in zip(histories, arrays, strict=True):
        if name not in session:
            session.begin(Request(name, prompt_length=len(history)), history)
    out = session.step(list(histories), arrays)
    return [out.tokens[i, :n].tolist() for i, n in enumerate(out.lengths.tolist())]


def test_all_requests_draft_in_the_same_passes() -> None:
    engine = Engine()
    drafts = step(session_over(engine), {"0": [5, 6], "1": [40]})
    assert drafts == [[7, 8, 9, 10], [41, 42, 43, 44]]
    assert engine.calls[0] == (["0", "1"], [6, 40], 0)
    assert engine.calls[3] == (["0", "1"], [9, 43], 3)
    assert set(engine.plans) == {Plan.early_exit(6, 2)}


def test_a_request_without_room_drops_out_of_the_passes() -> None:
    engine = Engine(room=2)
    drafts = step(session_over(engine), {"0": [5], "1": [40], "2": [60]})
    assert [len(draft) for draft in drafts] == [2, 1, 0]
    assert [call[0] for call in engine.calls] == [["0", "1"], ["0"]]


def test_layers_in_the_middle_can_be_named() -> None:
    engine = Engine()
    step(session_over(engine, exit_layer=None, skip="2,3"), {"0": [5]})
    assert set(engine.plans) == {Plan.skipping(6, [2, 3], [2, 3])}


def test_sublayers_can_be_named() -> None:
    engine = Engine()
    step(session_over(engine, exit_layer=None, skip="2, 3a,5m"), {"0": [5]})
    assert set(engine.plans) == {Plan.skipping(6, [2, 3], [2, 5])}


def test_a_policy_may_ask_about_every_step_and_drafts_with_what_it_found() -> None:
    engine = Engine()
    asked: list[str] = []
    engine.probe = asked.append  # type: ignore[method-assign]
    session = session_over(engine, exit_layer=None, policy="swift", search_share=1.0)
    for newest in range(3):
        step(session, {"0": [*range(newest + 1)], "1": [*range(40, 41 + newest)]})
    assert set(asked) == {"0", "1"}
    # Every second sublayer of the inner layers, until something better is known.
    assert set(engine.plans) == {Swift(6).plan()}


def test_a_policy_that_knows_nothing_yet_drafts_nothing() -> None:
    """CLaSp begins with the whole model, whose drafts cost what they bring."""
    engine = Engine()
    session = session_over(engine, exit_layer=None, policy="clasp")
    assert step(session, {"0": [5, 6]}) == [[]]
    assert not engine.plans


def test_heads_are_looked_at_before_the_model_loads_and_lent_when_it_is_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.exits"
    save_heads(path, [ExitHead(2, (np.zeros((4, 4)),), np.zeros(4))], "abc")
    settings = LayerSkipSettings(exit_layer=2, heads=str(path))
    settings.preflight(100, None)
    with pytest.raises(
        SettingsError, match=r"has heads for exits after \[2\] .* is 3; .* --layers 3"
    ):
        LayerSkipSettings(exit_layer=3, heads=str(path)).preflight(100, None)
    with pytest.raises(SettingsError, match=r"exits after \[2\] .* is None"):
        LayerSkipSettings(skip="3", heads=str(path)).preflight(100, None)
    with pytest.raises(SettingsError, match=r"^specplug\.layerskip: heads: .* cannot be read"):
        LayerSkipSettings(exit_layer=2, heads=str(tmp_path / "no")).preflight(100, None)
    engine = Engine()
    step(session_over(engine, heads=str(path)), {"0": [5]})
    assert engine.heads == path


def test_drafts_that_are_always_wrong_come_to_an_end() -> None:
    engine = Engine(wrong=True)
    session = session_over(engine, pays=True)
    history = [1]
    for _ in range(60):
        step(session, {"0": history})
        history.append((history[-1] + 1) % 100)
    assert 4 <= len(engine.calls) < 30
    assert session.stats.accepted == 0


def test_what_was_accepted_is_learned() -> None:
    engine = Engine()
    session = session_over(engine)
    seen = []
    session.proposer.rule.observe = seen.append
    history = [1]
    for emitted in ([2, 3, 9], [10, 11, 12, 13, 14], [50], [51]):
        step(session, {"0": history})
        history += emitted
    step(session, {"0": history})
    # Of the last draft one token was judged at all: the target's own token was what it began with.
    judged = [(feedback.drafted, feedback.accepted, feedback.gained) for feedback in seen]
    assert judged == [(4, 2, 2), (4, 4, 4), (4, 0, 0), (1, 1, 0)]


def serve(session: Session, name: str, steps: int, **request: object) -> int:
    """A request whose tokens count up; how many of its steps had a draft."""
    history = np.array([1], TOKEN_DTYPE)
    session.begin(Request(name, prompt_length=1, **request), history)  # type: ignore[arg-type]
    drafted = 0
    for _ in range(steps):
        length = int(session.step([name], [history]).lengths[0])
        drafted += length > 0
        more = (history[-1] + np.arange(1, length + 2)) % 100
        history = np.concatenate([history, more]).astype(TOKEN_DTYPE)
    session.finish(name)
    return drafted


def paying(engine: Engine, cost: float = 0.1) -> Session:
    context = Context(vocab_size=100, max_length=4096, max_draft=3, max_requests=2)
    proposer = LayerSkipProposer(context, LayerSkipSettings(exit_layer=2))
    proposer.rule = Paying(cost)
    proposer.use_layers(engine)
    return Session(proposer, context, on_fault="raise")


def test_requests_without_drafts_do_not_stop_those_of_others() -> None:
    """As those that sample with a seed: they want none, which says nothing about drafts."""
    session = paying(Engine())
    for number in range(10):
        assert serve(session, f"0{number}", 50, draft_limit=0) == 0
    assert [serve(session, f"00{number}", 50) for number in range(3)] == [50, 50, 50]


def test_ends_of_blocks_do_not_stop_drafts() -> None:
    """No slot is left in every eighth step."""
    engine = Engine()
    session = paying(engine)
    calls = iter(range(10_000))
    engine.rooms = lambda ids: np.full(len(ids), 0 if next(calls) % 8 == 7 else 9, np.int32)  # type: ignore[method-assign]
    assert serve(session, "0", 400) == 350


def test_time_without_requests_is_not_the_time_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of 1 second, steps of 4, and an hour before every request."""
    clock = [0.0]
    monkeypatch.setattr(proposer_module.time, "perf_counter", lambda: clock[0])

    class Slow(Engine):
        def run(self, *arguments: object) -> tuple[np.ndarray, np.ndarray]:
            clock[0] += 1.0
            return super().run(*arguments)  # type: ignore[arg-type]

    session = paying(Slow(), 0.0)
    seen: list[tuple[float, float]] = []
    session.proposer.rule.timed = lambda *seconds: seen.append(seconds)
    # The same name in the end: it is another request.
    for name in ("0", "00", "00"):
        clock[0] += 3600.0
        history = [1]
        for _ in range(3):
            step(session, {name: history})
            clock[0] += 4.0
            history = history + [(history[-1] + i) % 100 for i in range(1, 5)]
        session.finish(name)
    assert seen == [(1.0, 4.0)] * 6


def test_without_an_engine_nothing_is_drafted() -> None:
    assert step(session_over(None), {"0": [5]}) == [[]]


def test_nothing_is_drafted_after_a_separator() -> None:
    engine = Engine()
    assert step(session_over(engine), {"0": [5, -1]}) == [[]]
    assert engine.calls == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exit_layer": None}, "needs one of"),
        ({"exit_layer": 2, "skip": "3"}, "needs one of"),
        ({"exit_layer": 2, "policy": "swift"}, "needs one of .* policy 'swift'"),
        (
            {"exit_layer": None, "skip": "3;4"},
            "skip lists layers, such as '12,13a,16m' .*, got '3;4'",
        ),
    ],
)
def test_options_that_say_nothing_or_two_things_are_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        session_over(None, **options)
    with pytest.raises(SettingsError, match=message):
        LayerSkipSettings(**options).preflight(0, None)  # type: ignore[arg-type]


def test_layers_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(SkipPlanError, match="1 to 5 of 6 layers, got 8"):
        session_over(Engine(), exit_layer=8)
