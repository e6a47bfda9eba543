"""Drafts leave the model after a fixed layer: LayerSkip (Elhoushi et al. 2024, arXiv:2404.16710)."""

from __future__ import annotations

from specplug.layers.plan import Plan
from specplug.layers.policy import Feedback, Probe


class EarlyExit:
    """The first ``exit_layer`` layers, then the model's own head.

    Good with checkpoints that were trained for it; others need an exit head (``specplug fit-exit``).

    Raises:
        SkipPlanError: the model has no such layer.
    """

    def __init__(self, layers: int, exit_layer: int) -> None:
        self.layers = layers
        self._plan = Plan.early_exit(layers, exit_layer)

    def plan(self) -> Plan:
        """Always the same."""
        return self._plan

    def observe(self, feedback: Feedback, probe: Probe) -> None:
        """Nothing to learn."""


class Fixed:
    """One plan that somebody else has found.

    Args:
        plan: for every draft.
    """

    def __init__(self, plan: Plan) -> None:
        self.layers = plan.layers
        self._plan = plan

    def plan(self) -> Plan:
        """Always the same."""
        return self._plan

    def observe(self, feedback: Feedback, probe: Probe) -> None:
        """Nothing to learn."""
