"""The form of arrays that kernels are compiled for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def as_kernel_array(values: ArrayLike, dtype: type[np.generic]) -> NDArray[Any]:
    """``values`` in the one form that the kernels are compiled for: contiguous, aligned, writable.

    Any other form would be compiled anew, in the middle of a request.
    """
    array = np.ascontiguousarray(values, dtype)
    return array if array.flags.carray else array.copy()
