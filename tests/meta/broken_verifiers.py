"""Verifications that are wrong in one way each, written for one row, and how the enumeration drives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specplug.reference.draw import draw, draw_without
from specplug.testing.cells import Batch, Verifier

Law = np.ndarray
#: One row: target [n + 1, V], draft, draft laws or None, parents or None, coins [n + 1] -> emitted tokens.
RowRule = Callable[[Law, Sequence[int], Any, Any, Law], list[int]]


@dataclass(frozen=True)
class Broken:
    """A wrong verification.

    Attributes:
        drafts: ``one_hot``, ``sampled``, ``tree``, ``sampled_tree`` or ``greedy``: what it verifies.
        rule: for one row; or ``batch`` for all of them, where the rows get mixed up.
    """

    name: str
    drafts: str
    rule: RowRule | None = None
    batch: Callable[[Batch, Law], np.ndarray] | None = None
    width: int = 2

    def verifier(self) -> Verifier:
        """The same, made drivable; what its coins mean is searched for."""
        greedy = self.drafts == "greedy"
        return Verifier(self.name, self._run, None, lambda n: 0 if greedy else n + 1, greedy)

    def _run(self, batch: Batch, coins: Law) -> np.ndarray:
        if self.batch is not None:
            return self.batch(batch, coins)
        out = np.full((len(batch.lengths), batch.tokens.shape[1] + 1), -1, np.int32)
        assert self.rule is not None
        for row, length in enumerate(batch.lengths.tolist()):
            laws = None if batch.draft_probs is None else batch.draft_probs[row]
            parents = None if batch.parents is None else batch.parents[row, :length].tolist()
            tokens = batch.tokens[row, :length].tolist()
            own = np.append(coins[row, :length], coins[row, -1]) if coins.shape[1] else coins[row]
            emitted = self.rule(batch.target[row], tokens, laws, parents, own)
            out[row, : len(emitted)] = emitted
        return out


def _best(law: Law) -> int:
    return int(np.argmax(law))


def swapped(target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law) -> list[int]:
    """Accepts with min(1, draft / target)."""
    for j, x in enumerate(tokens):
        if not coins[j] * target[j, x] < laws[j, x]:
            return [*tokens[:j], _residual(target[j], laws[j], coins[-1])]
    return [*tokens, draw(target[len(tokens)], coins[-1])]


def _residual(target: Law, law: Law, coin: float) -> int:
    rest = np.maximum(0.0, target - law)
    return draw(rest if rest.sum() > 0.0 else target, coin)


def no_residual(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """After a rejection, samples from the target instead of from what is left of it."""
    for j, x in enumerate(tokens):
        if not coins[j] * laws[j, x] < target[j, x]:
            return [*tokens[:j], draw(target[j], coins[-1])]
    return [*tokens, draw(target[len(tokens)], coins[-1])]


def no_residual_one_hot(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """The same for deterministic drafts: the rejected token can come back."""
    for j, x in enumerate(tokens):
        if not coins[j] < target[j, x]:
            return [*tokens[:j], draw(target[j], coins[-1])]
    return [*tokens, draw(target[len(tokens)], coins[-1])]


def absolute_residual(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Takes the size of the difference for the residual."""
    for j, x in enumerate(tokens):
        if not coins[j] * laws[j, x] < target[j, x]:
            return [*tokens[:j], draw(np.abs(target[j] - laws[j]), coins[-1])]
    return [*tokens, draw(target[len(tokens)], coins[-1])]


def _one_hot(
    target: Law,
    tokens: Sequence[int],
    coins: Law,
    first: int = 0,
    reuse: bool = False,
    bonus: Callable[[int], int] = lambda n: n,
    judge: Callable[[int], int] = lambda j: j,
) -> list[int]:
    for j, x in enumerate(tokens):
        if j >= first and not coins[j] < target[judge(j), x]:
            coin = coins[j] if reuse else coins[-1]
            other = draw_without(target[j], x, coin)
            return [*tokens[:j], other if other >= 0 else x]
    return [*tokens, draw(target[bonus(len(tokens))], coins[-1])]


