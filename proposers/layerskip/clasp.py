"""Layers to skip, chosen anew while the text changes: CLaSp (Chen et al. 2025, arXiv:2505.24196)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.errors import SkipPlanError
from specplug.layers.plan import Plan
from specplug.layers.policy import Feedback, Probe


class Clasp:
    """Skips the ``skips`` layers whose absence moves the last verified hidden state least.

    A dynamic programme over layers keeps, for every number of skipped layers, the hidden state that is closest to the
    model's own (an approximation: a state that is closest now need not be so at the end). It runs every layer on up to
    ``skips + 1`` states at one position, about the work of one decoding step of so many requests, O(layers * skips * d)
    beside the model. The first layer always runs.

    Args:
        layers: of the model.
        skips: of them that are left out.
        interval: verifications from one choice to the next.

    Raises:
        SkipPlanError: ``skips`` is not between 1 and ``layers - 1``, or ``interval`` below 1.
    """

    def __init__(self, layers: int, skips: int, interval: int = 8) -> None:
        if not 1 <= skips < layers:
            raise SkipPlanError(
                f"CLaSp can skip 1 to {layers - 1} of {layers} layers (the first one runs), got {skips}"
            )
        if interval < 1:
            raise SkipPlanError(f"interval must be at least 1 verification, got {interval}")
        self.layers = layers
        self.skips = skips
        self._interval = interval
        self._wait = interval
        self._plan = Plan.full(layers)

    def plan(self) -> Plan:
        """As last chosen; the whole model until something was verified."""
        return self._plan

    def observe(self, feedback: Feedback, probe: Probe) -> None:
        """Choose anew, if it is time for it."""
        self._wait += 1
        if self._wait < self._interval:
            return
        self._wait = 0
        skipped = np.flatnonzero(self.choose(probe)).tolist()
        self._plan = Plan.skipping(self.layers, skipped, skipped)

    def choose(self, probe: Probe) -> NDArray[np.uint8]:
        """Mark the layers to skip: uint8 ``[layers]``."""
        # Late: vLLM cannot start on a CPU in a process that has loaded numba, and asks for the first plan before.
        from specplug.kernels.layers import advance, backtrack

        full = np.ascontiguousarray(probe.states(), np.float64)
        width = self.skips + 1
        states = np.zeros((width, full.shape[1]))
        states[0] = full[0]
        choices = np.zeros((self.layers, width), np.uint8)
        count = 1
        for layer in range(self.layers):
            ran = np.zeros_like(states)
            ran[:count] = probe.run_layer(layer, states[:count])
            after = np.zeros_like(states)
            count = advance(ran, states, count, full[layer + 1], layer > 0, after, choices[layer])
            states = after
        mask = np.zeros(self.layers, np.uint8)
        backtrack(choices, self.skips, mask)
        return mask
