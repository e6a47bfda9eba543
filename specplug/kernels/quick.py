"""Logarithm and exponential by table; the rules stand in :mod:`specplug.reference.quick`.

A ranked token takes six logarithms; those of the system's library were a third of the drafter's time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from specplug.kernels._jit import inlined_kernel

_PARTS = 128
_PART_BITS = 7
_LOG_2 = math.log(2.0)
_STEPS = 64
_STEP_BITS = 6
_PER_STEP = _STEPS / _LOG_2
_STEP = _LOG_2 / _STEPS

#: Layout of a float64.
_FRACTION_BITS = 52
_FRACTION = (1 << _FRACTION_BITS) - 1
_BIAS = 1023
_ONE = _BIAS << _FRACTION_BITS

_MIDDLES = [1.0 + (part + 0.5) / _PARTS for part in range(_PARTS)]
#: For each part of an octave, one over its middle and the logarithm of that.
_LOGS = np.array([(1.0 / middle, math.log(middle)) for middle in _MIDDLES])
_POWERS = np.array([2.0 ** (part / _STEPS) for part in range(_STEPS)])


@inlined_kernel
def floor_log2(value: Any) -> Any:
    """See the twin."""
    return (np.float64(value).view(np.int64) >> _FRACTION_BITS) - _BIAS


@inlined_kernel
def quick_log(x: Any) -> Any:
    """See the twin."""
    bits = np.float64(x).view(np.int64)
    part = (bits >> (_FRACTION_BITS - _PART_BITS)) & (_PARTS - 1)
    mantissa = np.int64((bits & _FRACTION) | _ONE).view(np.float64)
    rest = mantissa * _LOGS[part, 0] - 1.0
    exponent = np.float64((bits >> _FRACTION_BITS) - _BIAS)
    return exponent * _LOG_2 + _LOGS[part, 1] + (rest - 0.5 * rest * rest)


@inlined_kernel
def quick_exp(x: Any) -> Any:
    """See the twin."""
    x = min(12.0, max(-60.0, x))
    steps = np.int64(math.floor(x * _PER_STEP + 0.5))
    rest = x - steps * _STEP
    grown = 1.0 + rest * (1.0 + rest * (0.5 + rest * (1.0 / 6.0)))
    # A power of two, made of its bits.
    octaves = np.int64(((steps >> _STEP_BITS) + _BIAS) << _FRACTION_BITS).view(np.float64)
    return _POWERS[steps & (_STEPS - 1)] * grown * octaves
