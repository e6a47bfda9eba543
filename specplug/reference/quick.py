"""Slow twin of :mod:`specplug.kernels.quick`: the rules of its logarithm and its exponential.

Error below 2e-6 of the logarithm, absolute, and 1.5e-7 of the exponential, relative. Unlike those of the system's
library, which differ in the last bits from one to the next, they consist of additions and multiplications: a polynomial
within an octave (least greatest error; that of the logarithm is exact at both ends), and the number of octaves.
"""

from __future__ import annotations

import math

LOG_2 = math.log(2.0)
PER_OCTAVE = 1.0 / LOG_2


def floor_log2(value: int) -> int:
    """Floor of the binary logarithm of an integer from 1 to 2**52."""
    return value.bit_length() - 1


def quick_log(x: float) -> float:
    """Logarithm of a positive, normal number."""
    half, exponent = math.frexp(x)
    r = 2.0 * half - 1.0
    q = r * r
    high = (-0.192627624647 + 0.0844223962482 * r) + q * -0.0179114409236
    low = (-0.497780162667 + 0.317148066839 * r) + q * high
    return (exponent - 1) * LOG_2 + (0.999895945711 * r + q * low)


def quick_exp(x: float) -> float:
    """Exponential of a number from -60 to 12; what lies outside is moved to the nearest of these."""
    y = min(12.0, max(-60.0, x)) * PER_OCTAVE
    octaves = round(y)
    r = y - octaves
    q = r * r
    high = (0.240222346127 + 0.0555030838378 * r) + q * (0.00967187558975 + 0.00134072511546 * r)
    return math.ldexp((1.0 + 0.693147214903 * r) + q * high, octaves)
