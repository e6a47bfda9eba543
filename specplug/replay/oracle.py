"""How far copying what followed the last token elsewhere could get: the best earlier occurrence, with hindsight.

Definition. At a step, let ``t`` be the last certain token. Every earlier place where ``t`` stands, in this request's
prompt and output or in the output of an earlier request, offers what follows it there. The oracle takes the place
whose continuation agrees longest with the recorded response (at most ``width`` tokens; in this request's own text it
may read on through what it is copying) and drafts exactly the part that agrees. So every draft token is accepted. What
it cannot foresee is a token that never followed ``t`` before. It is a mark to compare with, not a bound: a drafter that
keeps its place in a copy across an edit (specplug's does) knows what follows a word that never stood there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specplug.replay.metrics import Tally
from specplug.types import TOKEN_DTYPE, TokenArray

#: Tokens of earlier outputs that are remembered; older ones are forgotten, so that memory and time stay bounded.
STORE_TOKENS = 1 << 20


class Oracle:
    """Replays requests like a drafter that knows the answer. One state for all of them, like a proposer.

    Cost per request: a few passes over the store, its prompt and its output.
    """

    def __init__(self, vocab_size: int, width: int, store_tokens: int = STORE_TOKENS) -> None:
        self._vocab_size = vocab_size
        self._width = width
        self._limit = store_tokens
        self._store = np.full(2 * store_tokens, vocab_size, TOKEN_DTYPE)
        self._end = 0

    def replay(self, prompt: TokenArray, response: TokenArray, tally: Tally) -> None:
        """Count the oracle's steps for one request (int32 ``[n]``, int32 ``[m]``); ids below ``vocab_size``."""
        total = len(response)
        if total < 2:
            tally.short += 1
            return
        store = self._store[max(0, self._end - self._limit) : self._end]
        # One id above the vocabulary separates texts; continuations never agree on it, as no response holds it.
        between = np.full(1, self._vocab_size, TOKEN_DTYPE)
        text = np.concatenate([store, between, prompt, response])
        first = len(text) - total
        # Of the text that starts at the last certain token, the longest prefix that stands anywhere earlier.
        reach = longest_earlier(text, first, self._width + 1, self._vocab_size + 1)
        offered = np.maximum(reach - 1, 0).tolist()
        tally.requests += 1
        tally.prompt_tokens += len(prompt)
        tally.response_tokens += total
        position = 1
        while position < total:
            accepted = min(offered[position - 1], total - position)
            end = min(total, position + accepted + 1)
            tally.steps += 1
            tally.emitted += end - position
            tally.drafted_steps += accepted > 0
            tally.drafted += accepted
            tally.accepted += accepted
            position = end
        self._remember(response)

    def _remember(self, response: TokenArray) -> None:
        response = response[-self._limit :]
        needed = len(response) + 1
        if self._end + needed > len(self._store):
            kept = self._store[self._end - self._limit : self._end].copy()
            self._store[: len(kept)] = kept
            self._end = len(kept)
        self._store[self._end : self._end + len(response)] = response
        self._store[self._end + len(response)] = self._vocab_size
        self._end += needed


def longest_earlier(text: TokenArray, first: int, limit: int, vocab_size: int) -> NDArray[np.int64]:
    """For each position from ``first`` on: how many tokens from there on also stand, in this order, somewhere earlier.

    The earlier occurrence starts before the position and may overlap it. At most ``limit`` (at least 1).

    Works upwards by length: class numbers of the windows of length ``l`` give those of length ``l + 1``, and only
    places that share a window with a position in question are kept, which are soon few.

    Args:
        text: int32 ``[n]``, ids in ``0 .. vocab_size - 1``.

    Returns:
        int64 ``[n - first]``.
    """
    found = _single_tokens(text, first, vocab_size)
    places = _candidates(text, first, vocab_size)
    classes = text[places].astype(np.int64)
    for length in range(2, limit + 1):
        inside = places + length <= len(text)
        places, classes = places[inside], classes[inside]
        if not len(places):
            break
        keys = (classes << 32) | text[places + length - 1]
        # The first place of a key is the earliest, since places ascend.
        _, earliest, classes = np.unique(keys, return_index=True, return_inverse=True)
        known = (places >= first) & (places[earliest[classes]] < places)
        found[places[known] - first] = length
        wanted = np.zeros(len(earliest), np.bool_)
        wanted[classes[known]] = True
        kept = wanted[classes]
        places, classes = places[kept], classes[kept]
    return found


def _single_tokens(text: TokenArray, first: int, vocab_size: int) -> NDArray[np.int64]:
    """1 where the token stands anywhere earlier, else 0."""
    before = np.zeros(vocab_size, np.bool_)
    before[text[:first]] = True
    tail = text[first:]
    repeated = np.ones(len(tail), np.bool_)
    repeated[np.unique(tail, return_index=True)[1]] = False
    return (before[tail] | repeated).astype(np.int64)


def _candidates(text: TokenArray, first: int, vocab_size: int) -> NDArray[np.int64]:
    """Places whose token and next token both stand in the text from ``first`` on, and side by side there.

    Side by side up to collisions of a hash, which cost time and nothing else.
    """
    bits = 20
    mixed = text[:-1].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + text[1:].astype(np.uint64)
    hashes = (mixed * np.uint64(0xD1342543DE82EF95)) >> np.uint64(64 - bits)
    wanted = np.zeros(1 << bits, np.bool_)
    wanted[hashes[first:]] = True
    return np.flatnonzero(wanted[hashes])
