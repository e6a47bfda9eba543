"""Which proposer with which settings: one setting is changed at a time, and a change stays if it helps.

Settings are chosen by the first part of a log and judged by the rest, which the chosen one reaches with the state that
it has by then, as a server would. The order of everything is fixed and host time plays no part in the choice, so two
runs choose the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specplug import registry, settings
from specplug.replay import runs
from specplug.replay.concurrent import Traffic
from specplug.replay.progress import Progress
from specplug.replay.reading import Tokenised
from specplug.replay.runs import COST_OPTION, Variant
from specplug.replay.tokenizers import TextTokenizer
from specplug.replay.traces import LogFile
from specplug.tune.forecast import Counts, counts

TRAIN, TEST = "train\x1f", "test\x1f"
#: Draft lengths that are tried.
WIDTHS = (4, 8, 16, 32)
#: A change must bring this much to be made.
WORTH = 1.003
#: Times that all settings are gone through; nearly always the second changes nothing.
ROUNDS = 2

Score = Callable[[Counts], float]


@dataclass(frozen=True)
class Setting:
    """A proposer, its options as they would be written, and the draft length."""

    proposer: str
    options: tuple[tuple[str, Any], ...]
    width: int

    def having(self, name: str, value: Any) -> Setting:
        """The same but for one setting; ``width`` is one."""
        if name == "width":
            return replace(self, width=value)
        kept = {**dict(self.options), name: value}
        return replace(self, options=tuple(sorted(kept.items())))


@dataclass(frozen=True)
class Measured:
    """What a replay with a setting counted.

    Attributes:
        train, test: of all workloads together.
        workloads: of the test part, by workload.
    """

    train: Counts
    test: Counts
    workloads: Mapping[str, Counts]


@dataclass(slots=True)
class Bench:
    """Replays settings over logs, each once.

    Attributes:
        open_logs: the logs, fresh, as each is read once.
        share: of each log that settings are chosen by, by bytes.
        measured: everything that was replayed, in order.
    """

    open_logs: Callable[[], Sequence[LogFile]]
    tokenizer: TextTokenizer
    share: float
    max_length: int
    traffic: Traffic | None = None
    quiet: bool = False
    measured: dict[Setting, Measured] = field(default_factory=dict)
    logs: Sequence[LogFile] = ()

    def run(self, wanted: Sequence[Setting]) -> None:
        """Replay what was not yet, together where only options differ, so that logs are read as seldom as possible."""
        fresh = [s for s in dict.fromkeys(wanted) if s not in self.measured]
        for width in dict.fromkeys(s.width for s in fresh):
            self._run([s for s in fresh if s.width == width], width)

    def _run(self, group: Sequence[Setting], width: int) -> None:
        self.logs = self.open_logs()
        plan = runs.Plan(
            [_variant(setting) for setting in group],
            self.logs,
            self.tokenizer,
            width=width,
            max_length=self.max_length,
            oracle=False,
            traffic=self.traffic,
        )
        with Progress(sum(log.size for log in self.logs), self.quiet) as progress:
            outcome = runs.replay(plan, progress, self._relabel)
        for setting, tallies in zip(group, outcome.tallies, strict=True):
            parts = {
                head: {name[len(head) :]: t for name, t in tallies.items() if name.startswith(head)}
                for head in (TRAIN, TEST)
            }
            self.measured[setting] = Measured(
                counts(parts[TRAIN].values()),
                counts(parts[TEST].values()),
                {name: counts([tally]) for name, tally in parts[TEST].items()},
            )

    def _relabel(self, record: Tokenised) -> Tokenised:
        head = TRAIN if record.share <= self.share else TEST
        return record._replace(workload=head + record.workload)


def search(
    bench: Bench,
    proposers: Sequence[tuple[str, Mapping[str, Any]]],
    costs: Sequence[float],
    score: Score,
) -> Setting:
    """The best setting by ``score`` of the train part.

    Args:
        proposers: names, each with the options that are not to be changed.
        costs: what a proposer with the option ``verify_cost`` may be told, the most likely in the middle.
    """
    best: Setting | None = None
    for name, given in proposers:
        found = _climb(bench, *_start(name, given, costs), score)
        if best is None or _score(bench, found, score) > WORTH * _score(bench, best, score):
            best = found
    assert best is not None
    return best


def _start(
    name: str, given: Mapping[str, Any], costs: Sequence[float]
) -> tuple[Setting, dict[str, Sequence[Any]]]:
    """Where to begin, and which values there are to try."""
    kind = registry.load(name).settings_type
    space: dict[str, Sequence[Any]] = {"width": WIDTHS}
    options = {str(key).replace("-", "_"): value for key, value in given.items()}
    for option in settings.describe(kind) if kind is not None else ():
        if option["name"] in options:
            continue
        if option["name"] == COST_OPTION:
            options[COST_OPTION] = costs[len(costs) // 2]
            space[COST_OPTION] = costs
        elif option["tune"]:
            space[option["name"]] = option["tune"]
    return Setting(registry.load(name).where, tuple(sorted(options.items())), 16), space


def _climb(
    bench: Bench, start: Setting, space: Mapping[str, Sequence[Any]], score: Score
) -> Setting:
    best = start
    for _ in range(ROUNDS):
        before = best
        for name, values in space.items():
            tried = [best.having(name, value) for value in values]
            bench.run([best, *tried])
            for setting in tried:
                if _score(bench, setting, score) > WORTH * _score(bench, best, score):
                    best = setting
        if best == before:
            break
    return best


def _score(bench: Bench, setting: Setting, score: Score) -> float:
    return score(bench.measured[setting].train)


def _variant(setting: Setting) -> Variant:
    given = dict(setting.options)
    return Variant(setting.proposer, registry.check(setting.proposer, given), given, None)
