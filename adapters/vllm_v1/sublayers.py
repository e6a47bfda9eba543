"""The decoder layers of a model of vLLM, their two sublayers, and what stands for those that a plan leaves out.

Families differ in what their layers take and give: a state, or a state and a residual that is added to it later;
arguments by place or by name; rows with or without a batch in front. Nothing of that is assumed. One token runs through
the model and is watched (:mod:`specplug.adapters.vllm_v1.looking`), and what was seen is a :class:`Call`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from specplug.errors import SkipPlanError
from specplug.layers.plan import Plan

#: Of an argument: its number, or its name.
Place = int | str


class Call(NamedTuple):
    """How the model calls its layers, and what they give.

    Attributes:
        hidden: where the state stands among a layer's arguments.
        residual: where what is still to be added to it stands, or None where states are whole.
        outputs: how many things a layer gives, the state first and then the residual; 0 for a state alone.
    """

    hidden: Place
    residual: Place | None
    outputs: int

    def state(self, output: Any) -> Any:
        """The whole state that a layer gives, ``[n, d]``."""
        first = output[0] if self.outputs else output
        whole = first if self.residual is None else first + output[1]
        return whole.reshape(-1, whole.shape[-1])

    def entering(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The whole state that a layer is given, ``[n, d]``."""
        whole = argument(args, kwargs, self.hidden)
        residual = None if self.residual is None else argument(args, kwargs, self.residual)
        whole = whole if residual is None else whole + residual
        return whole.reshape(-1, whole.shape[-1])

    def with_state(
        self, args: Sequence[Any], kwargs: dict[str, Any], state: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """The same arguments with another whole state ``[n, d]``."""
        given, named = list(args), dict(kwargs)
        values = {self.hidden: state.reshape(argument(args, kwargs, self.hidden).shape)}
        if self.residual is not None:
            values[self.residual] = None
        for place, value in values.items():
            if isinstance(place, int):
                given[place] = value
            else:
                named[place] = value
        return given, named

    def hand_on(self, *args: Any, **kwargs: Any) -> Any:
        """In place of a layer: give what was given."""
        hidden = argument(args, kwargs, self.hidden)
        if self.outputs == 0:
            return hidden
        residual = None if self.residual is None else argument(args, kwargs, self.residual)
        return (hidden, residual, *[None] * self.outputs)[: self.outputs]


class Parts(NamedTuple):
    """One decoder layer; a sublayer is None where leaving it out does not mean that nothing is added.

    Attributes:
        block: the layer.
        attention: a sublayer.
        mlp: the other one.
        call: how the layer is called.
        more: how many things the attention and the MLP give behind their first.
    """

    block: Any
    attention: Any
    mlp: Any
    call: Call
    more: tuple[int, int] = (0, 0)


def argument(args: Sequence[Any], kwargs: dict[str, Any], place: Place) -> Any:
    """The argument at a place."""
    return args[place] if isinstance(place, int) else kwargs[place]


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
            # Layer 0, which makes the first residual, always runs.
            yield parts.block, parts.call.hand_on
            continue
        if not attention:
            yield parts.attention, silent(parts.more[0])
        if not mlp:
            yield parts.mlp, silent(parts.more[1])


def silent(more: int) -> Callable[..., Any]:
    """A sublayer that adds nothing, and gives ``more`` other things."""
    if not more:
        return _zeros

    def stub(*args: Any, **kwargs: Any) -> Any:
        return (_zeros(*args, **kwargs), *[None] * more)

    return stub


def _zeros(*args: Any, **kwargs: Any) -> Any:
    """A sublayer that adds nothing; new memory, because the norm behind it may write where it reads."""
    given = [*args, *kwargs.values()]
    states = kwargs.get("hidden_states")
    if states is None:
        states = next(
            found
            for found in given
            if hasattr(found, "is_floating_point") and found.is_floating_point()
        )
    return states.new_zeros(states.shape)
