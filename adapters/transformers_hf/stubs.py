"""What stands for layers and sublayers of transformers that a plan leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def states_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The states that a layer or a sublayer is given."""
    return args[0] if args else kwargs["hidden_states"]


def passing(outputs: int) -> Callable[..., Any]:
    """In place of a layer: gives its states, as a tuple of so many things where layers give one."""

    def stub(*args: Any, **kwargs: Any) -> Any:
        states = states_of(args, kwargs)
        return (states, *[None] * outputs)[:outputs] if outputs else states

    return stub


def no_attention(*args: Any, **kwargs: Any) -> Any:
    """In place of an attention: adds nothing."""
    return nothing(states_of(args, kwargs)), None


def nothing(*args: Any, **kwargs: Any) -> Any:
    """In place of an MLP: adds nothing; new memory, since some models add to what a sublayer gives where it stands."""
    states = args[0] if args else next(iter(kwargs.values()))
    return states.new_zeros(states.shape)
