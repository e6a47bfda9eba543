"""What a proposer would offer at every position of a response, and how much of it would be right.

From recorded requests: the proposer drafts at *every* position of every response (teacher forcing), so that a
simulated server may stop there or not. Or made up, for tests and for machines without logs: text that alternates
between stretches that copy and stretches that do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from specplug.types import TokenArray

#: Draft positions that are kept.
WIDTH = 16


@dataclass(frozen=True)
class Trace:
    """Requests of one kind, one behind the other.

    Attributes:
        name: of the kind.
        survival: float32 ``[N, WIDTH]``, the proposer's estimates at each response position; 0 behind the offer.
        right: int16 ``[N]``, how many tokens of the offer are what the response says.
        starts: int64 ``[R + 1]``, where each response begins.
        prompts: int64 ``[R]``, tokens of each prompt.
        source: where it comes from.
    """

    name: str
    survival: NDArray[np.float32]
    right: NDArray[np.int16]
    starts: NDArray[np.int64]
    prompts: NDArray[np.int64]
    source: str = ""

    @cached_property
    def offered(self) -> NDArray[np.int32]:
        """int32 ``[N]``, tokens offered at each position."""
        offered: NDArray[np.int32] = (self.survival > 0).sum(axis=1, dtype=np.int32)
        return offered


#: Of synthetic text: mean length of a copied and of a new stretch (tokens), chance of a token to be foreseen in either,
#: share of new positions at which anything is offered, length of prompt and response (tokens).
KINDS: dict[str, tuple[float, float, float, float, float, int, int]] = {
    "chat": (12.0, 60.0, 0.85, 0.30, 0.30, 300, 300),
    "code edit": (120.0, 12.0, 0.975, 0.45, 0.60, 1500, 500),
    "agent": (40.0, 25.0, 0.93, 0.40, 0.50, 3000, 150),
}


def synthetic(kind: str, requests: int, seed: int = 0) -> Trace:
    """Made-up requests; the estimates are calibrated up to some noise."""
    copied, fresh, right_copied, right_fresh, offers, prompt, response = KINDS[kind]
    coins = np.random.default_rng([seed, sorted(KINDS).index(kind)])
    lengths = np.maximum(8, coins.exponential(response, requests)).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    total = int(starts[-1])
    # Stretches: alternate geometric lengths, cut to the total.
    pairs = int(total / (copied + fresh) * 2) + 16
    runs = np.stack([coins.geometric(1 / fresh, pairs), coins.geometric(1 / copied, pairs)], axis=1)
    copying = np.resize(np.repeat(np.tile([False, True], pairs), runs.ravel()), total)
    # Not every stretch copies equally well, and neither do positions.
    level = np.where(copying, right_copied, right_fresh)
    odds = level / (1 - level) * np.exp(0.6 * coins.standard_normal(total))
    chance = odds / (1 + odds)
    foreseen = coins.random(total) < chance
    offering = copying | (coins.random(total) < offers)
    claimed = odds * np.exp(0.4 * coins.standard_normal(total))
    claimed = claimed / (1 + claimed)
    ends = np.repeat(starts[1:], lengths)
    survival = np.zeros((total, WIDTH), np.float32)
    right = np.zeros(total, np.int16)
    alive = offering.copy()
    agreeing = alive.copy()
    product = np.ones(total)
    for depth in range(WIDTH):
        at = np.minimum(np.arange(total) + depth, total - 1)
        alive &= (np.arange(total) + depth < ends) & (offering[at] | (depth < 4))
        product = product * claimed[at]
        survival[:, depth] = np.where(alive & (product > 0.002), product, 0.0)
        agreeing &= foreseen[at] & (survival[:, depth] > 0)
        right += agreeing
    prompts = np.maximum(16, coins.exponential(prompt, requests)).astype(np.int64)
    return Trace(kind, survival, right, starts, prompts, f"synthetic, seed {seed}")


def mixed(traces: Iterable[Trace], name: str = "mixed") -> Trace:
    """Requests of several kinds in turn."""
    parts = list(traces)
    count = min(len(t.prompts) for t in parts)
    order = [(t, i) for i in range(count) for t in parts]
    pieces = [slice(int(t.starts[i]), int(t.starts[i + 1])) for t, i in order]
    lengths = [piece.stop - piece.start for piece in pieces]
    return Trace(
        name,
        np.concatenate([t.survival[p] for (t, _), p in zip(order, pieces, strict=True)]),
        np.concatenate([t.right[p] for (t, _), p in zip(order, pieces, strict=True)]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.array([t.prompts[i] for t, i in order], np.int64),
        "; ".join(t.source for t in parts),
    )


def recorded(
    name: str,
    records: Iterable[tuple[TokenArray, TokenArray]],
    proposer_name: str,
    vocab_size: int,
    source: str,
) -> Trace:
    """Let a proposer draft at every position of recorded responses.

    Args:
        name: of the kind.
        records: prompts and responses, int32 arrays.
        proposer_name: a registered proposer; it is built with the least verification cost it takes.
        vocab_size: of the tokenizer.
        source: for people.
    """
    from specplug import registry
    from specplug.replay.drivers import ProposerDriver
    from specplug.session import accepted_tokens
    from specplug.types import Context

    context = Context(vocab_size, 1 << 18, WIDTH, 1)
    proposer = registry.build(proposer_name, context)
    if hasattr(proposer, "set_verify_cost"):
        proposer.set_verify_cost(0.002)
    driver = ProposerDriver(proposer, context)
    survival: list[NDArray[np.float32]] = []
    right: list[int] = []
    lengths, prompts = [], []
    for prompt, response in records:
        if len(response) < 2:
            continue
        driver.begin(prompt)
        for position in range(1, len(response)):
            driver.step(response[position - 1 : position])
            draft = driver.draft()
            row = np.zeros(WIDTH, np.float32)
            row[: len(draft.tokens)] = 1.0 if draft.survival is None else draft.survival
            survival.append(row)
            right.append(accepted_tokens(draft.tokens, None, response[position : position + WIDTH]))
        driver.end(response[-1:])
        lengths.append(len(response) - 1)
        prompts.append(len(prompt))
    return Trace(
        name,
        np.array(survival, np.float32).reshape(-1, WIDTH),
        np.array(right, np.int16),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.array(prompts, np.int64),
        source,
    )
