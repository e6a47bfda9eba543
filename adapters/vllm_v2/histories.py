"""All tokens of the running requests, kept on the host.

V2 keeps them on the device. Only what a step added is copied from there; the rest is known from the scheduler, which
sends all tokens of a request that arrives or comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from specplug.types import TOKEN_DTYPE, IntArray, TokenArray


class Histories:
    """Token histories by request id.

    Attributes:
        reread: how often a history did not fit what the device said and was read anew.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, TokenArray] = {}
        self._lengths: dict[str, int] = {}
        self.reread = 0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def begin(self, request_id: str, tokens: Sequence[int] | TokenArray) -> None:
        """A request has these tokens, whatever was known of it before."""
        kept = np.empty(len(tokens) + 256, TOKEN_DTYPE)
        kept[: len(tokens)] = tokens
        self._tokens[request_id], self._lengths[request_id] = kept, len(tokens)

    def end(self, request_id: str) -> None:
        """Forget a request; unknown ones too."""
        self._tokens.pop(request_id, None)
        self._lengths.pop(request_id, None)

    def clear(self) -> None:
        """Forget all."""
        self._tokens.clear()
        self._lengths.clear()

    def follow(
        self,
        request_id: str,
        length: int,
        sampled: int,
        tail: IntArray,
        read: Callable[[], TokenArray],
    ) -> TokenArray:
        """A request after a step: a view of all its tokens, int32 ``[length]``, valid until it grows again.

        Args:
            request_id: any; an unknown one is read.
            length: all tokens that it has.
            sampled: how many of them the step made certain.
            tail: its last tokens, int32 ``[w]`` with ``w >= sampled``.
            read: gives all ``length`` tokens; slow, and called only if what is known does not fit.
        """
        known = self._lengths.get(request_id, -1)
        if known + sampled != length or sampled > len(tail):
            self.reread += request_id in self
            self.begin(request_id, read())
            return self._tokens[request_id][:length]
        kept = self._tokens[request_id]
        if length > len(kept):
            grown = np.empty(2 * length, TOKEN_DTYPE)
            grown[:known] = kept[:known]
            kept = self._tokens[request_id] = grown
        if sampled:
            kept[known:length] = tail[len(tail) - sampled :]
        self._lengths[request_id] = length
        return kept[:length]
