"""Slow twin of :mod:`specplug.index.templates`: all prompts so far, looked through from the beginning every time."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from specplug.reference.suffix_state import N_MODELS, SuffixState

PREFIX = 16
REMEMBERED = 4096

Key = tuple[int, tuple[int, ...]]


@dataclass
class Templates:
    """``own`` and ``seen`` are lists of (beginning, model), least recently used first."""

    own: list[tuple[Key, int]] = field(default_factory=list)
    seen: list[Key] = field(default_factory=list)

    def model_of(self, namespace: int, prompt: Sequence[int]) -> tuple[int, bool]:
        """The model of a prompt, and whether it was just taken over and must be set up."""
        key = (namespace, tuple(prompt[:PREFIX]))
        if len(prompt) < PREFIX:
            return 0, False
        for entry in self.own:
            if entry[0] == key:
                self.own.remove(entry)
                self.own.append(entry)
                return entry[1], False
        if key not in self.seen:
            self.seen = [*self.seen, key][-REMEMBERED:]
            return 0, False
        self.seen.remove(key)
        model = len(self.own) + 1
        if model == N_MODELS:
            model = self.own.pop(0)[1]
        self.own.append((key, model))
        return model, True


def copy_model(state: SuffixState, number: int) -> None:
    """Let model ``number`` start from what model 0 has learned."""
    state.models[number] = copy.deepcopy(state.models[0])