def first_unverified(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Its loop starts at the second draft token."""
    return _one_hot(target, tokens, coins, first=1)


def judged_one_late(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Judges each draft by the law of the position after it."""
    return _one_hot(target, tokens, coins, judge=lambda j: j + 1)


def stale_bonus(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Draws the extra token from the law of the last draft position."""
    return _one_hot(target, tokens, coins, bonus=lambda n: max(0, n - 1))


def reused_coin(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Draws the correction with the coin that rejected the draft."""
    return _one_hot(target, tokens, coins, reuse=True)


def one_coin_for_all(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Judges all drafts with the same coin."""
    return _one_hot(target, tokens, np.append(np.full(len(tokens), coins[0]), coins[-1]))


def greedy_bonus(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Emits the most likely token after a fully accepted draft."""
    emitted = _one_hot(target, tokens, coins)
    if len(emitted) == len(tokens) + 1:
        emitted[-1] = _best(target[len(tokens)])
    return emitted


def commits_argmax(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Verifies greedily whatever the temperature."""
    kept = 0
    while kept < len(tokens) and tokens[kept] == _best(target[kept]):
        kept += 1
    return [*tokens[:kept], _best(target[kept])]


def accepts_the_likely(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Accepts a draft if the target finds it likely enough, without a coin."""
    for j, x in enumerate(tokens):
        if target[j, x] < 0.3:
            other = draw_without(target[j], x, coins[-1])
            return [*tokens[:j], other if other >= 0 else x]
    return [*tokens, draw(target[len(tokens)], coins[-1])]


def masks_the_end(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Suppresses the stop token (0) at draft positions, so that a burst is never cut."""
    masked = target.copy()
    masked[:-1, 0] = np.where(target[:-1, 0] < 1.0, 0.0, 1.0)
    masked /= masked.sum(axis=1, keepdims=True)
    return _one_hot(masked, tokens, coins)


def forgets_the_cutoff(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Applies a sampling filter at the first position only: here, a softer law behind it."""
    softer = np.sqrt(target)
    softer[0] = target[0]
    return _one_hot(softer / softer.sum(axis=1, keepdims=True), tokens, coins)


def last_maximum(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Takes the last of several equally likely tokens."""
    best = [len(law) - 1 - int(np.argmax(law[::-1])) for law in target]
    kept = 0
    while kept < len(tokens) and tokens[kept] == best[kept]:
        kept += 1
    return [*tokens[:kept], best[kept]]


def block_without_clamp(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Judges the block by the plain product of ratios: weights grow above 1."""
    return _block(target, tokens, laws, coins, clamp=False)


def block_residual_of_tokens(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Draws the correction of a block as if it had been judged token by token."""
    return _block(target, tokens, laws, coins, weighed=False)


def _block(
    target: Law,
    tokens: Sequence[int],
    laws: Any,
    coins: Law,
    clamp: bool = True,
    weighed: bool = True,
) -> list[int]:
    weights = [1.0]
    kept = 0
    for j, x in enumerate(tokens):
        weight = weights[-1] * target[j, x] / laws[j, x]
        weights.append(min(1.0, weight) if clamp else weight)
        chance = weights[-1]
        if j + 1 < len(tokens):
            mass = np.maximum(0.0, weights[-1] * target[j + 1] - laws[j + 1]).sum()
            rest = mass + 1.0 - weights[-1]
            chance = mass / rest if rest > 0.0 else 1.0
        if coins[j] < chance:
            kept = j + 1
    if kept == len(tokens):
        return [*tokens, draw(target[kept], coins[-1])]
    weight = weights[kept] if weighed else 1.0
    return [*tokens[:kept], _residual(weight * target[kept], laws[kept], coins[-1])]


def siblings_judged_alone(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Judges each sibling by the target, as if no elder one had been rejected."""
    left = target[0].copy()
    for j, x in enumerate(tokens):
        if coins[j] < target[0, x]:
            return [x, draw(target[j + 1], coins[-1])]
        left[x] = 0.0
    return [draw(left if left.sum() > 0.0 else target[0], coins[-1])]


def siblings_keep_their_mass(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Takes away only the last rejected sibling before it draws the correction."""
    left = target[0].copy()
    for j, x in enumerate(tokens):
        if coins[j] * left.sum() < left[x]:
            return [x, draw(target[j + 1], coins[-1])]
        left[x] = 0.0
    last = tokens[-1] if tokens else -1
    other = draw_without(target[0], last, coins[-1])
    return [other if other >= 0 else last]


def siblings_of_one_law(
    target: Law, tokens: Sequence[int], laws: Any, parents: Any, coins: Law
) -> list[int]:
    """Judges a sibling drawn without replacement by the law with replacement."""
    left = target[0]
    for j, x in enumerate(tokens):
        if coins[j] * laws[0, x] < left[x]:
            return [x, draw(target[j + 1], coins[-1])]
        rest = np.maximum(0.0, left - laws[0])
        left = rest / rest.sum() if rest.sum() > 0.0 else target[0]
    return [draw(left, coins[-1])]


def _stale_row(batch: Batch, coins: Law) -> np.ndarray:
    """Every row is judged by the target of the row before it."""
    moved = batch._replace(target=np.roll(batch.target, 1, axis=0))
    return Broken("", "one_hot", lambda t, x, q, p, c: _one_hot(t, x, c))._run(moved, coins)


def _shared_coin(batch: Batch, coins: Law) -> np.ndarray:
    """All rows are judged with the coins of the first."""
    same = np.tile(coins[0], (len(coins), 1))
    return Broken("", "one_hot", lambda t, x, q, p, c: _one_hot(t, x, c))._run(batch, same)


BROKEN = (
    Broken("swapped p and q", "sampled", swapped),
    Broken("missing residual", "sampled", no_residual, width=1),
    Broken("missing residual, one-hot", "one_hot", no_residual_one_hot),
    Broken("residual by absolute value", "sampled", absolute_residual, width=1),
    Broken("first draft never verified", "one_hot", first_unverified),
    Broken("judged one position late", "one_hot", judged_one_late),
    Broken("bonus from the position before", "one_hot", stale_bonus),
    Broken("coin reused for the correction", "one_hot", reused_coin, width=1),
    Broken("one coin for all drafts", "one_hot", one_coin_for_all),
    Broken("greedy bonus", "one_hot", greedy_bonus),
    Broken("argmax at temperature above 0", "one_hot", commits_argmax),
    Broken("acceptance by threshold", "one_hot", accepts_the_likely),
    Broken("stop token masked at draft positions", "one_hot", masks_the_end),
    Broken("filter at the first position only", "one_hot", forgets_the_cutoff),
    Broken("last maximum wins", "greedy", last_maximum),
    Broken("block weights not clamped", "sampled", block_without_clamp),
    Broken("block residual not weighed", "sampled", block_residual_of_tokens),
    Broken("siblings judged alone", "tree", siblings_judged_alone),
    Broken("only the last sibling taken away", "tree", siblings_keep_their_mass),
    Broken("replacement forgotten", "sampled_tree", siblings_of_one_law),
    Broken("stale row", "one_hot", batch=_stale_row),
    Broken("coins shared by all rows", "one_hot", batch=_shared_coin),
)
