"""What policies may ask of the model: see :class:`specplug.layers.policy.Probe`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.adapters.transformers_hf.cache import beginning
from specplug.adapters.transformers_hf.decoder import Decoder, as_numpy
from specplug.layers.exit_head import ExitHead
from specplug.layers.plan import Plan
from specplug.layers.policy import States, Trial

#: Tokens of the output that a trial looks at; SWIFT's window.
WINDOW = 32


class ModelProbe:
    """Answers about one sequence, after each verification.

    Args:
        decoder: the model.
        heads: fitted exit heads, used by plans that exit where there is one.
        window: the most tokens of a trial.
    """

    def __init__(self, decoder: Decoder, heads: dict[int, ExitHead], window: int = WINDOW) -> None:
        self._decoder = decoder
        self._heads = heads
        self._window = window
        self.passes = 0
        self._cache: Any = None
        self._tokens: list[int] = []
        self._output = 0
        self._trace: list[NDArray[Any]] = []
        self._final: NDArray[Any] | None = None

    @property
    def layers(self) -> int:
        """Of the model."""
        return self._decoder.layers

    def update(self, cache: Any, tokens: list[int], output: int, trace: list[NDArray[Any]]) -> None:
        """A verification is over.

        Args:
            cache: holds all of ``tokens`` but the last.
            tokens: of prompt and output.
            output: how many of them are output.
            trace: hidden states of the last token in the cache, ``[d]`` each: before layer 0, then after each layer.
        """
        self._cache, self._tokens, self._output, self._trace = cache, tokens, output, trace
        self._final = None

    def states(self) -> States:
        """See the protocol."""
        return np.stack(self._trace).astype(np.float64)

    def run_layer(self, layer: int, states: States) -> States:
        """See the protocol."""
        import torch

        weight = next(self._decoder.blocks[layer].parameters())
        rows = torch.as_tensor(states).to(weight.device, weight.dtype)
        self.passes += 1
        ran = self._decoder.run_layer(layer, rows, self._cache, len(self._tokens) - 2)
        return as_numpy(ran).astype(np.float64)

    def try_plan(self, plan: Plan) -> Trial:
        """See the protocol."""
        span = self._span()
        if span == 0:
            return Trial(0, 0, 0.0)
        if self._final is None:
            self._final = self._pass(Plan.full(self.layers), span)[1]
        logits, states = self._pass(plan, span)
        matched = int((logits.argmax(1) == np.array(self._tokens[-span:])).sum())
        norms = np.linalg.norm(states, axis=1) * np.linalg.norm(self._final, axis=1)
        cosines = (states * self._final).sum(1) / np.maximum(norms, 1e-30)
        return Trial(matched, span, float(cosines.mean()))

    def outputs(self) -> tuple[States, States]:
        """See the protocol."""
        span = self._span()
        count = self.layers
        if span == 0:
            empty = np.zeros((count, 0, self._decoder.hidden))
            return empty, empty
        parts = [*self._decoder.attention, *self._decoder.mlp]
        with self._decoder.watching(parts) as seen:
            self._pass(Plan.full(count), span)
        found = np.stack([as_numpy(states) for states in seen]).astype(np.float64)
        return found[:count], found[count:]

    def _span(self) -> int:
        """Output tokens that a trial can be held against: each needs the one before it in front."""
        return max(0, min(self._window, self._output, len(self._tokens) - 1))

    def _pass(self, plan: Plan, span: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Logits and final states (after the last norm) of ``plan`` over what precedes the last ``span`` tokens."""
        decoder = self._decoder
        start = len(self._tokens) - 1 - span
        cache = beginning(self._cache, decoder.new_cache(), start)
        self.passes += 1
        head = None if plan.exit_layer is None else self._heads.get(plan.exit_layer)
        with decoder.running(plan, head), decoder.watching([decoder.norm]) as seen:
            logits = decoder.logits(self._tokens[start:-1], cache)
        return logits, as_numpy(seen[0]).astype(np.float64)
