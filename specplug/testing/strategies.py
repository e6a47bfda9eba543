"""Hypothesis strategies for laws, targets, histories, scenarios and options.

They shrink towards what a person can read: few tokens, small whole-number weights, one request,
greedy decoding.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from specplug.reference.enumerate_law import Tokens
from specplug.settings import describe
from specplug.testing.law import Arrival, RowOrder, Scenario, everyone
from specplug.testing.targets import MarkovTarget, SampledTarget
from specplug.types import IntArray

Drawn = TypeVar("Drawn")

#: Weights of tokens before they are normalised: equal ones give flat laws and exact ties, zeros
#: shrink the support, large ones give peaks that nearly always win.
WEIGHTS = st.sampled_from([1, 0, 2, 3, 5, 40, 1000])

#: Sampling parameters of the law tests: (temperature, top_k, top_p).
SAMPLING: tuple[tuple[float, int, float], ...] = (
    (0.0, 0, 1.0),
    (1.0, 0, 1.0),
    (0.7, 0, 1.0),
    (1.0, 2, 1.0),
    (1.0, 0, 0.75),
    (1.3, 2, 0.9),
)


def laws(vocab_size: int) -> st.SearchStrategy[NDArray[np.float64]]:
    """Distributions over ``vocab_size`` tokens: flat, peaked, tied, with zeros."""
    weights = st.lists(WEIGHTS, min_size=vocab_size, max_size=vocab_size).filter(any)
    return weights.map(lambda w: np.array(w, np.float64) / sum(w))


@st.composite
def markov_targets(draw: st.DrawFn, vocab_size: int, max_order: int = 2) -> MarkovTarget:
    """Markov targets of order 0 to ``max_order``."""
    order = draw(st.integers(0, max_order), label="order")
    table = np.empty((vocab_size,) * (order + 1))
    for state in np.ndindex(*table.shape[:-1]):
        table[state] = draw(laws(vocab_size), label=f"law after {state}")
    return MarkovTarget(table)


@st.composite
def sampled_targets(draw: st.DrawFn, vocab_size: int) -> SampledTarget:
    """A Markov target with one of the :data:`SAMPLING` settings."""
    target = draw(markov_targets(vocab_size))
    temperature, top_k, top_p = draw(st.sampled_from(SAMPLING), label="temperature, top_k, top_p")
    return SampledTarget(target, temperature, top_k, top_p)


def histories(
    vocab_size: int, max_size: int = 12, separators: bool = True
) -> st.SearchStrategy[Tokens]:
    """Token histories, repetitive more often than not, possibly empty, possibly with separators."""
    ids = st.integers(0, vocab_size - 1)
    repeated = st.builds(
        lambda motif, times, rest: (motif * times + rest)[:max_size],
        st.lists(ids, min_size=1, max_size=4),
        st.integers(2, 4),
        st.lists(ids, max_size=2),
    )
    foreign = st.one_of(ids, ids, st.sampled_from([-1, vocab_size, vocab_size + 7]))
    plain = st.lists(foreign if separators else ids, max_size=max_size)
    return st.one_of(repeated, repeated, plain).map(tuple)


def _rotated(by: int) -> RowOrder:
    return lambda step, running: running[by % len(running) :] + running[: by % len(running)]


def _alternating(step: int, running: list[int]) -> list[int]:
    """Preempts one of several requests, a different one in every step."""
    absent = step % len(running)
    return running if len(running) == 1 else running[:absent] + running[absent + 1 :]


def _reversed(step: int, running: list[int]) -> list[int]:
    return running[::-1] if step % 2 else running


ORDERS: tuple[RowOrder, ...] = (everyone, _reversed, _rotated(1), _alternating)


@st.composite
def scenarios(draw: st.DrawFn, vocab_size: int) -> Scenario:
    """One request, or two that share what the proposer keeps; small enough to be enumerated."""
    together = draw(st.booleans(), label="two requests")
    longest = {2: (5, 3), 3: (4, 2)}[vocab_size][together]
    arrivals = tuple(
        Arrival(
            prompt=draw(histories(vocab_size, max_size=8), label="prompt"),
            limit=draw(st.sampled_from([1, 2, longest, longest]), label="limit"),
            stop_token_ids=frozenset(draw(st.sets(st.integers(0, vocab_size - 1), max_size=1))),
            step=draw(st.sampled_from([0, 1, 99]), label="arrives at step") if index else 0,
            tell_limit=draw(st.booleans(), label="tell limit"),
            keep=draw(st.booleans(), label="keep"),
            request_id=draw(st.sampled_from([None, "same"]), label="id") if index else None,
        )
        for index in range(1 + together)
    )
    return Scenario(
        arrivals,
        order=draw(st.sampled_from(ORDERS), label="order of rows"),
        undrafted_steps=draw(st.frozensets(st.integers(0, 2), max_size=1), label="undrafted steps"),
    )


class ScriptedLengths:
    """A controller whose ceilings depend on the step and the slot only, from a fixed script."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self.script = script
        self.steps = 0

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        """See :class:`specplug.protocols.Controller`."""
        for row, slot in enumerate(slots.tolist()):
            ceilings[row] = min(
                int(limits[row]), self.script[(self.steps + slot) % len(self.script)]
            )
        self.steps += 1

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """The script does not learn."""


