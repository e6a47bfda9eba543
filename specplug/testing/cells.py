"""The exact law of what one verification emits, from the real kernels.

A verifier is a function of its coins that is constant on boxes: each coin matters only through
which of finitely many intervals it falls into. Running the verifier once per box, and weighing
each outcome with the volume of its box, gives its law without sampling and without a model of the
verifier. Near both ends of each box it is run again, so that an edge which was forgotten is
noticed. Where the edges are not known they are searched for: see :func:`search_edges`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.errors import SpecplugError
from specplug.reference.enumerate_law import Tokens
from specplug.testing.targets import DraftRow
from specplug.types import IntArray, ProbArray, TokenArray

#: Boxes narrower than this are weighed but not probed: rounding decides what happens in them.
NARROW = 1e-12


class Batch(NamedTuple):
    """Inputs of a verification of ``B`` rows that all hold ``n`` drafts or fewer."""

    target: ProbArray
    tokens: TokenArray
    lengths: IntArray
    parents: IntArray | None
    draft_probs: ProbArray | None


class HiddenEdgeError(SpecplugError, RuntimeError):
    """A verifier changes its mind inside a box that was thought to be decided."""


@dataclass(frozen=True)
class Verifier:
    """How to drive a verification through all of its decisions.

    Attributes:
        name: for messages.
        run: from a batch and uniforms (float64 ``[B, coins]``) to the emitted tokens of each row,
            int32 ``[B, n + 1]`` padded with -1.
        edges: from the target (float64 ``[n + 1, V]``) and a draft to one array per coin, the
            interior points at which that coin's meaning may change. More points than needed do no
            harm. None: they are searched for.
        coins: number of coins for ``n`` drafts.
        greedy: wants the target's logits instead of its law.
    """

    name: str
    run: Callable[[Batch, ProbArray], NDArray[np.int32]]
    edges: Callable[[ProbArray, DraftRow], Sequence[NDArray[np.float64]]] | None
    coins: Callable[[int], int]
    greedy: bool = False

    def __repr__(self) -> str:
        return f"Verifier({self.name!r})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would show every field


def emitted_cells(verifier: Verifier, target: ProbArray, draft: DraftRow) -> dict[Tokens, float]:
    """The law of the tokens that ``verifier`` emits in one step.

    Args:
        verifier: what is driven.
        target: float64 ``[n + 1, V]``, law (or logits) of the target after 0 to ``n`` drafts, or
            after each node of a tree.
        draft: the ``n`` drafts.

    Raises:
        HiddenEdgeError: the outcome changes inside a box; the verifier's ``edges`` are incomplete.
    """
    if verifier.edges is not None:
        return _weigh(verifier, target, draft, verifier.edges(target, draft))
    found = search_edges(
        verifier, target, draft, [np.array([0.011, 0.987])] * _coins(verifier, draft)
    )
    try:
        return _weigh(verifier, target, draft, found)
    except HiddenEdgeError:
        # Some threshold shows only while another coin is in a narrow interval: look from the middle of each.
        middles = [start + 0.5 * width for start, width in map(_intervals, found)]
        return _weigh(verifier, target, draft, search_edges(verifier, target, draft, middles))


def _coins(verifier: Verifier, draft: DraftRow) -> int:
    return verifier.coins(len(draft.tokens))


def _weigh(
    verifier: Verifier, target: ProbArray, draft: DraftRow, edges: Sequence[NDArray[np.float64]]
) -> dict[Tokens, float]:
    """Run the verifier in every box between the edges, and at two more points of each."""
    grids = [_intervals(cuts) for cuts in edges]
    starts = _grid([g[0] for g in grids])
    widths = _grid([g[1] for g in grids])
    outcomes = _run(verifier, target, draft, starts + 0.5 * widths)
    wide = (widths > NARROW).all(axis=1)
    for share in (1e-4, 1.0 - 1e-4):
        probed = _run(verifier, target, draft, starts + share * widths)
        changed = np.flatnonzero(wide & (probed != outcomes).any(axis=1))
        if len(changed):
            box = changed[0]
            raise HiddenEdgeError(
                f"verifier {verifier.name!r}: coins {(starts + 0.5 * widths)[box]} emit "
                f"{_strip(outcomes[box])}, but coins {(starts + share * widths)[box]} of the same "
                f"box emit {_strip(probed[box])}; its edges lack a point between them"
            )
    law: dict[Tokens, float] = {}
    for outcome, weight in zip(outcomes.tolist(), widths.prod(axis=1).tolist(), strict=True):
        if weight > 0.0:
            key = _strip(outcome)
            law[key] = law.get(key, 0.0) + weight
    return law


def search_edges(
    verifier: Verifier,
    target: ProbArray,
    draft: DraftRow,
    places: Sequence[NDArray[np.float64]],
) -> list[NDArray[np.float64]]:
    """Find the edges of each coin by bisection, while the others stand at each of their ``places``.

    Misses two edges that lie within 1 / 48 of each other if the outcome is the same on both sides.
    """
    return [
        _search(verifier, target, draft, coin, [*places[:coin], *places[coin + 1 :]])
        for coin in range(len(places))
    ]


def _search(
    verifier: Verifier,
    target: ProbArray,
    draft: DraftRow,
    coin: int,
    places: list[NDArray[np.float64]],
) -> NDArray[np.float64]:
    others = _grid(places)
    steps = np.linspace(0.0, np.nextafter(1.0, 0.0), 49)

    def outcomes(rest: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.int32]:
        return _run(verifier, target, draft, np.insert(rest, coin, points, axis=1))

    rest = np.repeat(others, len(steps), axis=0)
    found = outcomes(rest, np.tile(steps, len(others)))
    changes = (found[1:] != found[:-1]).any(axis=1) & (np.arange(1, len(found)) % len(steps) > 0)
    left = np.flatnonzero(changes)
    if not len(left):
        return np.zeros(0)
    low, high = steps[left % len(steps)], steps[left % len(steps) + 1]
    before, fixed = found[left], rest[left]
    for _ in range(55):
        middle = 0.5 * (low + high)
        same = (outcomes(fixed, middle) == before).all(axis=1)
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return high


def _intervals(cuts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Starts and widths of the intervals between cuts; cuts that differ by rounding only are one."""
    inner = np.sort(cuts[(cuts > 1e-15) & (cuts < 1.0 - 1e-15)])
    distinct = inner[np.diff(inner, prepend=0.0) > 1e-15]
    points = np.concatenate(([0.0], distinct, [1.0]))
    return points[:-1], np.diff(points)


