"""Logarithm and exponential by polynomials; the rules stand in :mod:`specplug.reference.quick`.

A ranked token takes six logarithms. Without tables and branches, LLVM takes those of several tokens at once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specplug.kernels._jit import inlined_kernel

_LOG_2 = math.log(2.0)
_PER_OCTAVE = 1.0 / _LOG_2

#: Layout of a float64.
_FRACTION_BITS = 52
_FRACTION = (1 << _FRACTION_BITS) - 1
_BIAS = 1023
_ONE = _BIAS << _FRACTION_BITS
#: Bits of 2**52, to which small integers can be added as bits; and what is subtracted then.
_INTEGERS = (_BIAS + _FRACTION_BITS) << _FRACTION_BITS
_SHIFT = float(1 << _FRACTION_BITS)
#: Added to a number of less than 2**51, this leaves no fraction: the sum is rounded.
_ROUND = 1.5 * _SHIFT


@inlined_kernel
def floor_log2(value: Any) -> Any:
    """See the twin."""
    return (np.float64(value).view(np.int64) >> _FRACTION_BITS) - _BIAS


@inlined_kernel
def quick_log(x: Any) -> Any:
    """See the twin."""
    bits = np.float64(x).view(np.int64)
    # Converting integers is what not every processor does several at a time.
    octaves = np.int64((bits >> _FRACTION_BITS) | _INTEGERS).view(np.float64) - (_SHIFT + _BIAS)
    r = np.int64((bits & _FRACTION) | _ONE).view(np.float64) - 1.0
    q = r * r
    high = (-0.192627624647 + 0.0844223962482 * r) + q * -0.0179114409236
    low = (-0.497780162667 + 0.317148066839 * r) + q * high
    return octaves * _LOG_2 + (0.999895945711 * r + q * low)


@inlined_kernel
def quick_exp(x: Any) -> Any:
    """See the twin."""
    y = min(12.0, max(-60.0, x)) * _PER_OCTAVE
    rounded = y + _ROUND
    r = y - (rounded - _ROUND)
    q = r * r
    high = (0.240222346127 + 0.0555030838378 * r) + q * (0.00967187558975 + 0.00134072511546 * r)
    # A power of two, made of its bits.
    octaves = np.int64((np.float64(rounded).view(np.int64) + _BIAS) << _FRACTION_BITS).view(
        np.float64
    )
    return ((1.0 + 0.693147214903 * r) + q * high) * octaves