class EagerLengths(ScriptedLengths):
    """A controller that allows one more draft after full acceptance and one fewer after a rejection."""

    def __init__(self, script: tuple[int, ...]) -> None:
        super().__init__(script)
        self.lengths: dict[int, int] = {}

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        for row, slot in enumerate(slots.tolist()):
            ceilings[row] = min(int(limits[row]), self.lengths.get(slot, self.script[0]))

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        for slot, tried, kept in zip(
            slots.tolist(), drafted.tolist(), accepted.tolist(), strict=True
        ):
            self.lengths[slot] = max(1, kept + 1 if kept == tried else kept)


#: How many tokens may be drafted: by a script, or by the acceptance so far. Built anew for every
#: path.
LENGTH_RULES: st.SearchStrategy[tuple[type[ScriptedLengths], tuple[int, ...]]] = st.tuples(
    st.sampled_from([ScriptedLengths, EagerLengths]),
    st.lists(st.sampled_from([1, 2, 3, 4, 0]), min_size=1, max_size=3).map(tuple),
)


#: Endings of option names that are memory budgets. They are kept small: a session is built for
#: every path, and eviction has to happen within a few dozen tokens.
BUDGETS = ("_mb", "_bytes")


def options(settings_type: type | None) -> st.SearchStrategy[dict[str, Any]]:
    """Valid options of a settings dataclass: defaults, ends of ranges and values between, memory budgets small."""
    if settings_type is None:
        return st.just({})
    hints = get_type_hints(settings_type)
    rows = {row["name"]: row for row in describe(settings_type)}
    budgets = {name for name in rows if name.endswith(BUDGETS)}
    each = {name: _values(hints[name], row) for name, row in rows.items() if name not in budgets}
    return st.fixed_dictionaries({name: _budget(rows[name]) for name in budgets}, optional=each)


def _budget(row: dict[str, Any]) -> st.SearchStrategy[float]:
    low = row["minimum"] or 0
    sizes = (0.0, 0.01, 0.1) if row["name"].endswith("_mb") else (0, 10_000, 100_000)
    return st.sampled_from([low + size for size in sizes])


def _values(hint: Any, row: dict[str, Any]) -> st.SearchStrategy[Any]:
    alternatives = [st.just(row["default"])]
    for part in get_args(hint) if get_origin(hint) not in (None, Literal) else (hint,):
        if get_origin(part) is Literal:
            alternatives.append(st.sampled_from(get_args(part)))
        elif part is bool:
            alternatives.append(st.booleans())
        elif part in (int, float):
            alternatives.append(_numbers(part, row))
    return st.one_of(alternatives)


def _numbers(kind: type, row: dict[str, Any]) -> st.SearchStrategy[Any]:
    default = row["default"] if row["default"] is not None else 0
    low = row["minimum"] if row["minimum"] is not None else min(0, default)
    high = row["maximum"] if row["maximum"] is not None else max(low, default)
    # Not far above the default: large tables prove nothing and have to be allocated.
    high = min(high, max(low, default) + 8)
    return st.integers(int(low), int(high)) if kind is int else st.floats(float(low), float(high))
