"""How layers are called is seen, not assumed: what a model gives to the next layer is what the one before gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specplug.adapters.vllm_v1.looking import Seen, call_of
from specplug.adapters.vllm_v1.sublayers import Call
from specplug.errors import SkipPlanError


def run(layer: Callable[..., Any], layers: int, between: Callable[..., Any]) -> list[Seen]:
    """Calls of so many layers; ``between`` makes arguments of an output, and of the states at first."""
    seen: list[Seen] = []
    output: Any = None
    for _ in range(layers):
        args, kwargs = between(output)
        output = layer(*args, **kwargs)
        seen.append(Seen(tuple(args), kwargs, output, []))
    return seen


def new() -> Any:
    return np.ones((2, 3))


def llama(output: Any) -> Any:
    return ([0, *(output or (new(), None))], {})


def named(output: Any) -> Any:
    return ([0], {"hidden_states": new() if output is None else output})


def ignored(output: Any) -> Any:
    return ([0, new() if output is None else output[0]], {})


@pytest.mark.parametrize(
    ("layer", "between", "call"),
    [
        (lambda where, states, residual: (new(), new()), llama, Call(1, 2, 2)),
        (lambda where, hidden_states: new(), named, Call("hidden_states", None, 0)),
        (lambda where, states: (new(), new()), ignored, Call(1, None, 2)),
        (lambda where, states: (new(), None), ignored, Call(1, None, 2)),
        (lambda where, states: (new(),), ignored, Call(1, None, 1)),
    ],
    ids=["residual", "alone, by name", "second is not used", "second is None", "tuple of one"],
)
def test_a_layer_that_is_left_out_gives_what_it_was_given(
    layer: Any, between: Any, call: Call
) -> None:
    seen = run(layer, 3, between)
    assert call_of(seen) == call
    args, kwargs, output, _ = seen[1]
    given = call.hand_on(*args, **kwargs)
    assert isinstance(given, tuple) == isinstance(output, tuple)
    states = given[0] if call.outputs else given
    assert states is (seen[0].output[0] if call.outputs else seen[0].output)
    if call.residual is not None:
        assert given[1] is seen[0].output[1]
    if call.outputs:
        assert len(given) == len(output)


def test_states_are_whole_and_can_be_exchanged() -> None:
    call = Call(1, 2, 2)
    args = (0, np.full((1, 2, 3), 2.0), np.full((1, 2, 3), 3.0))
    assert call.entering(args, {}).tolist() == np.full((2, 3), 5.0).tolist()
    assert call.state((args[1], args[2])).shape == (2, 3)
    given, named_ = call.with_state(args, {}, np.zeros((2, 3)))
    assert given[1].shape == (1, 2, 3)
    assert given[2] is None
    assert named_ == {}
    assert args[1].max() == 2.0


def test_layers_that_are_given_something_else_are_refused() -> None:
    with pytest.raises(SkipPlanError, match="something else than the layer before gave"):
        call_of(run(lambda where, states: new(), 3, lambda output: ([0, new()], {})))
    with pytest.raises(SkipPlanError, match="of its 1 layers, not two or more"):
        call_of(run(lambda where, states: new(), 1, lambda output: ([0, new()], {})))
