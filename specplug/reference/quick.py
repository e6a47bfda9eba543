"""Slow twin of :mod:`specplug.kernels.quick`: the rules of its logarithm and its exponential.

Error below 1e-7 of the logarithm, absolute, and 1e-10 of the exponential, relative. Unlike those of the system's
library, which differ in the last bits from one to the next, they consist of additions, multiplications and look-ups.
"""

from __future__ import annotations

import math

#: Parts of an octave in the tables.
PARTS = 128
LOG_2 = math.log(2.0)
STEPS = 64
PER_STEP = STEPS / LOG_2
STEP = LOG_2 / STEPS


def floor_log2(value: int) -> int:
    """Floor of the binary logarithm of an integer from 1 to 2**52."""
    return value.bit_length() - 1


def quick_log(x: float) -> float:
    """Logarithm of a positive, normal number."""
    half, exponent = math.frexp(x)
    mantissa = 2.0 * half
    middle = 1.0 + (int((mantissa - 1.0) * PARTS) + 0.5) / PARTS
    rest = mantissa * (1.0 / middle) - 1.0
    return (exponent - 1) * LOG_2 + math.log(middle) + (rest - 0.5 * rest * rest)


def quick_exp(x: float) -> float:
    """Exponential of a number from -60 to 12; what lies outside is moved to the nearest of these."""
    x = min(12.0, max(-60.0, x))
    steps = math.floor(x * PER_STEP + 0.5)
    rest = x - steps * STEP
    grown = 1.0 + rest * (1.0 + rest * (0.5 + rest * (1.0 / 6.0)))
    octaves, part = divmod(steps, STEPS)
    return math.ldexp(2.0 ** (part / STEPS) * grown, octaves)
