"""Passes what a look-up for Python works with to compiled code as one address instead of five arrays.

Handing an array over costs some 40 nanoseconds here, one read-only array among them more: a tenth of a look-up. As in
:mod:`specplug.kernels.handle`, the address is that of a table; the caller keeps table and arrays alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array
from numba.np.numpy_support import from_dtype

from specplug.kernels._jit import COMPILED
from specplug.kernels.datastore_layout import (
    MAX_DEPTH,
    MAX_FOUND,
    META_FIELDS,
    LongArray,
    Shelf,
)


class Desk:
    """A store, and room to look something up in it: for one thread.

    Args:
        shelf: of the store.

    Attributes:
        found: int64 ``[MAX_FOUND, 2]``, where it writes what it finds.
        handle: what :func:`specplug.kernels.lookup.find_for` takes. Interpreted kernels take the arrays themselves.
    """

    def __init__(self, shelf: Shelf) -> None:
        self.found: LongArray = np.zeros((MAX_FOUND, 2), np.int64)
        self._arrays = (
            *(shelf.words, shelf.meta),
            *(np.zeros((1, MAX_DEPTH), np.int32), np.zeros(MAX_DEPTH, np.uint64), self.found),
        )
        if len(shelf.meta) != META_FIELDS or not all(a.flags.c_contiguous for a in self._arrays):
            raise ValueError(
                f"shelf: expected contiguous arrays and {META_FIELDS} numbers about the store, got {len(shelf.meta)}"
            )
        places = [(a.__array_interface__["data"][0], a.shape[-1]) for a in self._arrays]
        self._table: LongArray = np.array(places, np.int64)
        self.handle: Any = self._table.ctypes.data if COMPILED else self._arrays


#: Kind of each array, its rows (0: it has one axis), and whether it is read-only.
_FORMS: tuple[tuple[Any, int, bool], ...] = (
    *((np.uint64, 0, True), (np.int64, 0, False)),
    *((np.int32, 1, False), (np.uint64, 0, False), (np.int64, MAX_FOUND, False)),
)


def _unpack_address(typing_context: Any, address: Any) -> Any:
    arrays = [
        types.Array(from_dtype(np.dtype(kind)), 2 if rows else 1, "C", readonly=readonly)
        for kind, rows, readonly in _FORMS
    ]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = context.get_value_type(types.int64)
        table = builder.inttoptr(arguments[0], word.as_pointer())
        found = []
        for row, kind in enumerate(arrays):
            array = context.make_array(kind)(context, builder)
            place, size = (
                builder.load(builder.gep(table, [word(2 * row + column)])) for column in range(2)
            )
            itemsize = np.dtype(_FORMS[row][0]).itemsize
            fill: Any = populate_array
            fill(
                array,
                data=builder.inttoptr(place, array.data.type),
                shape=[size] if kind.ndim == 1 else [word(_FORMS[row][1]), size],
                strides=[word(itemsize)]
                if kind.ndim == 1
                else [builder.mul(size, word(itemsize)), word(itemsize)],
                itemsize=word(itemsize),
                meminfo=None,
            )
            found.append(array._getvalue())
        return context.make_tuple(builder, signature.return_type, found)

    together: Any = types.Tuple
    return together(arrays)(types.int64), generate


def _unpack_nothing(handle: Any) -> Any:
    return handle


_compiled_unpack: Any = intrinsic(_unpack_address)

#: The arrays of a desk, within a kernel: words and meta of the store, the context, the question, and
#: what is found.
unpack_desk: Any = _compiled_unpack if COMPILED else _unpack_nothing
