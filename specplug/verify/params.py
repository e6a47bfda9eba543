"""Sampling parameters of one request, and the orders in which engines apply them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from specplug.errors import InvalidRequestError, did_you_mean


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are drawn, in the terms of the OpenAI API and its usual extensions.

    Attributes:
        temperature: 0 is greedy.
        top_k: keep the best ``k`` tokens and their ties; 0 is off.
        top_p: keep the fewest most likely tokens whose mass reaches it; 1 is off.
        min_p: keep what is at least this likely relative to the most likely token; 0 is off.
        repetition_penalty: scores of tokens that occurred are divided (multiplied, if negative) by
            it; 1 is off.
        frequency_penalty: subtracted from a token's score for every occurrence in the output; 0 is
            off.
        presence_penalty: subtracted once from the score of tokens that occurred in the output; 0 is
            off.
        logit_bias: added to the scores of these ids.
        bad_words: token sequences that the output may not complete.
        min_tokens: no stop token before the output has this many tokens.
        stop_token_ids: what ends the output; only ``min_tokens`` looks at it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self._range("temperature", self.temperature >= 0.0, "at least 0 (0 is greedy)")
        self._range("top_k", self.top_k >= 0, "at least 0 (0 is off)")
        self._range("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1 (1 is off)")
        self._range("min_p", 0.0 <= self.min_p <= 1.0, "between 0 and 1 (0 is off)")
        self._range("repetition_penalty", self.repetition_penalty > 0.0, "above 0 (1 is off)")
        self._range("min_tokens", self.min_tokens >= 0, "at least 0 (0 is off)")
        for name in ("temperature", "repetition_penalty", "frequency_penalty", "presence_penalty"):
            self._range(name, math.isfinite(getattr(self, name)), "a finite number")
        for token, bias in self.logit_bias.items():
            if math.isnan(bias) or bias == math.inf:
                raise InvalidRequestError(
                    f"SamplingParams.logit_bias[{token}] must be a number or -inf, got {bias}"
                )
        if not all(self.bad_words):
            raise InvalidRequestError(
                "SamplingParams.bad_words must not hold an empty sequence; leave it out"
            )

    def _range(self, name: str, fine: bool, expected: str) -> None:
        if not fine:
            raise InvalidRequestError(
                f"SamplingParams.{name} must be {expected}, got {getattr(self, name)!r}"
            )


#: Everything that can be done to logits before a token is drawn, in the order of vLLM.
STEPS = (
    "grammar",
    "bad_words",
    "min_tokens",
    "bias",
    "repetition",
    "frequency",
    "presence",
    "temperature",
    "min_p",
    "top_k",
    "top_p",
)


@dataclass(frozen=True, slots=True)
class Order:
    """The order in which an engine transforms logits; it matters, since the steps do not commute.

    Attributes:
        name: for messages.
        steps: a permutation of :data:`STEPS`.
        repetition_sees_prompt: the repetition penalty counts the prompt's tokens too.
    """

    name: str
    steps: tuple[str, ...]
    repetition_sees_prompt: bool

    def __post_init__(self) -> None:
        for step in self.steps:
            if step not in STEPS:
                raise InvalidRequestError(f"unknown step {step!r}; {did_you_mean(step, STEPS)}")
        missing = [step for step in STEPS if step not in self.steps]
        if missing or len(self.steps) != len(STEPS):
            raise InvalidRequestError(
                f"Order.steps must name every step once; missing: {missing}, given: {self.steps}"
            )


#: vLLM 0.32, ``v1/sample/sampler.py``. Its top-p keeps a token while the mass before it is below
#: ``top_p``, as ours does.
VLLM = Order("vllm", STEPS, repetition_sees_prompt=True)

_SGLANG_SCORES = (
    "frequency",
    "min_tokens",
    "presence",
    "repetition",
    "bad_words",
    "grammar",
    "bias",
    "temperature",
)

#: SGLang 0.5.23 with its PyTorch sampler, ``srt/layers/sampler.py``: top-p looks at the law before
#: top-k, which is the same as taking top-p first. It differs from ours at exact ties only: it cuts
#: equal tokens at rank ``k``, and keeps one more token where the mass before it equals ``top_p``.
#: It has no bad words.
SGLANG = Order("sglang", (*_SGLANG_SCORES, "top_p", "top_k", "min_p"), repetition_sees_prompt=False)

#: SGLang 0.5.23 with its FlashInfer sampler, and in its own verification: renormalises after
#: top-k, then takes top-p.
SGLANG_FLASHINFER = Order(
    "sglang_flashinfer", (*_SGLANG_SCORES, "top_k", "top_p", "min_p"), repetition_sees_prompt=False
)

ORDERS = {order.name: order for order in (VLLM, SGLANG, SGLANG_FLASHINFER)}
