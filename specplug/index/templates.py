"""Which namespace and which of the learned models a prompt belongs to: beginnings that recur get one of their own.

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


class Namespaces:
    """Numbers the namespaces; a number is never used for another name.

    With one namespace per user their number is not bounded, so the one used longest ago is forgotten in the end: what
    its requests had stored can then no longer be found. The one named ``kept`` is never forgotten.
    """

    def __init__(self, remembered: int = 1 << 16, kept: str | None = None) -> None:
        self._remembered = remembered
        self._kept = kept
        self._numbers: OrderedDict[str, int] = OrderedDict()
        self._names: dict[int, str] = {}
        self._next = 0

    def number_of(self, name: str) -> int:
        """The number of a namespace, a new one if it is not known."""
        if name in self._numbers:
            self._numbers.move_to_end(name)
            return self._numbers[name]
        self._numbers[name] = number = self._next
        self._names[number] = name
        self._next += 1
        if len(self._numbers) > self._remembered:
            if next(iter(self._numbers)) == self._kept:
                self._numbers.move_to_end(self._kept)
            _, forgotten = self._numbers.popitem(last=False)
            del self._names[forgotten]
        return number

    def name_of(self, number: int) -> str | None:
        """The name of a number; None once it is forgotten. May be called from another thread."""
        return self._names.get(number)


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
