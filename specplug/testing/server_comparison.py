"""Two servers, the same questions: sample both, and judge per prompt and sampling mode whether they differ."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, Literal

from specplug.testing.server_client import UNITS, Answer, Client, ServerError
from specplug.testing.statistics import (
    Comparison,
    Tokens,
    combine,
    compare_samples,
    holm,
    permutations_for,
)

#: What is sent along per mode. Never a seed: engines draft less for seeded requests, or not at all.
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature-1.0": {"temperature": 1.0, "top_p": 1.0},
    "temperature-0.7": {"temperature": 0.7, "top_p": 1.0},
    "top-p-0.9": {"temperature": 1.0, "top_p": 0.9},
}
DEFAULT_MODES = ("greedy", "temperature-1.0", "top-p-0.9")
ALL_PROMPTS = "all prompts"
#: Nats. Verifying several tokens at once uses other kernels than decoding one, so that log-probabilities differ by
#: about 1e-4 even in float32; where the two best tokens are closer than this, either is a right greedy answer.
NEAR_TIE = 1e-3

Verdict = Literal["same", "near-tie", "different"]


@dataclass(frozen=True)
class Plan:
    """What is asked.

    Attributes:
        prompts: by name.
        modes: keys of :data:`MODES`.
        samples: answers per prompt, sampling mode and server. Greedy requests are sent once.
        tokens: length of a sampled answer.
        greedy_tokens: length of a greedy answer.
        batch: answers per request (the field ``n``).
        concurrency: requests in flight per server.
        seed: of the order of requests and of the permutations; the servers' own coins are theirs.
        alpha: probability that any sampled row of the table says ``different`` although the servers' laws are the same.
        near_tie: see :data:`NEAR_TIE`.
    """

    prompts: Mapping[str, str]
    modes: Sequence[str] = DEFAULT_MODES
    samples: int = 1000
    tokens: int = 4
    greedy_tokens: int = 48
    batch: int = 50
    concurrency: int = 4
    seed: int = 0
    alpha: float = 0.01
    near_tie: float = NEAR_TIE

    @property
    def sampled(self) -> list[str]:
        """The modes with coins."""
        return [mode for mode in self.modes if mode != "greedy"]

    @property
    def answers(self) -> int:
        """Answers asked for in total."""
        per_prompt = len(self.sampled) * self.samples + ("greedy" in self.modes)
        return 2 * len(self.prompts) * per_prompt


@dataclass(frozen=True)
class Row:
    """One line of the verdict table.

    Attributes:
        prompt, mode: what was asked; the prompt is :data:`ALL_PROMPTS` where they were taken together.
        verdict: ``near-tie`` counts as the same.
        samples: answers per server.
        p_value: of this row alone; None for greedy rows.
        adjusted: corrected for the number of rows; at most ``alpha`` means different.
        distance: total variation distance between what was seen, noise included.
        detail: the largest difference.
    """

    prompt: str
    mode: str
    verdict: Verdict
    samples: int
    p_value: float | None = None
    adjusted: float | None = None
    distance: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Result:
    """Everything that a report needs.

    Attributes:
        rows: the verdicts.
        unit: one of :data:`~specplug.testing.server_client.UNITS`.
        drafted: drafts during the check by the server's own count, or None if it publishes none; both servers.
    """

    rows: list[Row]
    unit: str
    drafted: tuple[float | None, float | None]

    @property
    def different(self) -> bool:
        """Whether any row says so."""
        return any(row.verdict == "different" for row in self.rows)


@dataclass(frozen=True)
class _Task:
    side: int
    prompt: str
    mode: str
    n: int


@dataclass
class _Collected:
    """Answers by side, prompt and mode."""

    answers: dict[tuple[int, str, str], list[Answer]] = field(default_factory=dict)

    def add(self, task: _Task, found: list[Answer]) -> None:
        self.answers.setdefault((task.side, task.prompt, task.mode), []).extend(found)

    def sequences(self, side: int, prompt: str, mode: str) -> list[Tokens]:
        return [answer.items for answer in self.answers[side, prompt, mode]]


def common_unit(clients: Sequence[Client]) -> str:
    """The finest unit that every server offers.

    Raises:
        ServerError: a server does not even return text.
    """
    for unit in UNITS:
        offered = [client.offers(unit) for client in clients]
        if all(offered):
            return unit
    lacking = [str(c) for c, offer in zip(clients, offered, strict=True) if not offer]
    raise ServerError(f"{' and '.join(lacking)} returned no text for a completion of two tokens")


def compare_servers(
    tested: Client, baseline: Client, plan: Plan, done: Callable[[int], None] = lambda n: None
) -> Result:
    """Ask both servers, and judge.

    Args:
        tested, baseline: their models are chosen already.
        plan: what to ask.
        done: called with the number of answers whenever some arrived, from the calling thread.

    Raises:
        ServerError: a server failed; nothing is judged then.
    """
    clients = (tested, baseline)
    unit = common_unit(clients)
    before = [client.drafted() for client in clients]
    collected = _collect(clients, plan, unit, done)
    after = [client.drafted() for client in clients]
    gained = [None if b is None or a is None else a - b for b, a in zip(before, after, strict=True)]
    rows = [
        *(_greedy_rows(baseline, plan, unit, collected) if "greedy" in plan.modes else ()),
        *_sampled_rows(plan, collected),
    ]
    return Result(rows, unit, (gained[0], gained[1]))


def _tasks(plan: Plan) -> list[_Task]:
    """All requests, shuffled: prompts and modes meet in the engine's batches, as they do in real use."""
    tasks = [
        _Task(side, prompt, mode, min(plan.batch, wanted - start))
        for side in (0, 1)
        for prompt in plan.prompts
        for mode in plan.modes
        for wanted in (1 if mode == "greedy" else plan.samples,)
        for start in range(0, wanted, plan.batch)
    ]
    random.Random(plan.seed).shuffle(tasks)
    return tasks


