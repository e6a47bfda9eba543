"""How likely a draft token is to be accepted: the proposer's estimate, corrected by what happened.

A proposer says, per position, how likely it is that this token and all before it are accepted. Divided by the value
before, that is the chance ``p`` of a position given that all before it were accepted. The model corrects its odds,
``odds(q) = odds(p) * exp(depth bias + group bias + request bias + source bias)``, and learns the biases online: one per
bucket of depths, one per group (namespace and kind of temperature), one per request, and one per source of drafts where
a proposer names several. A new request starts from its group, a new group half-way to those of its temperature.

Each bias has a variance ``v``. A step with residual ``R`` (hits minus expected hits over the positions that were
tested) moves it by ``v R / (1 + n V / 4)``, where ``n`` is the number of rows and ``V`` the sum of the variances, and
shrinks the variance by the information (the sum of ``q (1 - q)``): an extended Kalman filter for logistic regression
with a diagonal covariance (as in West, Harrison and Migon, "Dynamic generalized linear models and Bayesian
forecasting", JASA 1985), except that the step size takes the greatest information a position can have. With the
information itself, a long success would move the bias less than a short failure, and the estimates would be too low.
The variances grow back a little with every step, so that what is old is forgotten.

Observations are censored: behind the first rejected position nothing was tested, and nothing is learned. Without
estimates (methods of the engine itself) ``p`` is a constant and the biases learn the rates per position.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.types import IntArray, Request

FloatArray = NDArray[np.float64]

#: Groups that are told apart; later ones share the last.
GROUPS = 256

#: First depth of each bucket.
_BUCKET_STARTS = (0, 1, 2, 3, 4, 6, 9, 13, 20)

#: Estimates are believed only between these two: odds of 0 or infinity could never be corrected.
LOWEST, HIGHEST = 1e-3, 0.999

#: Chance of a position where the proposer gives none: at the first position, and behind accepted ones.
BLIND_FIRST, BLIND_LATER = 0.5, 0.8

# Variance of a fresh bias (also the most it can grow back to), growth per step, bound of the bias, longest move.
_DEPTH = (0.10, 0.0005, 2.0, 0.5)
# Without estimates the rate of each position has to be learned from nothing, and behind the first may be close to 0 or
# 1. What is then not tried any more would never be seen to change, so such a bias rises by this much per step.
_BLIND_DEPTH, _BLIND_LATER_BOUND, _FORGOTTEN = (1.0, 0.0005, 2.0, 0.5), 6.0, 0.02
_GROUP = (0.30, 0.002, 3.0, 1.0)
_REQUEST = (1.0, 0.005, 4.0, 2.0)
_SOURCE = (0.15, 0.001, 2.0, 0.5)


class AcceptanceModel:
    """See the module. State per slot: a bias, a variance and a group; O(B K) per call.

    Args:
        slots: number of slots.
        width: most positions of a draft.
        informed: whether the proposer gives estimates.
    """

    def __init__(self, slots: int, width: int, *, informed: bool = True) -> None:
        self.informed = informed
        self.malformed = 0
        self._buckets = np.searchsorted(_BUCKET_STARTS, np.arange(width), side="right") - 1
        count = len(_BUCKET_STARTS)
        self._depth = _DEPTH if informed else _BLIND_DEPTH
        self._depth_bound = np.full(count, self._depth[2])
        if not informed:
            self._depth_bound[1:] = _BLIND_LATER_BOUND
        self.depth_bias = np.zeros(count)
        self._depth_var = np.full(count, self._depth[0])
        self.group_bias = np.zeros(GROUPS)
        self._group_var = np.full(GROUPS, _GROUP[0])
        self._groups: dict[tuple[str, int], int] = {}
        self.request_bias = np.zeros(slots)
        self._request_var = np.full(slots, _REQUEST[0])
        self._group_of: NDArray[np.int64] = np.zeros(slots, np.int64)
        self._sources: NDArray[np.uint8] | None = None
        self.source_bias = np.zeros(1)
        self._source_var = np.full(1, _SOURCE[0])
        self._kinds: dict[int, list[int]] = {}  # groups by kind of temperature
        self._blind = np.where(np.arange(width) == 0, BLIND_FIRST, BLIND_LATER)

    def begin(self, slot: int, request: Request) -> None:
        """A request takes a slot: what was known of the last one there is forgotten."""
        key = (request.namespace, _temperature_kind(request.temperature))
        number = self._groups.get(key)
        if number is None:
            number = self._groups[key] = min(len(self._groups), GROUPS - 1)
            self._found(number, key[1])
        if len(self._groups) > 4 * GROUPS:  # a namespace per user: names must not fill the memory
            self._groups.clear()
            self._kinds.clear()
        self._group_of[slot] = number
        self.request_bias[slot] = 0.0
        self._request_var[slot] = _REQUEST[0]

    def know_sources(self, count: int, sources: NDArray[np.uint8]) -> None:
        """Drafts come from ``count`` sources; which, of the last draft of a slot, says uint8 ``[slots, K]``."""
        self._sources = sources
        self.source_bias = np.zeros(count)
        self._source_var = np.full(count, _SOURCE[0])

    def _found(self, number: int, kind: int) -> None:
        """A new group starts half-way to the others of its temperature: tenants differ, coins do not."""
        alike = self._kinds.setdefault(kind, [])
        self.group_bias[number] = 0.5 * self.group_bias[alike].mean() if alike else 0.0
        self._group_var[number] = _GROUP[0]
        alike.append(number)

    def chances(self, survival: FloatArray) -> FloatArray:
        """Per position the proposer's chance given all before it, float64 ``[B, K]``, made safe.

        Args:
            survival: float64 ``[B, K]``, as in :class:`specplug.types.DraftBuffers`; anything may stand in it.
        """
        chances = np.empty_like(survival)
        chances[:, 0] = survival[:, 0]
        with np.errstate(all="ignore"):
            np.divide(survival[:, 1:], survival[:, :-1], out=chances[:, 1:])
        # fmax and fmin pass over NaN, which thus becomes the lowest chance.
        np.fmax(chances, LOWEST, out=chances)
        np.fmin(chances, HIGHEST, out=chances)
        silent = ~(survival[:, 0] > 0.0)  # a proposer that writes no estimates, or nonsense
        if silent.any():
            chances[silent] = self._blind[: chances.shape[1]]
        return chances

    def blind(self, rows: int) -> FloatArray:
        """The chances of ``rows`` drafts without estimates, float64 ``[rows, K]``, read-only."""
        return np.broadcast_to(self._blind, (rows, len(self._blind)))

    def corrected(self, slots: IntArray, chances: FloatArray) -> FloatArray:
        """The chances after correction, float64 ``[B, K]``."""
        width = chances.shape[1]
        odds = np.exp(self.depth_bias)[self._buckets[:width]][None, :] * self._row_factor(slots)
        if self._sources is not None:
            odds *= np.exp(self.source_bias)[self._of(slots, width)]
        odds *= chances
        rest = 1.0 - chances
        rest += odds
        odds /= rest
        return odds

    def learn(
        self, slots: IntArray, chances: FloatArray, tested: IntArray, agreed: IntArray
    ) -> None:
        """What happened to the drafts of some slots.

        Args:
            slots: int32 ``[B]``, each at most once.
            chances: float64 ``[B, K]``, uncorrected, as :meth:`chances` or :meth:`blind` gave them.
            tested: int32 ``[B]``, positions about which the truth is known.
            agreed: int32 ``[B]``, the first so many of them were accepted, the next (if tested) was not.
        """
        width = int(tested.max(initial=0))
        if width == 0:
            return
        chances = chances[:, :width]
        depth = np.arange(width)
        q = self.corrected(slots, chances)
        known = depth < tested[:, None]
        residual = np.where(known, (depth < agreed[:, None]) - q, 0.0)
        information = np.where(known, q * (1.0 - q), 0.0)
        groups = self._group_of[slots]
        variance = self._request_var[slots] + self._group_var[groups] + float(self._depth_var[0])
        r, h = residual.sum(axis=1), information.sum(axis=1)
        own = self._request_var[slots]
        gain = own / (1.0 + 0.25 * variance)
        self.request_bias[slots] = _moved(self.request_bias[slots], gain * r, _REQUEST)
        self._request_var[slots] = _aged(own, own / (1.0 + h * own) * h, _REQUEST[0], _REQUEST)
        self._learn_groups(groups, r, h)
        self._learn_depths(residual.sum(axis=0), information.sum(axis=0), known.sum(axis=0))
        if self._sources is not None:
            self._learn_sources(self._of(slots, width)[known], residual[known], information[known])

    def _learn_groups(
        self, groups: NDArray[np.int64], r: FloatArray, information: FloatArray
    ) -> None:
        residual = np.bincount(groups, r, GROUPS)
        first = int(groups[0])
        if len(groups) == 1 or bool((groups == first).all()):
            self._learn_group(first, len(groups), float(r.sum()), float(information.sum()))
            return
        rows = np.bincount(groups, minlength=GROUPS)
        seen = np.flatnonzero(rows)
        own: FloatArray = self._group_var[seen]
        h: FloatArray = np.bincount(groups, information, GROUPS)[seen].astype(np.float64)
        gain = own / (1.0 + 0.25 * rows[seen] * (own + _REQUEST[0]))
        self.group_bias[seen] = _moved(self.group_bias[seen], gain * residual[seen], _GROUP)
        self._group_var[seen] = _aged(own, own / (1.0 + h * own) * h, _GROUP[0], _GROUP)

    def _learn_group(self, group: int, rows: int, r: float, h: float) -> None:
        """The usual case of :meth:`_learn_groups`: all rows of one group."""
        grown, bound, longest = _GROUP[1:]
        own, bias = float(self._group_var[group]), float(self.group_bias[group])
        move = own / (1.0 + 0.25 * rows * (own + _REQUEST[0])) * r
        bias += min(max(move, -longest), longest)
        self.group_bias[group] = min(max(bias, -bound), bound)
        shrunk = min(own / (1.0 + h * own) * h, 1.0)
        self._group_var[group] = min(own * (1.0 - shrunk) + grown, _GROUP[0])

    def _learn_depths(
        self, residual: FloatArray, information: FloatArray, rows: NDArray[np.int64]
    ) -> None:
        buckets = self._buckets[: len(residual)]
        count = len(self.depth_bias)
        r, h = np.bincount(buckets, residual, count), np.bincount(buckets, information, count)
        own = self._depth_var
        gain = own / (1.0 + 0.25 * np.bincount(buckets, rows, count) * (own + _REQUEST[0]))
        moved = self.depth_bias + np.minimum(np.maximum(gain * r, -self._depth[3]), self._depth[3])
        self.depth_bias = np.minimum(np.maximum(moved, -self._depth_bound), self._depth_bound)
        if not self.informed:
            lost = (h <= 0.0) & (self.depth_bias < -self._depth[2])
            self.depth_bias[lost] += _FORGOTTEN
        self._depth_var = _aged(own, own / (1.0 + h * own) * h, self._depth[0], self._depth)

    def _of(self, slots: IntArray, width: int) -> NDArray[np.uint8]:
        """The source of each position of these slots' drafts; a number without a name stands for the last."""
        assert self._sources is not None
        found: NDArray[np.uint8] = self._sources[slots, :width]
        return np.minimum(found, np.uint8(len(self.source_bias) - 1))

    def _learn_sources(
        self, sources: NDArray[np.uint8], residual: FloatArray, information: FloatArray
    ) -> None:
        count = len(self.source_bias)
        r, h = np.bincount(sources, residual, count), np.bincount(sources, information, count)
        own, tokens = self._source_var, np.bincount(sources, minlength=count)
        gain = own / (1.0 + 0.25 * tokens * (own + _REQUEST[0]))
        seen = tokens > 0
        moved = _moved(self.source_bias, gain * r, _SOURCE)
        aged = _aged(own, own / (1.0 + h * own) * h, _SOURCE[0], _SOURCE)
        self.source_bias = np.where(seen, moved, self.source_bias)
        self._source_var = np.where(seen, aged, own)

    def _row_factor(self, slots: IntArray) -> FloatArray:
        bias = self.request_bias[slots] + self.group_bias[self._group_of[slots]]
        return np.asarray(np.exp(bias)[:, None])


def _moved(
    bias: FloatArray, move: FloatArray, kind: tuple[float, float, float, float]
) -> FloatArray:
    _, _, bound, longest = kind
    # Not np.clip, which costs several times as much on a handful of numbers.
    move = np.minimum(np.maximum(move, -longest), longest)
    return np.minimum(np.maximum(bias + move, -bound), bound)


def _aged(
    variance: FloatArray,
    shrunk: FloatArray,
    most: float,
    kind: tuple[float, float, float, float],
) -> FloatArray:
    """The variance after an observation took its share, grown back a little."""
    return np.minimum(variance * (1.0 - np.minimum(shrunk, 1.0)) + kind[1], most)


def _temperature_kind(temperature: float) -> int:
    """0 greedy, 1 up to 0.5, 2 up to 1, 3 above: the coins of a hot target agree with text less often."""
    return int(np.searchsorted((0.0, 0.5, 1.0), temperature, side="left"))
