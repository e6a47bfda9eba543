"""Triton twins of :mod:`specplug.kernels.flat_match`. Importing this file needs Triton.

A tile of a scan is ``tile_rows`` requests times ``span`` positions. All positions of a tile are compared with the end
of each request at once, token by token backwards, for as long as any of them still matches; most tiles are done after
the first token or two. The best of a tile becomes one number, so that the best of all is a maximum:

    ``match length << 41 | own text << 40 | recency``

where recency is the position in the request's own text, and ``C - age`` in the ring. No result depends on the size
of tiles or on the order in which they run.
"""

# Kernels are no Python functions: their arguments are pointers and numbers of the device, which have no types here.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# No `from __future__ import annotations`: Triton reads the annotations of its kernels.

from typing import Any

import triton
import triton.language as tl

#: Arguments that change from step to step must not each compile a kernel of their own.
_compiled: Any = triton.jit(do_not_specialize=["count", "most"])


@triton.jit
def lengths_of_those_who_want(lengths, limits, sampled, state, at, there):
    """How many tokens the requests of a tile have; 0 where nothing is to be drafted."""
    wants = tl.load(sampled + at, mask=there, other=0) > 0
    wants = wants & (tl.load(limits + state, mask=there, other=0) > 0)
    return tl.where(wants, tl.load(lengths + state, mask=there, other=0).to(tl.int64), 0)


@_compiled
def scan_requests(
    tokens,  # int32 [R, stride]
    stride,
    lengths,  # int32 [R]
    limits,  # int32 [R]
    rows,  # int [B]
    sampled,  # int [B]
    best,  # int64 [B, columns], written
    columns,
    count,  # B
    shortest: tl.constexpr,
    longest: tl.constexpr,
    tile_rows: tl.constexpr,
    span: tl.constexpr,
):
    """The best match of every request in its own text, per span of positions."""
    at = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    there = at < count
    state = tl.load(rows + at, mask=there, other=0).to(tl.int64)
    length = lengths_of_those_who_want(lengths, limits, sampled, state, at, there)
    text = tokens + state * stride
    place = tl.program_id(1) * span + tl.arange(0, span)
    alive = (place[None, :] >= 1) & (place[None, :] < length[:, None])
    matched = tl.zeros([tile_rows, span], dtype=tl.int32)
    step = 0
    going = tl.max(alive.to(tl.int32))
    while (step < longest) & (going > 0):
        wanted = tl.load(text + length - 1 - step, mask=length > step, other=-1)
        alive = alive & (place[None, :] > step) & (wanted[:, None] >= 0)
        found = tl.load(text[:, None] + (place - 1 - step)[None, :], mask=alive, other=-1)
        alive = alive & (found == wanted[:, None])
        matched += alive.to(tl.int32)
        step += 1
        going = tl.max(alive.to(tl.int32))
    score = (matched.to(tl.int64) << 41) + (1 << 40) + place[None, :]
    score = tl.where(matched >= shortest, score, 0)
    tl.store(best + at.to(tl.int64) * columns + tl.program_id(1), tl.max(score, axis=1), mask=there)


