"""A set of sublayers to skip, searched while the model talks: SWIFT (Xia et al. 2024, arXiv:2410.06916)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specplug.errors import SkipPlanError
from specplug.layers.plan import Plan
from specplug.layers.policy import Feedback, Probe, Trial

#: Weight of the hidden states' similarity beside matched tokens: it orders sets that match equally many, no others.
SIMILARITY = 0.49


@dataclass(frozen=True)
class SwiftOptions:
    """How long and how widely SWIFT searches.

    Attributes:
        ratio: share of the sublayers between the first and the last layer that is skipped.
        random_trials: sets drawn at random before the trials so far suggest the next.
        most_trials: the search ends after so many.
        patience: or after so many without a better one.
        good_enough: or when so large a share of the tokens matches.
        interval: verifications from one trial to the next.
        daring: how far a suggestion strays from what looks best, in standard deviations.
        seed: of what is drawn at random.
    """

    ratio: float = 0.45
    random_trials: int = 8
    most_trials: int = 1000
    patience: int = 300
    good_enough: float = 0.95
    interval: int = 1
    daring: float = 0.3
    seed: int = 0


class Swift:
    """Tries sets of attention and MLP sublayers on the text so far and drafts with the best one.

    The first and the last layer always run, as in the paper; it starts with every second sublayer. A trial scores
    the tokens that a set would have matched, then the similarity of its hidden states. Where the paper asks a Gaussian
    process for every 25th set and draws the others at random, here a Bayesian linear model over the sublayers (each has
    its own effect on the score) suggests each set by Thompson sampling: its best set of a size is found exactly by
    sorting, and with ``m`` sublayers a suggestion costs O(m ** 3), far less than the trial.

    Raises:
        SkipPlanError: a model too shallow for ``ratio`` to skip anything, or a ratio outside of 0 to 1.
    """

    def __init__(self, layers: int, options: SwiftOptions | None = None) -> None:
        self.layers = layers
        self.options = options or SwiftOptions()
        self.trials = 0
        self.best_score = -np.inf
        inner = range(1, layers - 1)
        self._sublayers = [(kind, layer) for layer in inner for kind in (0, 1)]
        number = len(self._sublayers)
        self._size = round(self.options.ratio * number)
        if not 0.0 < self.options.ratio < 1.0 or not 0 < self._size < number:
            raise SkipPlanError(
                f"SWIFT skips a share of the sublayers between the first and the last of {layers} layers: ratio "
                f"{self.options.ratio} leaves {self._size} of {number} to skip, expected 1 to {number - 1}"
            )
        self._generator = np.random.default_rng(self.options.seed)
        self._sets: list[NDArray[np.bool_]] = []
        self._scores: list[float] = []
        self._since_better = 0
        self._wait = 0
        first = np.zeros(number, bool)
        first[np.argsort(np.arange(number) % 2, kind="stable")[: self._size]] = True
        self._best = first
        self._pending: NDArray[np.bool_] | None = first

    @property
    def searching(self) -> bool:
        """Whether it still tries new sets."""
        limits = self.options
        return (
            self.trials < limits.most_trials
            and self._since_better < limits.patience
            and self.best_score < limits.good_enough
        )

    def plan(self) -> Plan:
        """With the best set so far."""
        return self._plan_of(self._best)

    def observe(self, feedback: Feedback, probe: Probe) -> None:
        """Try one more set, if it is time for one."""
        self._wait += 1
        if not self.searching or self._wait < self.options.interval:
            return
        self._wait = 0
        chosen = self._pending if self._pending is not None else self._suggest()
        trial = probe.try_plan(self._plan_of(chosen))
        if trial.tested == 0:
            self._pending = chosen
            return
        self._pending = None
        self._learn(chosen, trial)

    def _learn(self, chosen: NDArray[np.bool_], trial: Trial) -> None:
        score = (trial.matched + SIMILARITY * trial.similarity) / trial.tested
        self.trials += 1
        self._sets.append(chosen)
        self._scores.append(score)
        self._since_better += 1
        if score > self.best_score:
            self.best_score, self._best, self._since_better = score, chosen, 0

    def _suggest(self) -> NDArray[np.bool_]:
        number = len(self._sublayers)
        if self.trials < self.options.random_trials:
            ranked = self._generator.permutation(number)
        else:
            ranked = np.argsort(-self._drawn_effects(), kind="stable")
        chosen = np.zeros(number, bool)
        chosen[ranked[: self._size]] = True
        return chosen

    def _drawn_effects(self) -> NDArray[np.float64]:
        """What leaving out each sublayer does to the score: one draw from the posterior, float64 ``[m]``."""
        chosen = np.array(self._sets, np.float64)
        scores = np.array(self._scores) - np.mean(self._scores)
        number = chosen.shape[1]
        # Prior: each effect as large as the noise of a trial, both as large as the scores' own deviation.
        precision = np.eye(number) + chosen.T @ chosen
        centre = np.linalg.solve(precision, chosen.T @ scores)
        coins = self._generator.standard_normal(number)
        stray = np.linalg.solve(np.linalg.cholesky(precision).T, coins)
        drawn: NDArray[np.float64] = centre + self.options.daring * scores.std() * stray
        return drawn

    def _plan_of(self, chosen: NDArray[np.bool_]) -> Plan:
        skipped = [self._sublayers[i] for i in np.flatnonzero(chosen)]
        return Plan.skipping(
            self.layers,
            attention=[layer for kind, layer in skipped if kind == 0],
            mlp=[layer for kind, layer in skipped if kind == 1],
        )