def _collect(
    clients: Sequence[Client], plan: Plan, unit: str, done: Callable[[int], None]
) -> _Collected:
    def ask(task: _Task) -> list[Answer]:
        length = plan.greedy_tokens if task.mode == "greedy" else plan.tokens
        params = {**MODES[task.mode], "max_tokens": length}
        return clients[task.side].answers(plan.prompts[task.prompt], params, unit, task.n)

    collected = _Collected()
    pools = [ThreadPoolExecutor(plan.concurrency) for _ in clients]
    try:
        waiting = {pools[task.side].submit(ask, task): task for task in _tasks(plan)}
        for future in as_completed(waiting):
            task = waiting[future]
            collected.add(task, future.result())
            done(task.n)
    finally:
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
    return collected


def _greedy_rows(baseline: Client, plan: Plan, unit: str, collected: _Collected) -> Iterator[Row]:
    for name, prompt in plan.prompts.items():
        got, want = (collected.sequences(side, name, "greedy")[0] for side in (0, 1))
        at = next(
            (i for i, pair in enumerate(zip(got, want, strict=False)) if len(set(pair)) > 1), None
        )
        if at is None and len(got) != len(want):
            at = min(len(got), len(want))
        if at is None:
            yield Row(name, "greedy", "same", 1)
            continue
        pair = (_at(got, at), _at(want, at))
        gap = baseline.gap(prompt, unit, at, pair)
        near = gap is not None and gap <= plan.near_tie
        detail = f"{unit.rstrip('s')} {at + 1}: {pair[0]!r}, baseline {pair[1]!r}"
        if gap is not None:
            detail += f"; baseline's log-probabilities are {gap:.2g} apart"
        yield Row(name, "greedy", "near-tie" if near else "different", 1, detail=detail)


def _at(items: Tokens, at: int) -> Any:
    return items[at] if at < len(items) else "nothing"


def _sampled_rows(plan: Plan, collected: _Collected) -> list[Row]:
    count = len(plan.sampled) * (len(plan.prompts) + (len(plan.prompts) > 1))
    permutations = permutations_for(max(1, count), plan.alpha)
    keys: list[tuple[str, str]] = []
    found: list[Comparison | None] = []
    p_values: list[float] = []
    for at, mode in enumerate(plan.sampled):
        own = [
            compare_samples(
                collected.sequences(0, name, mode),
                collected.sequences(1, name, mode),
                seed=[plan.seed, at, number],
                permutations=permutations,
            )
            for number, name in enumerate(plan.prompts)
        ]
        keys += [(name, mode) for name in plan.prompts]
        found += own
        p_values += [c.p_value for c in own]
        if len(own) > 1:
            keys.append((ALL_PROMPTS, mode))
            found.append(None)
            seed = [plan.seed, at, len(own)]
            p_values.append(combine(own, seed=seed, permutations=permutations))
    return [
        _row(plan, *key, comparison, p_value, adjusted)
        for key, comparison, p_value, adjusted in zip(
            keys, found, p_values, holm(p_values), strict=True
        )
    ]


def _row(
    plan: Plan, prompt: str, mode: str, found: Comparison | None, p_value: float, adjusted: float
) -> Row:
    verdict: Verdict = "different" if adjusted <= plan.alpha else "same"
    if found is None:
        return Row(prompt, mode, verdict, plan.samples * len(plan.prompts), p_value, adjusted)
    detail = ""
    if found.length == 0:
        detail = "one and the same answer every time"
    elif verdict == "different":
        what = "rare answers" if found.prefix is None else repr(list(found.prefix))
        detail = f"{what}: {found.shares[0]:.3f}, baseline {found.shares[1]:.3f}"
    return Row(prompt, mode, verdict, plan.samples, p_value, adjusted, found.distance, detail)