@_compiled
def scan_ring(
    ring,  # int32 [C]
    owners,  # int32 [C / BLOCK]
    end,  # int64 [1]
    capacity,  # C
    tokens,
    stride,
    lengths,
    namespaces,  # int32 [R]
    limits,
    rows,
    sampled,
    best,  # int64 [B, columns], written from column `first` on
    columns,
    first,
    count,
    spans,  # per program
    shortest: tl.constexpr,
    longest: tl.constexpr,
    tile_rows: tl.constexpr,
    span: tl.constexpr,
    block: tl.constexpr,
):
    """The best match of every request in the ring, per ``spans`` spans of places, read for ``tile_rows`` requests."""
    at = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    there = at < count
    state = tl.load(rows + at, mask=there, other=0).to(tl.int64)
    length = lengths_of_those_who_want(lengths, limits, sampled, state, at, there)
    text = tokens + state * stride
    mine = tl.load(namespaces + state, mask=there, other=0)
    newest = (tl.load(end) % capacity).to(tl.int32)
    top = tl.zeros([tile_rows], dtype=tl.int64)
    number = 0
    while number < spans:
        place = (tl.program_id(1) * spans + number) * span + tl.arange(0, span)
        inside = place < capacity
        following = tl.load(ring + place, mask=inside, other=-1)
        owner = tl.load(owners + place // block, mask=inside, other=0)
        alive = (following >= 0)[None, :] & (owner[None, :] == mine[:, None])
        alive = alive & (length > 0)[:, None]
        matched = tl.zeros([tile_rows, span], dtype=tl.int32)
        step = 0
        going = tl.max(alive.to(tl.int32))
        while (step < longest) & (going > 0):
            wanted = tl.load(text + length - 1 - step, mask=length > step, other=-1)
            # A division by a number known only here would cost more than all the rest.
            before = place - 1 - step
            before = tl.where(before < 0, before + capacity, before)
            found = tl.load(ring + before, mask=inside, other=-1)
            alive = alive & (wanted[:, None] >= 0) & (found[None, :] == wanted[:, None])
            matched += alive.to(tl.int32)
            step += 1
            going = tl.max(alive.to(tl.int32))
        age = newest - place
        age = tl.where(age <= 0, age + capacity, age)
        score = (matched.to(tl.int64) << 41) + (capacity - age)[None, :]
        score = tl.where(matched >= shortest, score, 0)
        top = tl.maximum(top, tl.max(score, axis=1))
        number += 1
    tl.store(best + at.to(tl.int64) * columns + first + tl.program_id(1), top, mask=there)


@_compiled
def write_drafts(
    best,  # int64 [B, columns]
    columns,
    ring,
    end,
    capacity,
    tokens,
    stride,
    lengths,
    limits,
    rows,
    drafts,  # int64 [B, K], written
    counts,  # int32 [B], written
    width,  # K
    most,
    growth,
    count,
    padding: tl.constexpr,
    padded: tl.constexpr,
    chunk: tl.constexpr,
    tile_rows: tl.constexpr,
):
    """The drafts of ``tile_rows`` requests, each from its best match."""
    at = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    there = at < count
    at = at.to(tl.int64)
    top = tl.zeros([tile_rows, chunk], dtype=tl.int64)
    start = 0
    while start < columns:
        column = start + tl.arange(0, chunk)
        inside = there[:, None] & (column < columns)[None, :]
        found = tl.load(best + (at * columns)[:, None] + column[None, :], mask=inside, other=0)
        top = tl.maximum(top, found)
        start += chunk
    score = tl.max(top, axis=1)
    matched = score >> 41
    own = ((score >> 40) & 1) > 0
    recency = score & ((1 << 40) - 1)
    state = tl.load(rows + at, mask=there, other=0).to(tl.int64)
    length = tl.load(lengths + state, mask=there, other=0).to(tl.int64)
    room = tl.minimum(tl.load(limits + state, mask=there, other=0), most)
    room = tl.minimum(room, width).to(tl.int64)
    room = tl.where(growth > 0, tl.minimum(room, growth * matched), room)
    room = tl.where(matched > 0, room, 0)
    step = tl.arange(0, padded).to(tl.int64)[None, :]
    # At least 1, also where there is no match and nothing is read.
    period = tl.maximum(length - recency, 1)
    in_text = (state * stride + recency)[:, None] + step % period[:, None]
    in_ring = (tl.load(end) + recency[:, None] + step) % capacity
    told = tl.load(tokens + in_text, mask=step < tl.where(own, room, 0)[:, None], other=-1)
    other = tl.load(ring + in_ring, mask=step < tl.where(own, 0, room)[:, None], other=-1)
    token = tl.where(own[:, None], told, other)
    # The first place without a token.
    drafted = tl.min(tl.where(token < 0, step, padded), axis=1)
    token = tl.where(step < drafted[:, None], token, padding)
    place = drafts + (at * width)[:, None] + step
    tl.store(place, token.to(tl.int64), mask=there[:, None] & (step < width))
    tl.store(counts + at, drafted.to(tl.int32), mask=there)


@_compiled
def append_outputs(
    ring,  # int32 [C], written
    owners,  # int32 [C / BLOCK], written
    end,  # int64 [1]
    capacity,
    tokens,
    stride,
    lengths,
    namespaces,
    rows,  # int [F]
    starts,  # int [F]
    grown,  # int64 [1], written: how much the ring grew
    count,  # F
    span: tl.constexpr,
    many: tl.constexpr,
    block: tl.constexpr,
):
    """A span of one output, to where it belongs; ``end`` is moved afterwards, when all have read it."""
    mine = tl.program_id(0)
    every = tl.arange(0, many)
    there = every < count
    state = tl.load(rows + every, mask=there, other=0).to(tl.int64)
    length = tl.load(lengths + state, mask=there, other=0).to(tl.int64)
    first = tl.load(starts + every, mask=there, other=0).to(tl.int64)
    first = tl.maximum(first, length - (capacity - block))
    kept = tl.maximum(length - first, 0)
    size = tl.where(there & (kept > 0), (kept + block) // block * block, 0)
    total = tl.sum(size, axis=0)
    before = tl.sum(tl.where(every < mine, size, 0), axis=0)
    size = tl.sum(tl.where(every == mine, size, 0), axis=0)
    kept = tl.sum(tl.where(every == mine, kept, 0), axis=0)
    first = tl.sum(tl.where(every == mine, first, 0), axis=0)
    state = tl.sum(tl.where(every == mine, state, 0), axis=0)
    step = tl.program_id(1).to(tl.int64) * span + tl.arange(0, span)
    # What a later output of this launch overwrites must not be written at all: programs run in any order.
    new = (step < size) & (before + step >= total - capacity)
    token = tl.load(tokens + state * stride + first + step, mask=new & (step < kept), other=-1)
    place = (tl.load(end) + before + step) % capacity
    tl.store(ring + place, token, mask=new)
    owner = tl.load(namespaces + state) + tl.zeros([span], dtype=tl.int32)
    tl.store(owners + place // block, owner, mask=new & (place % block == 0))
    tl.store(grown, total)
