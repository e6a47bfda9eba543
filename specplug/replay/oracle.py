"""How far copying what followed the last token elsewhere could get: the best earlier occurrence, with hindsight.

Definition. At a step, let ``t`` be the last certain token. Every earlier place where ``t`` stands, in this request's
prompt and output or in the output of an earlier request, offers what follows it there. The oracle takes the place
whose continuation agrees longest with the recorded response (at most ``width`` tokens; in this request's own text it
may read on through what it is copying) and drafts exactly the part that agrees. So every draft token is accepted. What
it cannot foresee is a token that never followed ``t`` before. It is a mark to compare with, not a bound: a drafter that
keeps its place in a copy across an edit (specplug's does) knows what follows a word that never stood there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.replay.metrics import Tally
from specplug.types import TokenArray

#: Tokens of earlier outputs that are remembered: at least half of these, the newest ones. Bounds memory and time.
STORE_TOKENS = 1 << 18


class Repetition(NamedTuple):
    """What of a response stood earlier, in its request or in earlier outputs.

    Attributes:
        ahead: int64 ``[m]``: how many tokens from here on.
        behind: int64 ``[m]``: how many tokens before here, the *match length* of a step that drafts this position.
    """

    ahead: NDArray[np.int64]
    behind: NDArray[np.int64]


class Memory:
    """Finds repetition. One state for all requests, in the order in which they come.

    Args:
        limit: longest stretch that is told apart.
        store_tokens: see :data:`STORE_TOKENS`.
    """

    def __init__(self, limit: int, store_tokens: int = STORE_TOKENS) -> None:
        from specplug.kernels import earlier

        self._kernels = earlier
        self._limit = limit
        self._half = max(1, store_tokens // 2)
        size = _table_size(self._half * limit)
        self._new = np.zeros(size, np.uint64)
        self._old = np.zeros(size, np.uint64)
        self._held = 0
        self._wanted = np.zeros(1 << earlier.PAIR_BITS, np.bool_)

    def look(self, prompt: TokenArray, response: TokenArray) -> Repetition:
        """What of ``response`` (int32 ``[m]``) stood earlier; afterwards it is an earlier output itself.

        Cost O((n + m) * limit) at most, with a prompt of ``n`` tokens.
        """
        text = np.concatenate([prompt, response])
        # Where a stretch that ends inside the response may begin.
        asked = min(len(text), len(response) + self._limit)
        out = np.zeros(asked, np.int64)
        tail = text[len(text) - asked :]
        self._wanted[:] = False
        self._kernels.mark_pairs(tail, self._wanted)
        pairs = int(self._kernels.count_pairs(text, self._wanted))
        own = np.zeros(_table_size(len(text) + (pairs + 1) * self._limit), np.uint64)
        self._kernels.longest_earlier(
            text, self._wanted, own, self._new, self._old, self._limit, out
        )
        self._remember(response)
        return Repetition(out[asked - len(response) :], _behind(out, len(response), self._limit))

    def _remember(self, response: TokenArray) -> None:
        response = response[-self._half :]
        if self._held + len(response) > self._half:
            self._new, self._old = self._old, self._new
            self._new[:] = 0
            self._held = 0
        self._held += len(response)
        self._kernels.add_text(self._new, response, self._limit)


class Oracle:
    """Counts the steps of a drafter that knows the answer."""

    def __init__(self, width: int) -> None:
        self._width = width

    def replay(
        self, prompt: TokenArray, response: TokenArray, seen: Repetition, tally: Tally
    ) -> None:
        """Count the oracle's steps for one request (int32 ``[n]``, int32 ``[m]``)."""
        total = len(response)
        if total < 2:
            tally.short += 1
            return
        offered = np.clip(seen.ahead - 1, 0, self._width).tolist()
        tally.requests += 1
        tally.prompt_tokens += len(prompt)
        tally.response_tokens += total
        position = 1
        while position < total:
            accepted = min(offered[position - 1], total - position)
            end = min(total, position + accepted + 1)
            tally.step(end - position, accepted, accepted, accepted)
            position = end


def _behind(ahead: NDArray[np.int64], count: int, limit: int) -> NDArray[np.int64]:
    """The longest stretch of at most ``limit`` tokens that ends before each of the last ``count`` positions.

    The ``l`` tokens before a position stood earlier exactly if at least ``l`` tokens do from where they begin.
    """
    found = np.zeros(count, np.int64)
    first = len(ahead) - count
    for length in range(1, limit + 1):
        start = max(0, first - length)
        reaches = ahead[start : len(ahead) - length] >= length
        if not len(reaches):
            break
        view = found[count - len(reaches) :]
        view[reaches] = length
    return found


def _table_size(windows: int) -> int:
    """Places for so many windows: a power of two, at most two thirds full."""
    return 1 << max(4, (3 * windows // 2).bit_length())
