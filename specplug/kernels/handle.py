"""Passes the state of the suffix drafter to a kernel as one small array instead of some thirty.

Handing an array to compiled code costs about 0.2 microseconds, so that the arrays themselves would cost more than an
average draft. A handle holds, per array, its address and shape; the caller keeps the arrays alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from specplug.kernels._jit import COMPILED, kernel
from specplug.kernels.layout import Log, LongArray, Model, Scratch, Slots, State, Store

_WIDTH = 5  # address and up to four dimensions


def _pack(state: State) -> LongArray:
    rows = []
    for group in state:
        for array in group:
            if not array.flags.c_contiguous or array.ndim >= _WIDTH:
                raise ValueError(
                    f"a state array must be C-contiguous with at most 4 axes, got {array.shape}"
                )
            shape = [*array.shape, *[0] * (_WIDTH - 1 - array.ndim)]
            rows.append([array.ctypes.data, *shape])
    return np.array(rows, np.int64)


def _pointer_of(typing_context: Any, address: Any) -> Any:
    """An address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


_pointer: Any = intrinsic(_pointer_of)


@kernel
def _one(handle: LongArray, row: int, dtype: Any) -> Any:
    return carray(_pointer(handle[row, 0]), (handle[row, 1],), dtype)


@kernel
def _two(handle: LongArray, row: int, dtype: Any) -> Any:
    return carray(_pointer(handle[row, 0]), (handle[row, 1], handle[row, 2]), dtype)


@kernel
def _three(handle: LongArray, row: int, dtype: Any) -> Any:
    shape = (handle[row, 1], handle[row, 2], handle[row, 3])
    return carray(_pointer(handle[row, 0]), shape, dtype)


@kernel
def _four(handle: LongArray, row: int, dtype: Any) -> Any:
    shape = (handle[row, 1], handle[row, 2], handle[row, 3], handle[row, 4])
    return carray(_pointer(handle[row, 0]), shape, dtype)


@kernel
def _unpack(handle: LongArray) -> State:
    slots = Slots(
        _one(handle, 0, np.int32),
        _two(handle, 1, np.int32),
        _three(handle, 2, np.int32),
        _two(handle, 3, np.int32),
        _two(handle, 4, np.int64),
        _one(handle, 5, np.int32),
        _one(handle, 6, np.int64),
    )
    store = Store(
        _one(handle, 7, np.int32),
        _two(handle, 8, np.uint32),
        _two(handle, 9, np.uint32),
        _one(handle, 10, np.int32),
        _one(handle, 11, np.int64),
    )
    model = Model(
        _three(handle, 12, np.float64),
        _four(handle, 13, np.float64),
        _two(handle, 14, np.float64),
        _two(handle, 15, np.float64),
        _three(handle, 16, np.float64),
        _four(handle, 17, np.float64),
        _two(handle, 18, np.float64),
    )
    log = Log(
        _three(handle, 19, np.int64),
        _three(handle, 20, np.int64),
        _three(handle, 21, np.float64),
        _two(handle, 22, np.float64),
        _three(handle, 23, np.int64),
    )
    scratch = Scratch(
        _one(handle, 24, np.int32),
        _one(handle, 25, np.int32),
        _two(handle, 26, np.int64),
        _two(handle, 27, np.float64),
        _one(handle, 28, np.int64),
    )
    return State(slots, store, model, log, scratch)


def _pack_nothing(state: State) -> State:
    return state


#: The handle of a state, and its state again. Interpreted kernels pass the state itself.
pack: Any = _pack if COMPILED else _pack_nothing
unpack: Any = _unpack if COMPILED else _pack_nothing
