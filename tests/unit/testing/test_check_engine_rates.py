"""How often ``check-engine`` errs: 200 seeded trials on equal servers, 15 on biased ones.

The trials run through everything but the sockets. All seeds are fixed, so the counts are the same every time; the
bounds say what they may be for the stated rates to be believed.
"""

from __future__ import annotations

from typing import Any

import pytest

from specplug.testing.server_client import Client
from specplug.testing.server_comparison import Plan, Result, compare_servers
from specplug.testing.toy_server import LAW, Toy

pytestmark = pytest.mark.thorough

#: Total variation distance 0.1 from LAW.
BIASED = (0.2, 0.3, *LAW[2:])
MODES = ("temperature-1.0",)


class Direct(Client):
    """Hands requests to a toy without a network."""

    def __init__(self, toy: Toy) -> None:
        super().__init__("http://127.0.0.1:1", "toy")
        self._toy = toy
        self.choose_model(None)

    def _request(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        status, answer = self._toy.get(path) if method == "GET" else self._toy.complete(body)
        return status, answer.decode()


def trial(seed: int, law: tuple[float, ...], samples: int) -> Result:
    plan = Plan(
        {"one": "1", "two": "2"}, MODES, samples, tokens=2, batch=samples, concurrency=1, seed=seed
    )
    return compare_servers(Direct(Toy(law, 2 * seed)), Direct(Toy(seed=2 * seed + 1)), plan)


def test_equal_servers_are_called_equal() -> None:
    """Stated rate 1 %: 2 wrong of 200 on average at most, more than 7 with probability 0.001."""
    wrong = sum(trial(seed, LAW, 150).different for seed in range(200))
    assert wrong <= 7, f"{wrong} of 200 verdicts are wrong"


def test_a_bias_of_a_tenth_is_found() -> None:
    """In both prompts, 600 samples each: power 0.99, so 12 of 15 or fewer with probability below 0.001."""
    found = sum(trial(seed, BIASED, 600).different for seed in range(15))
    assert found > 12, f"found in {found} of 15 trials"
