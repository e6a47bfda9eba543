"""Synthetic traffic with known habits, and its replay through the suffix drafter.

Every request is drawn from a seeded generator: no text of anybody's, the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from specplug import registry
from specplug.replay.drivers import ProposerDriver
from specplug.replay.metrics import Tally
from specplug.replay.simulator import replay_record
from specplug.types import Context, TokenArray

Requests: TypeAlias = list[tuple[TokenArray, TokenArray]]

VOCABULARY = 5000
WIDTH = 16
COST = 0.03


class Writer:
    """Text with the statistics of language where they matter here: few words often, many rarely."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        weights = 1.0 / np.arange(1, VOCABULARY + 1)
        self.shares = weights / weights.sum()

    def words(self, count: int) -> list[int]:
        """``count`` independent words."""
        return [int(w) for w in self.rng.choice(VOCABULARY, count, p=self.shares)]

    def edited(self, text: list[int], rate: float) -> list[int]:
        """``text`` with that share of its words replaced, dropped or followed by a new one."""
        kinds = self.rng.integers(0, 3, len(text))
        done: list[int] = []
        for word, kind, draw in zip(text, kinds, self.rng.random(len(text)), strict=True):
            if draw >= rate:
                done.append(word)
            elif kind == 0:
                done += self.words(1)
            elif kind == 1:
                done += [word, *self.words(1)]
        return done


def editing(seed: int) -> Requests:
    """The response is the prompt with a few edits: rewriting a file."""
    writer = Writer(seed)
    prompts = [writer.words(250) for _ in range(20)]
    return [pair(p, writer.edited(p, 0.04)) for p in prompts]


def forms(seed: int) -> Requests:
    """Responses fill one of a few forms; their fixed parts were said in earlier responses only."""
    writer = Writer(seed)
    templates = [[writer.words(12) for _ in range(6)] for _ in range(5)]
    requests = []
    for _ in range(60):
        parts = templates[int(writer.rng.integers(len(templates)))]
        response = [word for part in parts for word in [*part, *writer.words(3)]]
        requests.append(pair(writer.words(30), response))
    return requests


def refrains(seed: int) -> Requests:
    """Responses repeat themselves: lists and tables whose rows differ in one word."""
    writer = Writer(seed)
    requests = []
    for _ in range(25):
        row = writer.words(10)
        response: list[int] = []
        for _ in range(12):
            response += [*row[:5], *writer.words(1), *row[5:]]
        requests.append(pair(writer.words(20), response))
    return requests


def noise(seed: int) -> Requests:
    """Nothing repeats but by chance: what a drafter must not waste work on."""
    writer = Writer(seed)
    return [pair(writer.words(50), writer.words(150)) for _ in range(25)]


WORKLOADS: dict[str, Callable[[int], Requests]] = {
    "editing": editing,
    "forms": forms,
    "refrains": refrains,
    "noise": noise,
}


def pair(prompt: list[int], response: list[int]) -> tuple[TokenArray, TokenArray]:
    """Prompt and response as arrays."""
    return np.array(prompt, np.int32), np.array(response, np.int32)


def play(requests: Requests, options: dict[str, Any], driver_type: Any = ProposerDriver) -> Tally:
    """Replay through one fresh ``specplug.suffix``."""
    context = Context(VOCABULARY, 4096, WIDTH, max_requests=1)
    options = {"verify_cost": COST, "store_mb": 1.0, **options}
    driver = driver_type(registry.build("suffix", context, options), context)
    tally = Tally()
    for prompt, response in requests:
        replay_record(driver, prompt, response, tally)
    return tally


@pytest.fixture(scope="session")
def workloads() -> dict[str, Requests]:
    """The four workloads."""
    return {name: make(2024) for name, make in WORKLOADS.items()}


@pytest.fixture(scope="session")
def suffix() -> Callable[..., Tally]:
    """``suffix(requests, options, driver_type)`` -> counts of a replay."""
    return lambda requests, options=None, driver_type=ProposerDriver: play(
        requests, options or {}, driver_type
    )
