"""Several proposers over several logs: which states exist, in which order requests come, where counts go."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from specplug import registry
from specplug.errors import SettingsError
from specplug.protocols import Proposer
from specplug.replay.drivers import Driver, ProposerDriver, SessionDriver
from specplug.replay.metrics import Tally
from specplug.replay.oracle import Oracle
from specplug.replay.progress import Progress
from specplug.replay.simulator import ContractCheck, replay_record
from specplug.replay.tokenizers import TextTokenizer
from specplug.replay.traces import LogFile, Record
from specplug.types import Context, TokenArray

Order = Literal["file", "interleaved"]

#: The option that tells a proposer what verifying a draft token costs. A replay sets it to each of its costs.
COST_OPTION = "verify_cost"
#: Tokens that are held in memory at a time.
CHUNK_TOKENS = 1 << 21
CHUNK_RECORDS = 4096
ENCODE_RECORDS = 64


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


class Tokenised(NamedTuple):
    """A record as token ids, and its share of the log in bytes."""

    workload: str
    prompt: TokenArray
    response: TokenArray
    size: int


@dataclass(slots=True)
class Plan:
    """What to replay, and how.

    Attributes:
        variants: in the order of the report.
        logs: each is read once.
        order: ``"file"``: each log has a state of its own, requests come in file order; ``"interleaved"``: one state
            for all, one request of each log in turn.
        width: most draft tokens per step.
        max_length: requests with more tokens are left out and counted.
        check_every: check drafts, and invariants at every that many steps; 0 for no checks.
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


@dataclass(slots=True)
class Outcome:
    """Counts by variant and workload, the oracle's by workload, and requests that were too long by log."""

    tallies: list[dict[str, Tally]]
    oracle: dict[str, Tally]
    too_long: dict[str, int] = field(default_factory=dict)


class _State:
    """Drivers and oracle that live together."""

    def __init__(self, plan: Plan, outcome: Outcome) -> None:
        vocabulary = plan.tokenizer.vocab_size
        context = Context(vocabulary, plan.max_length, plan.width, max_requests=1)
        self.parts: list[tuple[dict[str, Tally], Callable[[Tokenised, Tally], None]]] = []
        for variant, tallies in zip(plan.variants, outcome.tallies, strict=True):
            wrap = SessionDriver if plan.through_session else ProposerDriver
            driver: Driver = wrap(variant.build(context), context)
            check = None
            if plan.check_every:
                check = ContractCheck(plan.width, vocabulary, plan.check_every)
            self.parts.append((tallies, _player(driver, check)))
        if plan.oracle:
            oracle = Oracle(vocabulary, plan.width)
            self.parts.append(
                (outcome.oracle, lambda r, tally: oracle.replay(r.prompt, r.response, tally))
            )

    def replay(self, chunk: Sequence[Tokenised], progress: Progress) -> None:
        """One drafter after the other over the same requests, so that each finds the caches its own."""
        for tallies, play in self.parts:
            gc.collect()
            for record in chunk:
                progress.at(record.workload)
                play(record, tallies.setdefault(record.workload, Tally()))
                progress.done(record.size / len(self.parts))


def _player(driver: Driver, check: ContractCheck | None) -> Callable[[Tokenised, Tally], None]:
    def play(record: Tokenised, tally: Tally) -> None:
        replay_record(driver, record.prompt, record.response, tally, check)

    return play


def replay(plan: Plan, progress: Progress) -> Outcome:
    """Replay all logs of a plan.

    Raises:
        LogError: a log cannot be read, see :class:`specplug.replay.traces.LogFile`.
        ReplayError: a check failed.
    """
    outcome = Outcome([{} for _ in plan.variants], {})
    if plan.order == "interleaved":
        state = _State(plan, outcome)
        for chunk in chunks(plan, _in_turn(plan.logs), outcome):
            state.replay(chunk, progress)
    else:
        for log in plan.logs:
            state = _State(plan, outcome)
            for chunk in chunks(plan, ((log, record) for record in log), outcome):
                state.replay(chunk, progress)
            progress.skip(log.size - log.position)
    return outcome


def _in_turn(logs: Sequence[LogFile]) -> Iterator[tuple[LogFile, Record]]:
    """One record of each log, then the next of each, until all are read."""
    waiting = [(log, iter(log)) for log in logs]
    while waiting:
        left = []
        for log, records in waiting:
            record = next(records, None)
            if record is not None:
                left.append((log, records))
                yield log, record
        waiting = left


def chunks(
    plan: Plan, records: Iterable[tuple[LogFile, Record]], outcome: Outcome
) -> Iterator[list[Tokenised]]:
    """Tokenised records, as many at a time as :data:`CHUNK_TOKENS` allows."""
    chunk: list[Tokenised] = []
    tokens = 0
    for record in _tokenised(plan, records, outcome):
        chunk.append(record)
        tokens += len(record.prompt) + len(record.response)
        if tokens >= CHUNK_TOKENS or len(chunk) >= CHUNK_RECORDS:
            yield chunk
            chunk, tokens = [], 0
    if chunk:
        yield chunk


def _tokenised(
    plan: Plan, records: Iterable[tuple[LogFile, Record]], outcome: Outcome
) -> Iterator[Tokenised]:
    group: list[tuple[LogFile, Record, int]] = []
    seen: dict[int, int] = {}
    for log, record in records:
        size = log.position - seen.get(id(log), 0)
        seen[id(log)] = log.position
        group.append((log, record, size))
        if len(group) == ENCODE_RECORDS:
            yield from _encode(plan, group, outcome)
            group = []
    yield from _encode(plan, group, outcome)


def _encode(
    plan: Plan, group: Sequence[tuple[LogFile, Record, int]], outcome: Outcome
) -> Iterator[Tokenised]:
    texts = [text for _, record, _ in group for text in (record.prompt, record.response)]
    ids = iter(plan.tokenizer.encode(texts))
    for (log, record, size), prompt, response in zip(group, ids, ids, strict=True):
        if len(prompt) + len(response) > plan.max_length:
            outcome.too_long[log.name] = outcome.too_long.get(log.name, 0) + 1
            continue
        yield Tokenised(record.workload, prompt, response, size)
