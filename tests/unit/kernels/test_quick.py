"""Logarithm and exponential by polynomials: equal to their twins, bit for bit, and close to the true ones."""

from __future__ import annotations

import importlib.util
import math
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specplug.kernels import lanes
from specplug.kernels._jit import kernel
from specplug.kernels.lanes import LANES, agreement, place_of
from specplug.kernels.quick import floor_log2, quick_exp, quick_log
from specplug.reference import quick as ref


@kernel
def _all(x: float, z: float, n: int) -> tuple[float, float, int]:
    return quick_log(x), quick_exp(z), floor_log2(n)


@given(x=st.floats(1e-12, 1e12), z=st.floats(-100.0, 100.0), n=st.integers(1, 2**52))
@example(x=1.0, z=0.0, n=1)
@example(x=math.nextafter(2.0, 0.0), z=-60.0, n=2**52)
@example(x=1.0, z=0.3466, n=1)
@example(x=0.5, z=12.0, n=2**52 - 1)
def test_they_equal_their_twins_and_nearly_the_true_ones(x: float, z: float, n: int) -> None:
    found = _all(x, z, n)
    assert found == (ref.quick_log(x), ref.quick_exp(z), ref.floor_log2(n))
    assert found[0] == pytest.approx(math.log(x), abs=2e-6)
    assert found[1] == pytest.approx(math.exp(min(12.0, max(-60.0, z))), rel=1.5e-7)


@kernel
def _agreement(text: object, here: int, context: object, there: int) -> int:
    found: int = agreement(text, here, context, there)
    return found


@given(
    st.lists(st.integers(0, 1), min_size=24, max_size=24), st.integers(7, 11), st.integers(7, 11)
)
def test_tokens_that_agree_are_counted_backwards(bits: list[int], here: int, there: int) -> None:
    text, context = np.array(bits[:12], np.int32), np.array(bits[12:], np.int32)
    expected = 0
    while expected < LANES and text[here - expected] == context[there - expected]:
        expected += 1
    assert _agreement(text, here, context, there) == expected


@kernel
def _place_of(text: object, start: int, token: int) -> int:
    found: int = place_of(text, start, token)
    return found


@given(st.lists(st.integers(-3, 3), min_size=20, max_size=20), st.integers(0, 12))
def test_a_token_is_found_where_it_comes_first(tokens: list[int], start: int) -> None:
    text = np.array(tokens, np.int32)
    expected = [*tokens[start : start + LANES], -2].index(-2)
    assert _place_of(text, start, -2) == expected


def test_a_big_endian_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of bits would be another, and drafts would be wrong without a word."""
    spec = importlib.util.spec_from_file_location("lanes_again", lanes.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(ImportError, match="little-endian processor"):
        spec.loader.exec_module(module)
