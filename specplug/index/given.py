"""What callers hand over, in the form that compiled code takes: it looks at addresses only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.errors import InvalidRequestError
from specplug.kernels.forms import as_kernel_array
from specplug.types import DraftBuffers, TokenArray


def as_tokens(tokens: TokenArray, what: str) -> TokenArray:
    """``tokens`` as the compiled code takes them: it looks at the address only, and another number of axes is memory
    that is not its own."""
    array = as_kernel_array(tokens, np.int32)
    if array.ndim != 1:
        raise InvalidRequestError(
            f"{what} must be token ids along one axis, got an array of shape {array.shape}; hand over one row"
        )
    return array


def wrong_offsets(rows: int, most: int, offsets: NDArray[np.int64]) -> InvalidRequestError:
    """What is said of offsets that do not part ``most`` tokens among ``rows`` rows."""
    return InvalidRequestError(
        f"Observed.offsets must hold {rows + 1} ascending numbers from 0 to at most {most}, "
        f"got {offsets.tolist()}"
    )


def check_buffers(out: DraftBuffers, rows: int) -> None:
    """Refuse buffers that compiled code cannot write ``rows`` drafts into, each as wide as ``out.tokens``."""
    width = out.tokens.shape[-1] if out.tokens.ndim else 0
    given: list[tuple[str, NDArray[Any] | None, int, type[np.generic]]] = [
        ("tokens", out.tokens, 2, np.int32),
        ("survival", out.survival, 2, np.float64),
        ("lengths", out.lengths, 1, np.int32),
        ("parents", out.parents, 2, np.int32),
    ]
    for name, array, axes, dtype in given:
        if array is None:
            continue
        fits = array.ndim == axes and len(array) >= rows and array.flags.carray
        fits = fits and (axes == 1 or array.shape[1] >= width)
        if array.dtype != dtype or not fits:
            raise InvalidRequestError(
                f"draft buffer {name!r} must be a contiguous, writable {np.dtype(dtype).name} array of at least {rows} "
                f"rows and {axes} axes{f', {width} columns' if axes == 2 else ''}, got {array.dtype} {array.shape}; "
                "specplug.types.allocate_drafts makes such buffers"
            )
