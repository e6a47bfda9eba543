"""A linear map that makes the hidden state of a shallow layer look like a final one, fitted in closed form.

Both sides are hidden states after the model's last norm: ``x`` of the state after the first ``k`` layers, ``y`` of the
final one. The head adds ``[x, 1] @ D`` to ``x``, and the model's own LM head reads the result. ``D`` comes from ridge
regression of ``y - x`` on ``[x, 1]``, so that an endless penalty leaves the raw exit as it is. Optionally ``D`` is cut
to a low rank: the best one for the data in the least-squares sense (reduced-rank regression: Izenman 1975). "Tuned
lenses" (Belrose et al. 2023, arXiv:2303.08112) are the same map, trained by gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specplug.errors import ExitHeadError

Floats = NDArray[np.float64]


class Moments:
    """Running normal equations of one exit: O(d) memory per token is never needed, only O(d * d) in all.

    Args:
        hidden: ``d``, the hidden size.
    """

    def __init__(self, hidden: int) -> None:
        if hidden < 1:
            raise ExitHeadError(f"the hidden size must be at least 1, got {hidden}")
        self.hidden = hidden
        self.tokens = 0
        self._square = np.zeros((hidden + 1, hidden + 1))
        self._cross = np.zeros((hidden + 1, hidden))
        self._targets = np.zeros((hidden, hidden))

    def add(self, shallow: NDArray[np.floating], final: NDArray[np.floating]) -> None:
        """Take in hidden states, ``[n, d]`` each, both after the model's last norm. O(n * d * d).

        Raises:
            ExitHeadError: another shape, or a value that is not finite.
        """
        for name, states in (("shallow", shallow), ("final", final)):
            if states.ndim != 2 or states.shape != (len(shallow), self.hidden):
                raise ExitHeadError(
                    f"{name} must be [tokens, {self.hidden}] for both, got {list(states.shape)}"
                )
            if not np.isfinite(states).all():
                raise ExitHeadError(f"{name} holds a value that is not finite; leave such text out")
        # Products of a few thousand rows lose nothing in float32; their sums are kept in float64.
        inputs = np.concatenate([shallow, np.ones((len(shallow), 1))], axis=1, dtype=np.float32)
        change = np.subtract(final, shallow, dtype=np.float32)
        self.tokens += len(shallow)
        self._square += inputs.T @ inputs
        self._cross += inputs.T @ change
        self._targets += change.T @ change

    def fit(self, ridge: float = 0.01, rank: int | None = None) -> Floats:
        """Solve for the head: float64 ``[d + 1, d]``. O(d ** 3).

        Args:
            ridge: penalty, as a share of the mean squared input.
            rank: of the result without its constant; None does not cut.

        Raises:
            ExitHeadError: too few tokens, a penalty that is not above 0, or a rank outside of 1 to ``d``.
        """
        if self.tokens < 2:
            raise ExitHeadError(f"an exit head needs at least 2 tokens, got {self.tokens}")
        if not ridge > 0.0 or not np.isfinite(ridge):
            raise ExitHeadError(f"ridge must be a number above 0, got {ridge}")
        if rank is not None and not 1 <= rank <= self.hidden:
            raise ExitHeadError(f"rank must lie between 1 and {self.hidden}, got {rank}")
        penalty = np.full(self.hidden + 1, ridge * np.trace(self._square) / (self.hidden + 1))
        # The constant is free: it moves the mean and bends nothing.
        penalty[-1] = 1e-9 * max(1.0, float(self._square[-1, -1]))
        solved = np.linalg.solve(self._square + np.diag(penalty), self._cross).astype(np.float64)
        return solved if rank is None else self._cut(solved, rank)

    def _cut(self, solved: Floats, rank: int) -> Floats:
        """Project the fitted change on its ``rank`` principal directions, the mean left out."""
        mean_input = self._square[-1, :-1] / self.tokens
        centred = self._square[:-1, :-1] - self.tokens * np.outer(mean_input, mean_input)
        slope = solved[:-1]
        spread = slope.T @ centred @ slope
        directions = np.linalg.eigh((spread + spread.T) / 2.0)[1][:, -rank:]
        slope_cut = slope @ directions @ directions.T
        mean_change = mean_input @ slope + solved[-1]
        constant = mean_change - mean_input @ slope_cut
        return np.concatenate([slope_cut, constant[None]])

    def explained(self, head: Floats) -> float:
        """Share of the squared change from shallow to final states that ``head`` predicts, on what was taken in."""
        total = float(np.trace(self._targets))
        fitted = 2.0 * float((head * self._cross).sum()) - float(
            (head * (self._square @ head)).sum()
        )
        return fitted / total if total > 0.0 else 0.0


@dataclass(frozen=True)
class ExitHead:
    """A fitted head of one exit.

    Attributes:
        exit_layer: layers that run before it.
        slope: float ``[d, d]``, or the product's two factors ``[d, r]`` and ``[r, d]``.
        constant: float ``[d]``.
    """

    exit_layer: int
    slope: tuple[NDArray[np.floating], ...]
    constant: NDArray[np.floating]

    @classmethod
    def from_fit(cls, exit_layer: int, solved: Floats, rank: int | None = None) -> ExitHead:
        """Store ``solved`` (of :meth:`Moments.fit` with the same ``rank``) as compactly as it allows."""
        slope = solved[:-1]
        if rank is None or 2 * rank >= len(slope):
            return cls(exit_layer, (slope,), solved[-1])
        left, sizes, right = np.linalg.svd(slope)
        roots = np.sqrt(sizes[:rank])
        return cls(exit_layer, (left[:, :rank] * roots, roots[:, None] * right[:rank]), solved[-1])

    @property
    def hidden(self) -> int:
        """``d``."""
        return len(self.constant)

    @property
    def rank(self) -> int:
        """Of the slope."""
        return int(self.slope[0].shape[1])

    def apply(self, states: NDArray[np.floating]) -> Floats:
        """Shallow states after the model's last norm (``[n, d]``) as final ones."""
        change = np.asarray(states, np.float64)
        for factor in self.slope:
            change = change @ np.asarray(factor, np.float64)
        return np.asarray(states, np.float64) + change + self.constant
