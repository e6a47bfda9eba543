"""A target whose tokens go through the whole sampling pipeline, one token at a time and at draft positions.

One token at a time it is worked out by the reference code, from the definition. At draft positions it is worked out by
:func:`specplug.verify.transform.target_probs`, which has to see each position's own history.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specplug.reference import penalties, sampling
from specplug.reference.enumerate_law import Tokens
from specplug.testing.targets import DraftRow, SampledTarget, Target, befores
from specplug.types import LENGTH_DTYPE, TOKEN_DTYPE, ProbArray
from specplug.verify.params import VLLM, Order, SamplingParams
from specplug.verify.transform import Past, target_probs


def anything(output: Tokens) -> NDArray[np.bool_] | None:
    """A grammar that allows every token."""
    return None


@dataclass
class PipelineTarget(SampledTarget):
    """A target with any sampling parameters.

    Attributes:
        params: of the one request that it serves.
        prompt_length: of that request.
        order: in which the steps are done.
        grammar: from the output so far to the tokens allowed next, bool ``[V]``; None allows all.
    """

    target: Target
    params: SamplingParams = field(default_factory=SamplingParams)
    prompt_length: int = 0
    order: Order = VLLM
    grammar: Callable[[Tokens], NDArray[np.bool_] | None] = anything

    def __post_init__(self) -> None:
        self.temperature = self.params.temperature

    def next_law(self, history: Tokens) -> ProbArray:
        law = self._laws.get(history)
        if law is None:
            scores = self.target.logits(history)[None].copy()
            for step in self.order.steps:
                self._apply(step, scores, history)
            law = np.empty_like(scores)
            sampling.softmax(scores, law)
            law = self._laws[history] = law[0]
        return law

    def position_laws(self, history: Tokens, draft: DraftRow) -> ProbArray:
        logits = np.stack([self.target.logits(before) for before in befores(history, draft)])
        masks = [self.grammar(b[self.prompt_length :]) for b in befores(history, draft)]
        allowed = [np.ones(self.vocab_size, np.bool_) if m is None else m for m in masks]
        probs = target_probs(
            logits[None],
            [self.params],
            [Past(history[: self.prompt_length], history[self.prompt_length :])],
            draft.tokens[None],
            [len(draft.tokens)],
            parents=None if draft.parents is None else draft.parents[None],
            grammar=np.stack(allowed)[None],
            order=self.order,
        )
        laws: ProbArray = probs[0]
        return laws

    def _apply(self, step: str, scores: ProbArray, history: Tokens) -> None:
        """One step on one position, float64 ``[1, V]``, from its definition."""
        params, output = self.params, history[self.prompt_length :]
        line = scores[0]
        if step == "grammar":
            allowed = self.grammar(output)
            if allowed is not None:
                line[~allowed] = -math.inf
        elif step == "bad_words":
            for word in params.bad_words:
                if (*output, word[-1])[-len(word) :] == word:
                    line[word[-1]] = -math.inf
        elif step == "min_tokens":
            if len(output) < params.min_tokens:
                line[sorted(params.stop_token_ids)] = -math.inf
        elif step == "bias":
            for token, bias in params.logit_bias.items():
                line[token] += bias
        elif step in ("repetition", "frequency", "presence"):
            everything = step == "repetition" and self.order.repetition_sees_prompt
            self._penalise(step, scores, history if everything else output)
        else:
            _FILTERS[step](scores, params)

    def _penalise(self, step: str, scores: ProbArray, past: Tokens) -> None:
        none = np.zeros((1, 0), TOKEN_DTYPE)
        getattr(penalties, f"apply_{step}")(
            scores[None],
            np.array(past, TOKEN_DTYPE),
            np.array([0, len(past)]),
            none,
            none,
            np.zeros(1, LENGTH_DTYPE),
            np.array([getattr(self.params, f"{step}_penalty")]),
        )


_FILTERS: dict[str, Callable[[ProbArray, SamplingParams], None]] = {
    "temperature": lambda s, p: sampling.apply_temperature(s, np.array([p.temperature])),
    "min_p": lambda s, p: sampling.keep_min_p(s, np.array([p.min_p])),
    "top_k": lambda s, p: sampling.keep_top_k(s, np.array([p.top_k], LENGTH_DTYPE)),
    "top_p": lambda s, p: sampling.keep_top_p(s, np.array([p.top_p])),
}
