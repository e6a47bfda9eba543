"""Several proposers over several logs: which states exist, in which order requests come, where counts go."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from specplug import registry
from specplug.errors import SettingsError
from specplug.protocols import Proposer
from specplug.replay.concurrent import Load, Server, Traffic
from specplug.replay.drivers import Driver, ProposerDriver, SessionDriver
from specplug.replay.metrics import Tally
from specplug.replay.oracle import Memory, Oracle
from specplug.replay.progress import Progress
from specplug.replay.reading import (
    Reader,
    Tokenised,
    by_arrival,
    in_turn,
    one_after_the_other,
)
from specplug.replay.simulator import ContractCheck, replay_record
from specplug.replay.tokenizers import TextTokenizer
from specplug.replay.traces import LogFile
from specplug.types import Context

Order = Literal["file", "interleaved", "arrival"]

#: The option that tells a proposer what verifying a draft token costs. A replay sets it to each of its costs.
COST_OPTION = "verify_cost"


@dataclass(frozen=True)
class Variant:
    """One proposer with one set of options.

    Attributes:
        name: registered name, or ``module:attribute``.
        options: validated and complete.
        given: what was asked for; shown where a name occurs twice.
        cost: what :data:`COST_OPTION` was set to by us, else None.
    """

    name: str
    options: Mapping[str, Any]
    given: Mapping[str, Any]
    cost: float | None

    @property
    def label(self) -> str:
        """How reports call the proposer; the same for all costs."""
        return self.name + (f" {json.dumps(dict(self.given))}" if self.given else "")

    def build(self, context: Context) -> Proposer:
        """A fresh proposer.

        Raises:
            SettingsError: it needs what a log does not hold.
        """
        proposer = registry.build(self.name, context, self.options)
        if proposer.capabilities.target_states:
            raise SettingsError(
                f"{self.name} needs the target's hidden states, which a log does not hold; it cannot be replayed"
            )
        return proposer


def variants(name: str, options: Mapping[str, Any], costs: Sequence[float]) -> list[Variant]:
    """One variant per cost for proposers that have :data:`COST_OPTION`, unless ``options`` sets it; else one.

    Raises:
        UnknownProposerError, InvalidProposerError, SettingsError: see :func:`specplug.registry.check`.
    """
    entry = registry.load(name)
    known = {f.name for f in fields(entry.settings_type)} if entry.settings_type else set()
    given = {str(key).replace("-", "_"): value for key, value in options.items()}
    chosen: Iterable[float | None] = [None]
    if COST_OPTION in known and COST_OPTION not in given:
        chosen = costs
    return [
        Variant(
            entry.where,
            registry.check(name, given if cost is None else {**given, COST_OPTION: cost}),
            given,
            cost,
        )
        for cost in chosen
    ]


@dataclass(slots=True)
class Plan:
    """What to replay, and how.

    Attributes:
        variants: in the order of the report.
        logs: each is read once.
        order: ``"file"``: each log has a state of its own, requests come in file order; ``"interleaved"``: one state
            for all, one request of each log in turn; ``"arrival"``: one state for all, requests by their time.
        width: most draft tokens per step.
        max_length: requests with more tokens are left out and counted.
        oracle: count what the best copy would have brought; without it nothing is known of match lengths either.
        check_every: check drafts, and invariants at every that many steps; 0 for no checks.
        traffic: how many requests at once; None: one after the other.
    """

    variants: Sequence[Variant]
    logs: Sequence[LogFile]
    tokenizer: TextTokenizer
    width: int = 16
    order: Order = "file"
    max_length: int = 1 << 18
    through_session: bool = False
    oracle: bool = True
    check_every: int = 0
    traffic: Traffic | None = None


@dataclass(slots=True)
class Outcome:
    """Counts by variant and workload, the oracle's by workload, and requests that were too long by log.

    Attributes:
        loads: per variant, how full the batches were; empty without :attr:`Plan.traffic`.
    """

    tallies: list[dict[str, Tally]]
    oracle: dict[str, Tally]
    too_long: dict[str, int] = field(default_factory=dict)
    loads: list[Load] = field(default_factory=list)


#: A record, and per response token the length of the match before it (None: unknown).
_Seen = tuple[Tokenised, "Sequence[int] | None"]
_Play = Callable[[Sequence[_Seen], Progress], None]


class _State:
    """Drivers and oracle that live together."""

    def __init__(self, plan: Plan, outcome: Outcome) -> None:
        self._plan = plan
        self._memory = Memory(plan.width + 1) if plan.oracle else None
        self._oracle = Oracle(plan.width)
        self._counts = outcome.oracle
        self._players: list[_Play] = []
        self._servers: list[Server] = []
        for i, (variant, tallies) in enumerate(zip(plan.variants, outcome.tallies, strict=True)):
            if plan.traffic is None:
                self._players.append(_one_by_one(plan, variant, tallies))
            else:
                server = _server(plan, plan.traffic, variant, tallies)
                # A log with a state of its own has batches of its own, but there is one count of them.
                server.load = outcome.loads[i]
                self._servers.append(server)
                self._players.append(_together(server))

    def replay(self, chunk: Sequence[Tokenised], progress: Progress) -> None:
        """One drafter after the other over the same requests, so that each finds the caches its own."""
        share = 1.0 / (len(self._players) + 1)
        seen: list[_Seen] = []
        for record in chunk:
            matches = None
            if self._memory is not None:
                found = self._memory.look(record.prompt, record.response)
                matches = found.behind.tolist()
                tally = self._counts.setdefault(record.workload, Tally())
                self._oracle.replay(record.prompt, record.response, found, tally)
            seen.append((record, matches))
            progress.done(record.size * share)
        for play in self._players:
            gc.collect()
            play(seen, progress)

    def end(self) -> None:
        """No more requests come."""
        for server in self._servers:
            server.drain()


def _one_by_one(plan: Plan, variant: Variant, tallies: dict[str, Tally]) -> _Play:
    context = _context(plan, 1)
    wrap = SessionDriver if plan.through_session else ProposerDriver
    driver: Driver = wrap(variant.build(context), context)
    check = _check(plan)

    def play(seen: Sequence[_Seen], progress: Progress) -> None:
        for record, matches in seen:
            progress.at(record.workload)
            tally = tallies.setdefault(record.workload, Tally())
            replay_record(driver, record.prompt, record.response, tally, check, matches)
            progress.done(record.size / (len(plan.variants) + 1))

    return play


def _server(plan: Plan, traffic: Traffic, variant: Variant, tallies: dict[str, Tally]) -> Server:
    context = _context(plan, traffic.running)
    proposer = variant.build(context)
    return Server(
        proposer, context, traffic, lambda w: tallies.setdefault(w, Tally()), _check(plan)
    )


def _together(server: Server) -> _Play:
    def play(seen: Sequence[_Seen], progress: Progress) -> None:
        server.serve(seen)

    return play


def _context(plan: Plan, requests: int) -> Context:
    return Context(plan.tokenizer.vocab_size, plan.max_length, plan.width, max_requests=requests)


def _check(plan: Plan) -> ContractCheck | None:
    if not plan.check_every:
        return None
    return ContractCheck(plan.width, plan.tokenizer.vocab_size, plan.check_every)


def replay(
    plan: Plan, progress: Progress, relabel: Callable[[Tokenised], Tokenised] | None = None
) -> Outcome:
    """Replay all logs of a plan.

    Args:
        relabel: changes a record before it is replayed, for example the workload that it counts to.

    Raises:
        LogError: a log cannot be read, see :class:`specplug.replay.traces.LogFile`.
        ReplayError: a check failed.
    """
    if plan.through_session and plan.traffic is not None:
        raise SettingsError(
            "--through-session replays one request at a time; leave out one of the two"
        )
    outcome = Outcome([{} for _ in plan.variants], {})
    if plan.traffic is not None:
        outcome.loads = [Load() for _ in plan.variants]
    reader = Reader(plan.tokenizer, plan.max_length)
    groups: Iterable[Sequence[LogFile]] = [plan.logs]
    if plan.order == "file":
        groups = [[log] for log in plan.logs]
    arrange = {"interleaved": in_turn, "arrival": by_arrival}.get(plan.order, one_after_the_other)
    for logs in groups:
        state = _State(plan, outcome)
        for chunk in reader.chunks(arrange(logs)):
            state.replay(chunk if relabel is None else [*map(relabel, chunk)], progress)
        state.end()
        for log in logs:
            progress.skip(log.size - log.position)
    outcome.too_long = reader.too_long
    return outcome
