"""The kernels that pack numbers and their slow twin: same bits."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from specplug.index.datastore_format import bits_for
from specplug.kernels import packed as packed_kernels
from specplug.reference import packed as packed_reference


@given(bits=st.integers(1, 62), data=st.data())
def test_packing(bits: int, data: st.DataObject) -> None:
    values = np.array(data.draw(st.lists(st.integers(0, 2**63 - 1), max_size=20)), np.int64)
    offset = data.draw(st.integers(0, 130))
    words = [np.zeros((offset + bits * len(values)) // 64 + 2, np.uint64) for _ in range(2)]
    packed_kernels.pack(values, bits, offset, words[0])
    packed_reference.pack(values, bits, offset, words[1])
    assert words[0].tolist() == words[1].tolist()
    values &= 2**bits - 1  # what is above is not written
    for module in (packed_kernels, packed_reference):
        got = int(module.read_bits(words[0], 0, offset, bits))
        assert got == (values[0] if len(values) else 0)
    start = -(-offset // bits)
    out = [np.zeros(max(0, len(values) - 1), np.int64) for _ in range(2)]
    packed = words[0].copy()
    packed.flags.writeable = False
    packed_kernels.unpack(packed, 0, bits, start, out[0])
    packed_reference.unpack(packed, 0, bits, start, out[1])
    assert out[0].tolist() == out[1].tolist()
    if offset % bits == 0:
        assert out[0].tolist() == values[:-1].tolist()


@given(
    documents=st.lists(st.lists(st.integers(-1, 9), max_size=20), max_size=5),
    limit=st.integers(1, 9),
    offset=st.integers(0, 130),
)
@example(documents=[[0] * 16], limit=8, offset=0)
@example(documents=[[0] * 15], limit=8, offset=0)
@example(documents=[[1, 2], [], [3]], limit=4, offset=64)
def test_packing_documents(documents: list[list[int]], limit: int, offset: int) -> None:
    flat = np.array([token for document in documents for token in document], np.int32)
    lengths = np.array([len(document) for document in documents], np.int64)
    got = []
    for module in (packed_kernels, packed_reference):
        words = np.zeros(10, np.uint64)
        bits = bits_for(limit)
        wrong = module.pack_documents(flat, lengths, limit, bits, offset, words)
        assert wrong == module.first_outside(flat, limit)
        got.append((int(wrong), words.tolist()))
    assert got[0] == got[1]
