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

from specplug.kernels import forecast as kernel
from specplug.kernels.forms import as_kernel_array
from specplug.types import LENGTH_DTYPE, IntArray, Request

FloatArray = NDArray[np.float64]

#: Groups that are told apart; later ones share the last.
GROUPS = 256

HIGHEST, LOWEST = kernel.HIGHEST, kernel.LOWEST

#: No source is told apart.
_ONE_SOURCE: NDArray[np.uint8] = np.zeros((0, 0), np.uint8)


class AcceptanceModel:
    """See the module. State per slot: a bias, a variance, a group and the last chances; O(B K) per call.

    Args:
        slots: number of slots.
        width: most positions of a draft.
        informed: whether the proposer gives estimates.

    Attributes:
        chances: float64 ``[slots, width]``, of the last draft of each slot, uncorrected; without estimates constants.
    """

    def __init__(self, slots: int, width: int, *, informed: bool = True) -> None:
        self.informed = informed
        self.chances: FloatArray = np.full((slots, width), kernel.BLIND_LATER)
        self.chances[:, :1] = kernel.BLIND_FIRST
        self._slots = slots
        depths = slots + GROUPS
        self._marks = np.array([slots, depths, depths + kernel.BUCKETS, informed], np.int64)
        self._beliefs = np.zeros((int(self._marks[kernel.SOURCES_AT]) + 1, kernel.COLUMNS))
        self._beliefs[slots:, kernel.FACTOR] = 1.0
        kind = kernel.OF_DEPTH if informed else kernel.OF_BLIND_DEPTH
        self._of("VARIANCE", "requests")[:] = kernel.OF_REQUEST[0]
        self._of("VARIANCE", "groups")[:] = kernel.OF_GROUP[0]
        self._of("VARIANCE", "depths")[:] = kind[0]
        self._of("VARIANCE", "sources")[:] = kernel.OF_SOURCE[0]
        self.useful[:] = 1.0
        self._sources = _ONE_SOURCE
        self._groups: dict[tuple[str, int], int] = {}
        self._kinds: dict[int, list[int]] = {}  # groups by kind of temperature

    def _of(self, column: str, rows: str) -> FloatArray:
        """A view of what is believed."""
        starts = [0, *self._marks[:3].tolist(), len(self._beliefs)]
        at = ("requests", "groups", "depths", "sources").index(rows)
        found: FloatArray = self._beliefs[starts[at] : starts[at + 1], getattr(kernel, column)]
        return found

    @property
    def request_bias(self) -> FloatArray:
        """float64 ``[slots]``, a view."""
        return self._of("BIAS", "requests")

    @property
    def group_bias(self) -> FloatArray:
        """float64 ``[GROUPS]``, a view."""
        return self._of("BIAS", "groups")

    @property
    def depth_bias(self) -> FloatArray:
        """float64 ``[buckets]``, a view."""
        return self._of("BIAS", "depths")

    @property
    def source_bias(self) -> FloatArray:
        """float64 ``[sources]``, a view."""
        return self._of("BIAS", "sources")

    @property
    def useful(self) -> FloatArray:
        """float64 ``[slots]``, a view: how many of the first four offered tokens were right, lately."""
        found: FloatArray = self._beliefs[: self._slots, kernel.USEFUL]
        return found

    def begin(self, slot: int, request: Request) -> None:
        """A request takes a slot: what was known of the last one there is forgotten."""
        if not 0 <= slot < self._slots:
            raise IndexError(
                f"got slot {slot}, expected one of 0 .. {self._slots - 1} (max_requests of the context)"
            )
        key = (request.namespace, _temperature_kind(request.temperature))
        number = self._groups.get(key)
        if number is None:
            number = self._groups[key] = min(len(self._groups), GROUPS - 1)
            self._found(number, key[1])
        if len(self._groups) > 4 * GROUPS:  # a namespace per user: names must not fill the memory
            self._groups.clear()
            self._kinds.clear()
        self._beliefs[slot] = (0.0, kernel.OF_REQUEST[0], number, 1.0, 0.0, 0.0)

    def know_sources(self, count: int, sources: NDArray[np.uint8]) -> None:
        """Drafts come from ``count`` sources; which, of the last draft of a slot, says uint8 ``[slots, K]``.

        Raises:
            ValueError: not such an array, or not contiguous and writable, the one form that kernels are compiled for.
        """
        least = self.chances.shape
        fits = sources.ndim == 2 and sources.shape[0] >= least[0] and sources.shape[1] >= least[1]
        if not fits or sources.dtype != np.uint8 or not sources.flags.carray:
            raise ValueError(
                f"sources must be a contiguous, writable uint8 array of at least {least}, got {sources.dtype} "
                f"{sources.shape}"
            )
        first = int(self._marks[kernel.SOURCES_AT])
        rows = np.zeros((count, kernel.COLUMNS))
        rows[:, kernel.VARIANCE] = kernel.OF_SOURCE[0]
        rows[:, kernel.FACTOR] = 1.0
        self._beliefs = np.concatenate([self._beliefs[:first], rows])
        self._sources = sources

    def _found(self, number: int, kind: int) -> None:
        """A new group starts half-way to the others of its temperature: tenants differ, coins do not."""
        alike = self._kinds.setdefault(kind, [])
        bias = self.group_bias
        bias[number] = 0.5 * bias[alike].mean() if alike else 0.0
        self._of("VARIANCE", "groups")[number] = kernel.OF_GROUP[0]
        alike.append(number)

    def read(self, slots: IntArray, survival: FloatArray, offered: IntArray) -> tuple[int, int]:
        """Keep what a proposer says, per position, made safe; returns offered tokens and the longest offer.

        Args:
            slots: int32 ``[B]``.
            survival: float64 ``[B, K]``, as in :class:`specplug.types.DraftBuffers`; anything may stand in it.
            offered: int32 ``[B]``, lengths of the drafts.

        Raises:
            IndexError: a slot does not exist.
            ValueError: the arrays do not fit together.
        """
        _check_rows(slots, offered, len(survival))
        slots = as_kernel_array(slots, LENGTH_DTYPE)
        total, longest = kernel.read_chances(
            as_kernel_array(survival, np.float64),
            slots,
            as_kernel_array(offered, LENGTH_DTYPE),
            self.chances,
        )
        if total < 0:
            raise self._no_slot(slots, longest)
        return total, longest

    def forecast(self, slots: IntArray, offered: IntArray, width: int) -> FloatArray:
        """The chance of each position that it and all before are accepted, float64 ``[B, width]``; 0 behind an offer.

        Raises:
            IndexError: a slot does not exist.
            ValueError: the arrays do not fit together, or ``width`` is more than a draft can hold.
        """
        _check_rows(slots, offered)
        if width > self.chances.shape[1]:
            raise ValueError(
                f"width must be at most {self.chances.shape[1]} (max_draft of the context), got {width}"
            )
        slots = as_kernel_array(slots, LENGTH_DTYPE)
        survival = np.empty((len(slots), width))
        failed = kernel.forecast(
            self._beliefs,
            self._marks,
            self._sources,
            slots,
            as_kernel_array(offered, LENGTH_DTYPE),
            self.chances,
            survival,
        )
        if failed:
            raise self._no_slot(slots, -failed - 1)
        return survival

    def learn(self, slots: IntArray, tested: IntArray, agreed: IntArray) -> None:
        """What happened to the last drafts of some slots.

        Args:
            slots: int32 ``[B]``, each at most once.
            tested: int32 ``[B]``, positions about which the truth is known.
            agreed: int32 ``[B]``, the first so many of them were accepted, the next (if tested) was not.

        Raises:
            IndexError: a slot does not exist, or more was tested than a draft can hold.
            ValueError: the arrays do not fit together.
        """
        _check_rows(slots, tested)
        _check_rows(slots, agreed)
        slots = as_kernel_array(slots, LENGTH_DTYPE)
        failed = kernel.learn_outcomes(
            self._beliefs,
            self._marks,
            self._sources,
            slots,
            self.chances,
            as_kernel_array(tested, LENGTH_DTYPE),
            as_kernel_array(agreed, LENGTH_DTYPE),
        )
        if failed:
            raise self._no_slot(slots, -failed - 1)

    def _no_slot(self, slots: IntArray, place: int) -> IndexError:
        return IndexError(
            f"position {place}: got slot {slots[place]}, expected one below {self._slots} (max_requests of the "
            f"context) with at most {self.chances.shape[1]} tokens (max_draft)"
        )


def _check_rows(slots: IntArray, values: IntArray, rows: int | None = None) -> None:
    """Compiled code would read what lies behind an array that is too short."""
    if len(values) != len(slots) or (rows is not None and rows < len(slots)):
        raise ValueError(
            f"expected one number per slot, got {len(values)} for {len(slots)} slots"
            + ("" if rows is None else f" and {rows} rows of estimates")
        )


def _temperature_kind(temperature: float) -> int:
    """0 greedy, 1 up to 0.5, 2 up to 1, 3 above: the coins of a hot target agree with text less often."""
    return int(np.searchsorted((0.0, 0.5, 1.0), temperature, side="left"))
