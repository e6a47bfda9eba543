"""The decoder layers of a model of vLLM, their two sublayers, and what stands for those that a plan leaves out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from specplug.adapters.common.torch_layers import ATTENTION_NAMES, MLP_NAMES
from specplug.errors import SkipPlanError
from specplug.layers.plan import Plan


class Parts(NamedTuple):
    """One decoder layer; a sublayer is None where it does not work as Llama's does."""

    block: Any
    attention: Any
    mlp: Any


def take_apart(blocks: Sequence[Any]) -> list[Parts]:
    """The sublayers of decoder layers, found by their usual names and by what they take."""
    return [
        Parts(
            block,
            _part(block, ATTENTION_NAMES, ("positions", "hidden_states")),
            _part(block, MLP_NAMES, ()),
        )
        for block in blocks
    ]


def check(plan: Plan, layers: Sequence[Parts]) -> None:
    """Refuse a plan that the layers cannot run.

    Raises:
        SkipPlanError: it is for another number of layers, or leaves out a part that could not be told apart.
    """
    if plan.layers != len(layers):
        raise SkipPlanError(f"the plan is for {plan.layers} layers, the model has {len(layers)}")
    flags = zip(layers, plan.attention, plan.mlp, strict=True)
    for number, (parts, attention, mlp) in enumerate(flags):
        alone = parts.attention if mlp else parts.mlp
        if attention != mlp and alone is None:
            what = "attention" if mlp else "MLP"
            raise SkipPlanError(
                f"the {what} of layer {number} ({type(parts.block).__name__}) cannot be left out alone, because it is "
                "not built as Llama's is; leave out whole layers"
            )


def stubs(plan: Plan, layers: Sequence[Parts]) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """What stands for the ``forward`` of each module that ``plan`` leaves out."""
    for parts, attention, mlp in zip(layers, plan.attention, plan.mlp, strict=True):
        if not attention and not mlp:
            # The layer hands on what it gets. Layer 0, which makes the first residual, always runs.
            yield parts.block, _pass_on
        elif not attention:
            yield parts.attention, _zeros
        elif not mlp:
            yield parts.mlp, _zeros


def _part(block: Any, names: Sequence[str], takes: Sequence[str]) -> Any:
    for name in names:
        found = getattr(block, name, None)
        if found is not None:
            known = inspect.signature(type(found).forward).parameters
            return found if all(parameter in known for parameter in takes) else None
    return None


def _pass_on(positions: Any, hidden_states: Any, residual: Any, *args: Any, **kwargs: Any) -> Any:
    return hidden_states, residual


def _zeros(*args: Any, **kwargs: Any) -> Any:
    """A sublayer that adds nothing; new memory, because the norm behind it may write where it reads."""
    given = [*args, *kwargs.values()]
    states = kwargs.get("hidden_states")
    if states is None:
        states = next(found for found in given if found.is_floating_point())
    return states.new_zeros(states.shape)
