"""Every path through a program that chooses at random, found by running it again and again.

The program asks an :class:`Oracle` for each of its random choices. :func:`explore` runs it once
per path: the choices made before are repeated, the last one that has an alternative left takes the
next one. The program may therefore hold any state (a proposer, a session); it is built anew for
each path and never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from specplug.errors import SpecplugError

Outcome = TypeVar("Outcome", bound=Hashable)


class NotReplayableError(SpecplugError, RuntimeError):
    """The same choices led to another program: something besides them decides (a clock, a global generator)."""


class TooManyPathsError(SpecplugError, RuntimeError):
    """The enumeration would not end in reasonable time."""


@dataclass(slots=True)
class _Choice:
    weights: tuple[float, ...]
    taken: int


class Oracle:
    """Answers the random choices of one run; chance zero is never taken.

    ``weight`` is the probability of all the answers so far.
    """

    def __init__(self, trail: list[_Choice]) -> None:
        self._trail = trail
        self._position = 0
        self.weight = 1.0

    def choose(self, weights: Sequence[float]) -> int:
        """An index into ``weights``, probabilities that sum to 1 within rounding."""
        asked = tuple(float(w) for w in weights)
        if self._position == len(self._trail):
            self._trail.append(_Choice(asked, _next_positive(asked, -1, self._position)))
        choice = self._trail[self._position]
        if choice.weights != asked:
            raise NotReplayableError(
                f"random choice {self._position} of this run offers {asked}, but with the same choices before it, it "
                f"offered {choice.weights}; a proposer must depend on nothing but what it is told "
                "(no clock, no generator of its own, no iteration over a set)"
            )
        self._position += 1
        self.weight *= asked[choice.taken]
        return choice.taken

    def ended_early(self) -> bool:
        """Whether the run asked for fewer choices than the one it should repeat."""
        return self._position < len(self._trail)


def explore(program: Callable[[Oracle], Outcome], max_paths: int = 100_000) -> dict[Outcome, float]:
    """The law of what ``program`` returns.

    Raises:
        NotReplayableError: the program has a source of chance besides its oracle.
        TooManyPathsError: more than ``max_paths`` paths.
    """
    law: dict[Outcome, float] = {}
    trail: list[_Choice] = []
    for _ in range(max_paths):
        oracle = Oracle(trail)
        outcome = program(oracle)
        if oracle.ended_early():
            raise NotReplayableError(
                f"a run ended {outcome!r} after fewer random choices than the run it repeats"
            )
        law[outcome] = law.get(outcome, 0.0) + oracle.weight
        if not _advance(trail):
            return law
    raise TooManyPathsError(
        f"more than {max_paths} paths; use a smaller vocabulary, fewer tokens or a shorter draft"
    )


def _advance(trail: list[_Choice]) -> bool:
    while trail:
        last = trail[-1]
        following = _next_positive(last.weights, last.taken, len(trail) - 1)
        if following < len(last.weights):
            last.taken = following
            return True
        trail.pop()
    return False


def _next_positive(weights: tuple[float, ...], after: int, position: int) -> int:
    for index in range(after + 1, len(weights)):
        if weights[index] > 0.0:
            return index
    if after < 0:
        raise ValueError(f"random choice {position} has no option of positive weight: {weights}")
    return len(weights)
