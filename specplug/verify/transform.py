"""From logits to the law that a token is drawn from, at every draft position of every request.

Position ``j`` of a row sees the row's past *and* the drafts before it, so that penalties, bad
words and minimum lengths are what they would be if the tokens had come one by one. Two speeds:
float64 logits are transformed in float64, float32 logits in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.errors import InvalidDistributionError, InvalidRequestError
from specplug.kernels import penalties, sampling
from specplug.types import LENGTH_DTYPE, PROB_DTYPE, TOKEN_DTYPE, IntArray, TokenArray
from specplug.verify.chain import used_positions
from specplug.verify.checks import drafts_of, scores_of, vocabulary_of
from specplug.verify.params import VLLM, Order, SamplingParams
from specplug.verify.tree import parents_of


class Past(NamedTuple):
    """What a request has so far: two sequences of token ids. Ids outside the vocabulary are skipped by penalties."""

    prompt: Sequence[int]
    output: Sequence[int]


@dataclass
class _Work:
    """One call: the scores that the steps change, and what they look at."""

    scores: NDArray[Any]
    params: Sequence[SamplingParams]
    pasts: Sequence[Past]
    tokens: TokenArray
    parents: IntArray
    lengths: IntArray
    grammar: NDArray[np.bool_] | None
    order: Order

    def each(self, name: str, dtype: Any = PROB_DTYPE) -> NDArray[Any]:
        """One parameter of all rows."""
        return np.array([getattr(p, name) for p in self.params], dtype)

    def branch(self, row: int, position: int) -> list[int]:
        """The draft tokens from the root to a position."""
        branch: list[int] = []
        node = position - 1
        while node >= 0:
            branch.append(int(self.tokens[row, node]))
            node = int(self.parents[row, node])
        return branch[::-1]


def target_probs(
    logits: Any,
    params: Sequence[SamplingParams],
    pasts: Sequence[Past],
    tokens: Any,
    lengths: Any,
    *,
    parents: Any = None,
    grammar: Any = None,
    order: Order = VLLM,
) -> NDArray[Any]:
    """The target's law at every draft position, ready for verification.

    Args:
        logits: float64 or float32 ``[B, K + 1, V]``; ``-inf`` forbids a token. Not changed.
        params: one per row.
        pasts: one per row.
        tokens: integers ``[B, K]``, the drafts.
        lengths: integers ``[B]``, drafts per row.
        parents: integers ``[B, K]`` for trees; None for chains.
        grammar: bool ``[B, K + 1, V]``, what a grammar allows at each position; None if there is
            none.
        order: of the steps; see :mod:`specplug.verify.params`.

    Returns:
        Probabilities of the shape and dtype of ``logits``; zero at positions that are not in use.

    Raises:
        InvalidDistributionError: malformed logits, or a position at which the request's parameters
        allow no token at all. InvalidRequestError: malformed drafts, parents or grammar, or not
        one parameter set and past per row.
    """
    drafts, counts = drafts_of(tokens, lengths, vocabulary_of("logits", logits))
    rows, width = drafts.shape
    for name, given in (("params", params), ("pasts", pasts)):
        if len(given) != rows:
            raise InvalidRequestError(
                f"{name} must have one entry per row ({rows}), got {len(given)}"
            )
    if parents is None:
        nodes = np.empty(drafts.shape, LENGTH_DTYPE)
        nodes[:] = np.arange(-1, width - 1)
    else:
        nodes = parents_of(parents, counts, drafts.shape)
    used = used_positions(drafts, counts)
    scores = np.array(scores_of("logits", logits, used), order="C")
    allowed = _grammar_of(grammar, scores.shape)
    work = _Work(scores, params, pasts, drafts, nodes, counts, allowed, order)
    for step in order.steps:
        _STEPS[step](work)
    _refuse_empty(scores, used)
    probs = np.empty_like(scores)
    flat = (rows * (width + 1), scores.shape[2])
    sampling.softmax(scores.reshape(flat), probs.reshape(flat))
    probs[~used] = 0.0
    return probs


def _grammar_of(grammar: Any, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
    if grammar is None:
        return None
    allowed: NDArray[np.bool_] = np.asarray(grammar)
    if allowed.dtype != np.bool_ or allowed.shape != shape:
        raise InvalidRequestError(
            f"grammar must be a bool array of the shape of the logits {shape}, got {allowed.dtype} "
            f"{allowed.shape}"
        )
    return allowed


def _refuse_empty(scores: NDArray[Any], used: NDArray[np.bool_]) -> None:
    empty = np.argwhere(used & np.isneginf(scores).all(axis=2))
    if len(empty):
        row, position = empty[0].tolist()
        raise InvalidDistributionError(
            f"no token is left at position {position} of row {row}: grammar, bad words, minimum length and "
            "bias forbid them all; relax one of them, or cut the draft before that position"
        )


def _grammar(work: _Work) -> None:
    if work.grammar is not None:
        work.scores[~work.grammar & used_positions(work.tokens, work.lengths)[:, :, None]] = -np.inf


def _bad_words(work: _Work) -> None:
    for row, params in enumerate(work.params):
        for position in range(int(work.lengths[row]) + 1 if params.bad_words else 0):
            before = [*work.pasts[row].output, *work.branch(row, position)]
            for *prefix, last in params.bad_words:
                if before[len(before) - len(prefix) :] == prefix and last < work.scores.shape[2]:
                    work.scores[row, position, last] = -np.inf


def _min_tokens(work: _Work) -> None:
    for row, params in enumerate(work.params):
        missing = params.min_tokens - len(work.pasts[row].output)
        stops = [t for t in params.stop_token_ids if 0 <= t < work.scores.shape[2]]
        for position in range(int(work.lengths[row]) + 1 if missing > 0 else 0):
            if len(work.branch(row, position)) < missing:
                work.scores[row, position, stops] = -np.inf


def _bias(work: _Work) -> None:
    for row, params in enumerate(work.params):
        for token, bias in params.logit_bias.items():
            if not 0 <= token < work.scores.shape[2]:
                raise InvalidRequestError(
                    f"logit_bias of row {row} names the token {token}, but the target has the ids 0 to "
                    f"{work.scores.shape[2] - 1}"
                )
            work.scores[row, :, token] += bias


def _penalty(
    kernel: Callable[..., None], name: str, neutral: float, work: _Work, prompt: bool
) -> None:
    values = work.each(name)
    if (values == neutral).all():
        return
    pasts = [[*p.prompt, *p.output] if prompt else [*p.output] for p in work.pasts]
    offsets = np.zeros(len(pasts) + 1, np.int64)
    np.cumsum([len(past) for past in pasts], out=offsets[1:])
    flat = np.array([token for past in pasts for token in past], TOKEN_DTYPE)
    kernel(work.scores, flat, offsets, work.tokens, work.parents, work.lengths, values)


def _repetition(work: _Work) -> None:
    prompt = work.order.repetition_sees_prompt
    _penalty(penalties.apply_repetition, "repetition_penalty", 1.0, work, prompt)


def _frequency(work: _Work) -> None:
    _penalty(penalties.apply_frequency, "frequency_penalty", 0.0, work, prompt=False)


def _presence(work: _Work) -> None:
    _penalty(penalties.apply_presence, "presence_penalty", 0.0, work, prompt=False)


def _per_position(kernel: Callable[..., None], name: str, dtype: Any, work: _Work) -> None:
    rows, positions, vocab_size = work.scores.shape
    values = np.repeat(work.each(name, dtype), positions)
    kernel(work.scores.reshape(rows * positions, vocab_size), values)


def _temperature(work: _Work) -> None:
    _per_position(sampling.apply_temperature, "temperature", PROB_DTYPE, work)


def _min_p(work: _Work) -> None:
    _per_position(sampling.keep_min_p, "min_p", PROB_DTYPE, work)


def _top_k(work: _Work) -> None:
    _per_position(sampling.keep_top_k, "top_k", LENGTH_DTYPE, work)


def _top_p(work: _Work) -> None:
    _per_position(sampling.keep_top_p, "top_p", PROB_DTYPE, work)


_STEPS: dict[str, Callable[[_Work], None]] = {
    "grammar": _grammar,
    "bad_words": _bad_words,
    "min_tokens": _min_tokens,
    "bias": _bias,
    "repetition": _repetition,
    "frequency": _frequency,
    "presence": _presence,
    "temperature": _temperature,
    "min_p": _min_p,
    "top_k": _top_k,
    "top_p": _top_p,
}
