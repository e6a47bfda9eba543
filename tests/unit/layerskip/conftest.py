"""A model of a few layers over plain arrays, on which every plan can be tried and the best one is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from specplug.layers.plan import Plan
from specplug.layers.policy import States, Trial


class ToyModel:
    """Layer ``i`` adds ``attention[i] @ tanh(h)``, then ``mlp[i] @ tanh(h)``; a head reads tokens off the result.

    Attributes:
        attention, mlp: float64 ``[L, d, d]``.
        head: float64 ``[V, d]``.
        inputs: float64 ``[n, d]``, hidden states of the recent text before layer 0.
        tried: every plan that a policy asked about.
    """

    def __init__(self, attention: States, mlp: States, head: States, inputs: States) -> None:
        self.attention, self.mlp, self.head, self.inputs = attention, mlp, head, inputs
        self.tried: list[Plan] = []
        self.answers = True

    @property
    def layers(self) -> int:
        return len(self.attention)

    def after(self, plan: Plan) -> States:
        state = self.inputs
        for layer in range(self.layers):
            if plan.attention[layer]:
                state = state + np.tanh(state) @ self.attention[layer].T
            if plan.mlp[layer]:
                state = state + np.tanh(state) @ self.mlp[layer].T
        return state

    def states(self) -> States:
        exits = [Plan.early_exit(self.layers, k) for k in range(1, self.layers)]
        rows = [self.after(plan)[-1] for plan in (*exits, Plan.full(self.layers))]
        return np.stack([self.inputs[-1], *rows])

    def run_layer(self, layer: int, states: States) -> States:
        states = states + np.tanh(states) @ self.attention[layer].T
        return states + np.tanh(states) @ self.mlp[layer].T

    def try_plan(self, plan: Plan) -> Trial:
        if not self.answers:
            return Trial(0, 0, 0.0)
        self.tried.append(plan)
        got, full = self.after(plan), self.after(Plan.full(self.layers))
        matched = (got @ self.head.T).argmax(1) == (full @ self.head.T).argmax(1)
        norms = np.linalg.norm(got, axis=1) * np.linalg.norm(full, axis=1)
        return Trial(int(matched.sum()), len(full), float(((got * full).sum(1) / norms).mean()))

    def outputs(self) -> tuple[States, States]:
        parts: tuple[list[States], list[States]] = ([], [])
        state = self.inputs
        for layer in range(self.layers):
            for found, weights in zip(parts, (self.attention, self.mlp), strict=True):
                found.append(np.tanh(state) @ weights[layer].T)
                state = state + found[-1]
        return np.stack(parts[0]), np.stack(parts[1])


@pytest.fixture
def toy() -> Callable[..., ToyModel]:
    """Builds a model of given strengths: float64 ``[L]`` for whole layers, or ``[L, 2]`` for their sublayers."""

    def build(strengths: States, seed: int = 0, size: int = 12, tokens: int = 30) -> ToyModel:
        generator = np.random.default_rng(seed)
        layers = len(strengths)
        pairs = np.asarray(strengths, float).reshape(layers, -1) * np.ones(2)
        weights = generator.normal(size=(2, layers, size, size)) / np.sqrt(size)
        return ToyModel(
            weights[0] * pairs[:, 0, None, None],
            weights[1] * pairs[:, 1, None, None],
            generator.normal(size=(40, size)),
            generator.normal(size=(tokens, size)),
        )

    return build
