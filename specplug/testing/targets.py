"""Tiny target models whose every conditional law is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specplug.reference import sampling
from specplug.reference.enumerate_law import Tokens
from specplug.testing.report import brief
from specplug.types import LENGTH_DTYPE, IntArray, ProbArray, TokenArray


class DraftRow(NamedTuple):
    """The draft of one row: int32 ``[n]`` tokens, and for trees and sampled drafts what belongs to them."""

    tokens: TokenArray
    parents: IntArray | None = None
    draft_probs: ProbArray | None = None


def befores(history: Tokens, draft: DraftRow) -> list[Tokens]:
    """The histories that the positions of a draft stand after: ``history`` itself, then one for each node."""
    found = [history]
    for node, token in enumerate(draft.tokens.tolist()):
        parent = node - 1 if draft.parents is None else int(draft.parents[node])
        found.append((*found[parent + 1], token))
    return found


class Target(Protocol):
    """A model: from a whole history to the logits of the next token."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    def logits(self, history: Tokens) -> ProbArray:
        """Float64 ``[V]``; ``-inf`` where a token cannot follow."""


@dataclass(frozen=True)
class MarkovTarget:
    """The next token depends on the last ``order`` tokens; missing ones and separators count as token 0.

    Attributes:
        table: float64 ``[V] * order + [V]``, probabilities along the last axis.
    """

    table: NDArray[np.float64]

    @property
    def vocab_size(self) -> int:
        return int(self.table.shape[-1])

    @property
    def order(self) -> int:
        return self.table.ndim - 1

    def logits(self, history: Tokens) -> ProbArray:
        recent = ((0,) * self.order + history)[len(history) :]
        return _log(self.table[tuple(t if 0 <= t < self.vocab_size else 0 for t in recent)])

    def __repr__(self) -> str:
        return f"MarkovTarget(np.array({np.round(self.table, 6).tolist()}))"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would show every field


@dataclass(frozen=True)
class TableTarget:
    """Any conditional laws at all: probabilities by whole history, ``default`` where none is given."""

    table: Mapping[Tokens, NDArray[np.float64]]
    default: NDArray[np.float64]

    @property
    def vocab_size(self) -> int:
        return len(self.default)

    def logits(self, history: Tokens) -> ProbArray:
        return _log(self.table.get(history, self.default))


@dataclass
class SampledTarget:
    """A target together with how its tokens are sampled: temperature, then top-k, then top-p.

    Attributes:
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
    """

    target: Target
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    _laws: dict[Tokens, ProbArray] = field(default_factory=dict, repr=False)

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def scores(self, history: Tokens) -> ProbArray:
        """Logits before sampling, float64 ``[V]``: all that greedy verification needs."""
        return self.target.logits(history)

    def next_law(self, history: Tokens) -> ProbArray:
        """The law that the next token is drawn from, float64 ``[V]``; by the reference code."""
        law = self._laws.get(history)
        if law is None:
            scores = self.target.logits(history)[None].copy()
            sampling.apply_temperature(scores, np.array([self.temperature]))
            sampling.keep_top_k(scores, np.array([self.top_k], LENGTH_DTYPE))
            sampling.keep_top_p(scores, np.array([self.top_p]))
            law = np.empty_like(scores)
            sampling.softmax(scores, law)
            law = self._laws[history] = law[0]
        return law

    def position_laws(self, history: Tokens, draft: DraftRow) -> ProbArray:
        """The laws at all positions of a draft, float64 ``[n + 1, V]``, as a verification gets them."""
        return np.stack([self.next_law(before) for before in befores(history, draft)])

    def __repr__(self) -> str:
        return brief(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would show every field


def _log(probs: NDArray[np.float64]) -> ProbArray:
    return np.array([math.log(p) if p > 0.0 else -math.inf for p in probs.tolist()])
