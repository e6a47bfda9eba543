"""Eight tokens at once, the place of a bit, and memory asked for ahead of its use: what LLVM does not make of loops."""

from __future__ import annotations

import sys
from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.extending import intrinsic

from specplug.kernels._jit import COMPILED

if sys.byteorder != "little":
    # The first of eight comparisons would be the highest bit of their sum, and all counts would be wrong.
    raise ImportError(
        f"specplug's kernels need a little-endian processor, as x86-64 and ARM are; this one is {sys.byteorder}-endian"
    )

#: Tokens that :data:`agreement` and :data:`place_of` compare.
LANES = 8


def _address(context: Any, builder: Any, array_type: Any, value: Any, index: Any) -> Any:
    """Pointer to element ``index`` of the flat memory of an array."""
    array = context.make_array(array_type)(context, builder, value)
    return builder.gep(array.data, [index])


def _compile_agreement(typing: Any, text: Any, here: Any, context: Any, there: Any) -> Any:
    wide = ir.VectorType(ir.IntType(32), LANES)

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def eight(which: int) -> Any:
            start = builder.sub(arguments[which + 1], ir.Constant(ir.IntType(64), LANES - 1))
            place = _address(target, builder, signature.args[which], arguments[which], start)
            loaded = builder.load(builder.bitcast(place, wide.as_pointer()))
            loaded.align = 4
            return loaded

        differing = builder.icmp_signed("!=", eight(0), eight(2))
        bits = builder.bitcast(differing, ir.IntType(LANES))
        zeros = builder.ctlz(bits, ir.Constant(ir.IntType(1), 0))
        return builder.zext(zeros, ir.IntType(64))

    signature = types.int64(text, types.int64, context, types.int64)
    return signature, generate


def _agreement(text: Any, here: Any, context: Any, there: Any) -> int:
    count = 0
    while count < LANES and text[here - count] == context[there - count]:
        count += 1
    return count


def _compile_place_of(typing: Any, text: Any, start: Any, token: Any) -> Any:
    wide = ir.VectorType(ir.IntType(32), LANES)

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _address(target, builder, signature.args[0], arguments[0], arguments[1])
        loaded = builder.load(builder.bitcast(place, wide.as_pointer()))
        loaded.align = 4
        one = builder.insert_element(
            ir.Constant(wide, ir.Undefined),
            builder.trunc(arguments[2], ir.IntType(32)),
            ir.Constant(ir.IntType(32), 0),
        )
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        same = builder.icmp_signed("==", loaded, builder.shuffle_vector(one, one, mask))
        bits = builder.bitcast(same, ir.IntType(LANES))
        zeros = builder.cttz(bits, ir.Constant(ir.IntType(1), 0))
        return builder.zext(zeros, ir.IntType(64))

    return types.int64(text, types.int64, types.int64), generate


def _place_of(text: Any, start: Any, token: Any) -> int:
    count = 0
    while count < LANES and text[start + count] != token:
        count += 1
    return count


def _compile_lowest(typing: Any, bits: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def _lowest(bits: Any) -> int:
    number = int(bits)
    return (number & -number).bit_length() - 1


def _compile_leading(typing: Any, bits: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def _leading(bits: Any) -> int:
    return 64 - int(bits).bit_length()


def _compile_prefetch(typing: Any, array: Any, index: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _address(target, builder, signature.args[0], arguments[0], arguments[1])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        call = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        reading, kept, data = (ir.Constant(number, n) for n in (0, 3, 1))
        builder.call(call, [builder.bitcast(place, byte), reading, kept, data])
        return target.get_dummy_value()

    return types.void(array, types.int64), generate


def _no_prefetch(array: Any, index: Any) -> None:
    """Nothing to be gained in interpreted code."""


_compiled_agreement: Any = intrinsic(_compile_agreement)
_compiled_place_of: Any = intrinsic(_compile_place_of)
_compiled_lowest: Any = intrinsic(_compile_lowest)
_compiled_leading: Any = intrinsic(_compile_leading)
_compiled_prefetch: Any = intrinsic(_compile_prefetch)

#: ``agreement(text, here, context, there)``: how many tokens agree at ``text[here]``, ``context[there]`` and before, at
#: most :data:`LANES`. Reads so many of both, which must exist. Arrays of int32, indices not negative.
agreement: Any = _compiled_agreement if COMPILED else _agreement

#: ``place_of(text, start, token)``: how many tokens stand at ``text[start]`` and behind it before ``token`` comes, at
#: most :data:`LANES`. Reads so many, which must exist; an array of int32.
place_of: Any = _compiled_place_of if COMPILED else _place_of

#: ``lowest(bits)``: the place of the lowest 1 of a uint64 that has one.
lowest: Any = _compiled_lowest if COMPILED else _lowest

#: ``leading(bits)``: how many zeros stand above the highest 1 of a uint64.
leading: Any = _compiled_leading if COMPILED else _leading

#: ``prefetch(array, index)``: the element ``index`` of the flat memory of an array will be read soon.
prefetch: Any = _compiled_prefetch if COMPILED else _no_prefetch