def _grid(axes: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    if not axes:
        return np.zeros((1, 0))
    return np.stack([m.ravel() for m in np.meshgrid(*axes, indexing="ij")], axis=1)


def _run(
    verifier: Verifier, target: ProbArray, draft: DraftRow, coins: NDArray[np.float64]
) -> NDArray[np.int32]:
    """One row per box, each behind a row of another kind: a verifier that mixes up its rows shows."""
    rows = 2 * len(coins)
    mixed = np.full((rows, coins.shape[1]), 0.5)
    # The middle of a box of a few bits can round to its end, and 1 is no coin.
    mixed[1::2] = np.minimum(coins, np.nextafter(1.0, 0.0))
    spread = partial(_interleave, rows)
    length = len(draft.tokens)
    lengths = np.full(rows, length, np.int32)
    lengths[::2] = length // 2
    batch = Batch(
        spread(target[::-1], target),
        spread((draft.tokens + 1) % target.shape[1], draft.tokens),
        lengths,
        None if draft.parents is None else spread(draft.parents, draft.parents),
        None
        if draft.draft_probs is None
        else spread(np.roll(draft.draft_probs, 1, axis=-1), draft.draft_probs),
    )
    return verifier.run(batch, mixed)[1::2]


def _interleave(rows: int, decoy: NDArray[Any], real: NDArray[Any]) -> NDArray[Any]:
    out = np.empty((rows, *real.shape), real.dtype)
    out[::2] = decoy
    out[1::2] = real
    return out


def _strip(outcome: Any) -> Tokens:
    return tuple(int(token) for token in outcome if token >= 0)
