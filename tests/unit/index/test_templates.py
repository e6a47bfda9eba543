"""Namespaces and templates: numbers that stay, and memory that does not grow."""

from __future__ import annotations

import numpy as np

from specplug.index.templates import PREFIX, Namespaces, Templates


def prompt(kind: int, tail: int = 0) -> np.ndarray:
    return np.array([kind] * PREFIX + [tail], np.int32)


def test_a_namespace_keeps_its_number() -> None:
    namespaces = Namespaces()
    assert [namespaces.number_of(name) for name in ("", "a", "", "b", "a")] == [0, 1, 0, 2, 1]


def test_a_forgotten_namespace_never_shares_the_number_of_another() -> None:
    """One cache salt per user must neither leak memory nor let two users meet."""
    namespaces = Namespaces(remembered=2)
    assert [namespaces.number_of(name) for name in ("a", "b", "a", "c")] == [0, 1, 0, 2]
    assert namespaces.number_of("b") == 3  # the least recently used one was forgotten
    assert len({namespaces.number_of(str(n)) for n in range(1000)}) == 1000
    assert len(namespaces._numbers) == 2


def test_a_beginning_gets_its_own_model_at_its_second_request() -> None:
    templates = Templates(3)
    assert templates.model_of(0, prompt(7, 1)) == (0, False)
    assert templates.model_of(0, prompt(7, 2)) == (1, True)
    assert templates.model_of(0, prompt(7, 3)) == (1, False)
    assert templates.model_of(1, prompt(7, 4)) == (0, False)  # another namespace


def test_the_model_used_longest_ago_is_taken_over() -> None:
    templates = Templates(3)
    for kind in (1, 1, 2, 2, 1):
        templates.model_of(0, prompt(kind))
    templates.model_of(0, prompt(3))
    assert templates.model_of(0, prompt(3)) == (2, True)
    assert templates.model_of(0, prompt(1)) == (1, False)


def test_a_short_prompt_has_no_template() -> None:
    templates = Templates(3)
    for _ in range(3):
        assert templates.model_of(0, prompt(1)[: PREFIX - 1]) == (0, False)
