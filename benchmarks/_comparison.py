"""Replays of every drafter over every workload, alternating, so that a change of the machine's load hits all alike."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _drafters import Drafter

from specplug.replay.drivers import Driver
from specplug.replay.metrics import Tally
from specplug.replay.oracle import Memory, Oracle
from specplug.replay.simulator import replay_record
from specplug.replay.tokenizers import TextTokenizer
from specplug.replay.traces import Choice, LogFile
from specplug.types import TokenArray

Requests = list[tuple[TokenArray, TokenArray]]
Tallies = dict[str, dict[str, Tally]]

#: Requests that one drafter replays before the next one has its turn, where all workloads share a state.
TURN = 50
ORACLE = "oracle"


def load(
    folder: Path, tokenizer: TextTokenizer, limit: int | None, only: Sequence[str]
) -> dict[str, Requests]:
    """Prompts and responses of every log in a folder, as token ids, by the file's name."""
    found: dict[str, Requests] = {}
    for path in sorted(folder.glob("*.jsonl*")):
        log = LogFile(path, strict=True, choice=Choice(limit=limit))
        if only and log.name not in only:
            continue
        texts = [text for record in log for text in (record.prompt, record.response)]
        ids = iter(tokenizer.encode(texts))
        found[log.name] = list(zip(ids, ids, strict=True))
    return found


def compare(
    workloads: Mapping[str, Requests],
    drafters: Sequence[Drafter],
    width: int,
    interleaved: bool,
) -> Tallies:
    """Counts by workload and drafter, the oracle's (:data:`ORACLE`) among them.

    ``interleaved``: one state per drafter for all workloads, one request of each in turn; else one per workload.
    """
    tallies: Tallies = {w: {d.name: Tally() for d in drafters} for w in workloads}
    for counts in tallies.values():
        counts[ORACLE] = Tally()
    groups = (
        [list(_in_turn(workloads))] if interleaved else [_of_one(w, workloads) for w in workloads]
    )
    for number, group in enumerate(groups):
        drivers = {d.name: d.make() for d in drafters}
        memory, oracle = Memory(width + 1), Oracle(width)
        for start in range(0, len(group), TURN if interleaved else len(group) or 1):
            turn = group[start : start + (TURN if interleaved else len(group))]
            print(f"  {turn[0][0] if not interleaved else f'{start} of {len(group)}'}", flush=True)
            # Whoever comes first finds the caches coldest: everyone does in turn.
            shift = (number + start // TURN) % len(drivers)
            names = [*drivers][shift:] + [*drivers][:shift]
            for name in names:
                _play(drivers[name], name, turn, tallies)
            for workload, prompt, response in turn:
                seen = memory.look(prompt, response)
                oracle.replay(prompt, response, seen, tallies[workload][ORACLE])
    return tallies


def _play(
    driver: Driver, name: str, turn: list[tuple[str, TokenArray, TokenArray]], tallies: Tallies
) -> None:
    gc.collect()
    for workload, prompt, response in turn:
        replay_record(driver, prompt, response, tallies[workload][name])


def _of_one(workload: str, workloads: Mapping[str, Requests]) -> list[tuple[str, Any, Any]]:
    return [(workload, prompt, response) for prompt, response in workloads[workload]]


def _in_turn(workloads: Mapping[str, Requests]) -> Iterator[tuple[str, TokenArray, TokenArray]]:
    for number in range(max(map(len, workloads.values()))):
        for name, requests in workloads.items():
            if number < len(requests):
                yield (name, *requests[number])
