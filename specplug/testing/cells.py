"""The exact law of what one verification emits, from the real kernels.

A verifier is a function of its coins that is constant on boxes: each coin matters only through
which of finitely many intervals it falls into. Running the verifier once per box, and weighing
each outcome with the volume of its box, gives its law without sampling and without a model of the
verifier. Near both ends of each box it is run again, so that an edge which was forgotten is
noticed.
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
        interior points at which that coin's meaning may change. More points than needed do no harm.
        coins: number of coins for ``n`` drafts.
        greedy: wants the target's logits instead of its law.
    """

    name: str
    run: Callable[[Batch, ProbArray], NDArray[np.int32]]
    edges: Callable[[ProbArray, DraftRow], Sequence[NDArray[np.float64]]]
    coins: Callable[[int], int]
    greedy: bool = False


def emitted_cells(verifier: Verifier, target: ProbArray, draft: DraftRow) -> dict[Tokens, float]:
    """The law of the tokens that ``verifier`` emits in one step.

    Args:
        verifier: what is driven.
        target: float64 ``[n + 1, V]``, law (or logits) of the target after 0 to ``n`` drafts, or
        after each node of a tree. draft: the ``n`` drafts.

    Raises:
        HiddenEdgeError: the outcome changes inside a box; the verifier's ``edges`` are incomplete.
    """
    grids = [_intervals(cuts) for cuts in verifier.edges(target, draft)]
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


def _intervals(cuts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    inner = cuts[(cuts > 0.0) & (cuts < 1.0)]
    points = np.unique(np.concatenate(([0.0], inner, [1.0])))
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
