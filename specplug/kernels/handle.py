"""Passes the state of the suffix drafter to kernels as one address instead of some thirty arrays.

Handing an array to compiled code costs about 0.2 microseconds, and handing all of them from one compiled function to
the next writes and reads 2 kB. A handle is the address of a table that holds, per array, its address and shape; in
compiled code ``state.slots.tokens`` becomes an array where it is mentioned. The caller keeps table and arrays alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
)
from numba.np.arrayobj import populate_array
from numba.np.numpy_support import from_dtype
from numpy.typing import NDArray

from specplug.kernels._jit import COMPILED
from specplug.kernels.layout import FORMS, GROUPS, LongArray, Scratch, State

_MOST_AXES = 4
_WIDTH = 1 + _MOST_AXES  # address and shape

#: Row of each array in the table.
_ROWS = {
    key: row
    for row, key in enumerate((group, name) for group, names in FORMS.items() for name in names)
}


class Packed:
    """The table of a state, and the arrays that it points to; one table for each thread that may draft.

    Args:
        state: the state, with the scratch of the first thread.
        scratches: of further threads.

    Attributes:
        handles: what kernels take, one per thread. Interpreted kernels take the state itself.
        handle: the first one.
    """

    def __init__(self, state: State, scratches: Sequence[Scratch] = ()) -> None:
        self._state: State | None = state
        self._scratches = [state.scratch, *scratches]
        self._arrays: dict[tuple[str, str], NDArray[Any]] = {}
        threads = len(self._scratches)
        self._tables: LongArray = np.zeros((threads, len(_ROWS), _WIDTH), np.int64)
        self.handles: list[Any] = [table.ctypes.data for table in self._tables]
        for group, name in _ROWS:
            self.bind(group, name, getattr(getattr(state, group), name))
        for table, scratch in zip(self._tables, self._scratches, strict=True):
            for name in FORMS["scratch"]:
                table[_ROWS["scratch", name], 0] = getattr(scratch, name).ctypes.data
        self.handle: Any = self.handles[0]

    @property
    def state(self) -> State:
        """The arrays."""
        if self._state is None:
            self._state = State(
                *(
                    kind(**{name: self._arrays[group, name] for name in FORMS[group]})
                    for group, kind in GROUPS.items()
                )
            )
        return self._state

    def bind(self, group: str, name: str, array: NDArray[Any]) -> None:
        """Put another array in the place of ``state.group.name``."""
        dtype, axes = FORMS[group][name]
        if array.dtype != dtype or array.ndim != axes or not array.flags.carray:
            raise ValueError(
                f"state array {group}.{name} must be a contiguous, writable {np.dtype(dtype).name} array with "
                f"{axes} axes, got {array.dtype} {array.shape}"
            )
        self._arrays[group, name] = array
        place = _ROWS[group, name]
        self._tables[:, place, 0] = array.__array_interface__["data"][0]
        self._tables[:, place, 1 : 1 + axes] = array.shape
        if len(self._arrays) == len(
            _ROWS
        ):  # the last one of a new state, or one that replaces another
            self._state = None
            if not COMPILED:
                self.handles = [self.state._replace(scratch=s) for s in self._scratches]
                self.handle = self.handles[0]


class StateType(types.Type):
    """A state within compiled code: a pointer to its table."""

    def __init__(self) -> None:
        super().__init__("specplug.State")


class GroupType(types.Type):
    """One group of arrays of a state, the same pointer."""

    def __init__(self, group: str) -> None:
        self.group = group
        super().__init__(f"specplug.State.{group}")


def _type_of_group(template: Any, owner: Any, attribute: str) -> Any:
    return GroupType(attribute) if attribute in FORMS else None


def _type_of_array(template: Any, owner: Any, attribute: str) -> Any:
    form = FORMS[owner.group].get(attribute)
    return types.Array(from_dtype(np.dtype(form[0])), form[1], "C") if form else None


class _StateAttributes(AttributeTemplate):
    key = StateType
    generic_resolve: Any = _type_of_group


class _GroupAttributes(AttributeTemplate):
    key = GroupType
    generic_resolve: Any = _type_of_array


def _group_of(context: Any, builder: Any, owner: Any, value: Any, attribute: str) -> Any:
    return value


def _array_of(context: Any, builder: Any, owner: Any, value: Any, attribute: str) -> Any:
    """The array as a structure in registers, loaded from the table."""
    dtype, axes = FORMS[owner.group][attribute]
    array_type = types.Array(from_dtype(np.dtype(dtype)), axes, "C")
    array = context.make_array(array_type)(context, builder)
    word = context.get_value_type(types.int64)
    table = builder.bitcast(value, word.as_pointer())
    row = _ROWS[owner.group, attribute] * _WIDTH

    def load(column: int) -> Any:
        loaded = builder.load(builder.gep(table, [word(row + column)]))
        # The table does not change while a kernel runs, whatever else is written.
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    shape = [load(1 + axis) for axis in range(axes)]
    strides = [word(np.dtype(dtype).itemsize)]
    for size in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], size))
    fill: Any = populate_array
    fill(
        array,
        data=builder.inttoptr(load(0), array.data.type),
        shape=shape,
        strides=strides,
        itemsize=word(np.dtype(dtype).itemsize),
        meminfo=None,
    )
    return array._getvalue()


def _unpack_pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    make: Any = StateType
    state = make()
    return state(types.int64), generate


def _register() -> None:
    for kind in (StateType, GroupType):
        decorate: Any = register_model(kind)
        decorate(models.OpaqueModel)
    typed: Any = infer_getattr
    typed(_StateAttributes)
    typed(_GroupAttributes)
    for kind, lower in ((StateType, _group_of), (GroupType, _array_of)):
        lowered: Any = lower_getattr_generic
        lowered(kind)(lower)


def _unpack_nothing(state: State) -> State:
    return state


_register()
_compiled_unpack: Any = intrinsic(_unpack_pointer)

#: The state of a handle, within a kernel.
unpack: Any = _compiled_unpack if COMPILED else _unpack_nothing
