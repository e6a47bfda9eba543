"""Layers of little confidence are skipped: ConfLayers (Amer et al. 2026, arXiv:2604.14612)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specplug.errors import SkipPlanError
from specplug.layers.plan import Plan, worth
from specplug.layers.policy import Feedback, Probe, States


@dataclass(frozen=True)
class ConfLayersOptions:
    """How ConfLayers looks for its threshold.

    Attributes:
        interval: verifications from one trial to the next.
        rounds: trials after which a search ends.
        step: first change of the threshold, in standard deviations; a search ends when it is halved below ``least``.
        least: see ``step``.
        window: layers that a layer is compared with where the confidence changes least.
        widening: layers more where it changes most, in the last layer.
        again: verifications after which a new search begins; 0 never.
    """

    interval: int = 4
    rounds: int = 16
    step: float = 0.5
    least: float = 0.0625
    window: int = 2
    widening: int = 8
    again: int = 256


class ConfLayers:
    """Measures how confident each layer is, skips those that are so less than their neighbours, and keeps what pays.

    The confidence of a layer is that of its attention plus that of its MLP output
    (:func:`specplug.reference.layers.confidence`), over the recent text, brought to mean 0 and deviation 1. The
    neighbourhood is wider where the confidence bends and in deep layers. The threshold is the neighbours' mean minus
    ``spread`` deviations; ``spread`` moves up or down as long as the plan gets better by
    :func:`specplug.layers.plan.worth`, which weighs matched tokens against the layers saved, then by half as much. The
    paper keeps ``spread`` fixed for a model and judges by accepted tokens. First and last layer always run.

    Raises:
        SkipPlanError: the model has fewer than three layers.
    """

    def __init__(self, layers: int, options: ConfLayersOptions | None = None) -> None:
        if layers < 3:
            raise SkipPlanError(
                f"ConfLayers skips layers between the first and the last one, but there are {layers} in all"
            )
        self.layers = layers
        self.options = options or ConfLayersOptions()
        self._best = Plan.full(layers)
        self._wait = 0
        self._restart()

    def plan(self) -> Plan:
        """The best so far; the whole model until something was tried."""
        return self._best

    @property
    def searching(self) -> bool:
        """Whether it still tries thresholds."""
        return self._round < self.options.rounds and abs(self._step) >= self.options.least

    def observe(self, feedback: Feedback, probe: Probe) -> None:
        """Try one more threshold, if it is time for one."""
        self._wait += 1
        if not self.searching:
            if 0 < self.options.again <= self._wait:
                self._restart()
            return
        if self._wait < self.options.interval:
            return
        self._wait = 0
        self._try(probe)

    def _restart(self) -> None:
        self._round = 0
        self._spread = 0.0
        self._best_spread = 0.0
        self._best_worth = -np.inf
        self._step = self.options.step
        self._wait = 0

    def _try(self, probe: Probe) -> None:
        plan = self._plan_for(layer_confidences(*probe.outputs()))
        trial = probe.try_plan(plan)
        if trial.tested == 0:
            return
        self._round += 1
        match = (trial.matched + 0.5 * (1.0 + trial.similarity)) / (trial.tested + 1.0)
        value = worth(match, plan.cost())
        if value > self._best_worth:
            self._best, self._best_worth, self._best_spread = plan, value, self._spread
        else:
            self._step *= -0.5
        self._spread = self._best_spread + self._step

    def _plan_for(self, confidences: NDArray[np.float64]) -> Plan:
        # Late: vLLM cannot start on a CPU in a process that has loaded numba, and asks for the first plan before.
        from specplug.kernels.layers import below_neighbours

        inner = standardised(confidences[1:-1])
        mask = np.zeros(len(inner), np.uint8)
        windows = half_windows(inner, self.options.window, self.options.widening)
        below_neighbours(inner, windows, self._spread, mask)
        skipped = (np.flatnonzero(mask) + 1).tolist()
        return Plan.skipping(self.layers, skipped, skipped)


def layer_confidences(attention: States, mlp: States) -> NDArray[np.float64]:
    """Attention plus MLP confidence of each layer, float64 ``[L]``, from float64 ``[L, n, d]`` each."""
    from specplug.kernels.layers import confidence

    return np.array(
        [
            sum(confidence(np.ascontiguousarray(part, np.float64)) for part in parts)
            for parts in zip(attention, mlp, strict=True)
        ]
    )


def standardised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean 0 and deviation 1; all 0 where the values are equal."""
    deviation = float(values.std())
    centred = values - values.mean()
    scaled: NDArray[np.float64] = centred / deviation if deviation > 0.0 else centred
    return scaled


def half_windows(values: NDArray[np.float64], window: int, widening: int) -> NDArray[np.int64]:
    """Half the number of neighbours that a layer is compared with, int64 ``[L]``; at least 1.

    Grows with the second difference of the values, scaled to 0 (least) to 1 (most), and with depth.
    """
    layers = len(values)
    if layers < 3:
        return np.ones(layers, np.int64)
    bend = np.gradient(np.gradient(values))
    extent = float(bend.max() - bend.min())
    share = (bend - bend.min()) / extent if extent > 0.0 else np.zeros(layers)
    depth = (np.arange(layers) + 1) / layers
    wide = (window + np.floor(widening * share * depth)).astype(np.int64)
    return np.maximum(1, wide // 2)
