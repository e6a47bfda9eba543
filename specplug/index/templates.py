"""Which of the learned models serves a prompt: beginnings that recur get one of their own.

Requests of one client or one prompt template begin alike (system prompt, instructions). How far matches can be trusted
differs more between such kinds of traffic than within one; all traffic in one model costs 2 % of the speedup.
"""

from __future__ import annotations

from collections import OrderedDict

from specplug.types import TokenArray

#: Tokens at the beginning of a prompt that make its template.
PREFIX = 16
#: Beginnings seen once that are remembered.
REMEMBERED = 4096

Key = tuple[int, bytes]


class Templates:
    """Assigns models 1, 2, ... to recurring beginnings, the least recently used one first; 0 serves all others.

    A beginning is recognised at its second request. Deterministic: a function of the sequence of prompts.
    """

    def __init__(self, models: int) -> None:
        self._models = models
        self._own: OrderedDict[Key, int] = OrderedDict()
        self._seen: OrderedDict[Key, None] = OrderedDict()

    def model_of(self, namespace: int, prompt: TokenArray) -> tuple[int, bool]:
        """The model of a prompt, and whether it was just taken over and must be set up."""
        if len(prompt) < PREFIX:
            return 0, False
        key = (namespace, prompt[:PREFIX].tobytes())
        if key in self._own:
            self._own.move_to_end(key)
            return self._own[key], False
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
            return 0, False
        del self._seen[key]
        model = len(self._own) + 1
        if model == self._models:
            _, model = self._own.popitem(last=False)
        self._own[key] = model
        return model, True
