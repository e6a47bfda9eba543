"""Drafts from the longest earlier match, over flat arrays: what runs on a device runs here on the CPU, bit for bit.

No index is kept: every position is compared, which is what a GPU is good at. There it is done by
:mod:`specplug.adapters.device.kernels`; this file, and its slow twin, say what has to come out.

Of a request with the tokens ``h[0 .. n-1]`` every position ``p`` is a candidate, in its own text (``1 <= p < n``) and
in the ring of earlier outputs. Its match length is the number of tokens before ``p`` that equal those at the end of the
request, up to ``longest``. The longest match wins; of equally long ones the request's own before the ring's, then the
most recent. The draft is what follows: in the request's own text round and round from ``p`` to its end (what a text
that repeats itself would say next; LZ77 copies so), in the ring up to the end of that output. Negative ids match
nothing and end a draft.

The ring holds outputs back to back, each from a multiple of :data:`BLOCK` on and with at least one :data:`SEPARATOR`
behind it, so that no match and no draft runs from one into another, nor over the place where new text meets old. One
namespace per block says whose text it is. New text overwrites the oldest.

Prompt lookup (Saxena, 2023) and the suffix automaton of SAM decoding (arXiv 2411.10666) draft from longest matches too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from specplug.kernels._jit import lean_kernel

#: Outputs start at multiples of this in the ring, so that one namespace per block suffices.
BLOCK = 16
#: Token id that matches nothing; ends an output in the ring.
SEPARATOR = -1
#: What stands behind a draft: valid in every vocabulary.
PADDING = 0


class Table(NamedTuple):
    """The running requests, by row.

    Attributes:
        tokens: int32 ``[R, L]``.
        lengths: int32 ``[R]``, how many tokens there are of each.
        namespaces: int32 ``[R]``, whose outputs a request may draft from, and who may draft from its own.
        limits: int32 ``[R]``, the most tokens drafted for it; 0: none.
    """

    tokens: Any
    lengths: Any
    namespaces: Any
    limits: Any


class Ring(NamedTuple):
    """Outputs of finished requests. Filled with :data:`SEPARATOR` it is empty.

    Attributes:
        tokens: int32 ``[C]``, a multiple of :data:`BLOCK`, and more than ``Rule.longest``.
        owners: int32 ``[C / BLOCK]``, the namespace of each block.
        end: int64 ``[1]``, tokens ever written, separators counted.
    """

    tokens: Any
    owners: Any
    end: Any


class Rule(NamedTuple):
    """Which matches are good enough, and how much is drafted from one.

    Attributes:
        shortest: matches of fewer tokens are not used; at least 1.
        longest: tokens compared at most.
        growth: at most so many tokens are drafted per token matched; 0: no such limit.
        most: at most so many tokens are drafted at all in this step.
    """

    shortest: Any
    longest: Any
    growth: Any
    most: Any


@lean_kernel
def _own_match(table: Table, row: Any, place: Any, longest: Any) -> Any:
    """Tokens before ``place`` that equal the end of the request."""
    last = table.lengths[row] - 1
    count = 0
    while count < min(longest, place):
        wanted = table.tokens[row, last - count]
        if wanted < 0 or table.tokens[row, place - 1 - count] != wanted:
            break
        count += 1
    return count


@lean_kernel
def _ring_match(table: Table, ring: Ring, row: Any, place: Any, longest: Any) -> Any:
    """The same for a place in the ring."""
    capacity = ring.tokens.shape[0]
    last = table.lengths[row] - 1
    count = 0
    while count < min(longest, last + 1):
        wanted = table.tokens[row, last - count]
        if wanted < 0 or ring.tokens[(place - 1 - count) % capacity] != wanted:
            break
        count += 1
    return count


@lean_kernel
def _best(table: Table, ring: Ring, row: Any, rule: Rule) -> Any:
    """Match length, whether it is the request's own, and the place; length 0 if there is none."""
    best = 0
    own = True
    at = 0
    # The most recent first, so that a later find must be better.
    for place in range(table.lengths[row] - 1, 0, -1):
        count = _own_match(table, row, place, rule.longest)
        if count > best:
            best = count
            at = place
    capacity = ring.tokens.shape[0]
    for age in range(1, capacity + 1):
        place = (ring.end[0] - age) % capacity
        if ring.tokens[place] < 0 or ring.owners[place // BLOCK] != table.namespaces[row]:
            continue
        count = _ring_match(table, ring, row, place, rule.longest)
        if count > best:
            best = count
            own = False
            at = place
    return (best, own, at) if best >= rule.shortest else (0, True, 0)


@lean_kernel
def look_up(
    table: Table, ring: Ring, rows: Any, sampled: Any, rule: Rule, drafts: Any, counts: Any
) -> None:
    """Draft for a batch; reads ``R * L + B * C`` tokens, a little more where much matches.

    Args:
        table: the requests.
        ring: outputs of earlier ones.
        rows: int ``[B]``, the row in ``table`` of each request of the batch.
        sampled: int ``[B]``, tokens that the step added; where it is 0 (in prefill) nothing is drafted.
        rule: see there.
        drafts: int ``[B, K]``, written: drafts, then :data:`PADDING`.
        counts: int ``[B]``, written: how many tokens each draft has.
    """
    for at in range(rows.shape[0]):
        row = rows[at]
        for step in range(drafts.shape[1]):
            drafts[at, step] = PADDING
        counts[at] = 0
        room = min(drafts.shape[1], rule.most, table.limits[row])
        if sampled[at] <= 0 or room <= 0:
            continue
        matched, own, place = _best(table, ring, row, rule)
        if matched == 0:
            continue
        if rule.growth > 0:
            room = min(room, rule.growth * matched)
        length = table.lengths[row]
        for step in range(room):
            if own:
                token = table.tokens[row, place + step % (length - place)]
            else:
                token = ring.tokens[(place + step) % ring.tokens.shape[0]]
            if token < 0:
                break
            drafts[at, step] = token
            counts[at] = step + 1


@lean_kernel
def append(ring: Ring, table: Table, rows: Any, starts: Any) -> None:
    """Write what finished requests said into the ring, in this order.

    Of an output longer than the ring its last part is kept; an empty one leaves no trace.

    Args:
        ring: changed.
        table: the requests.
        rows: int ``[F]``, their rows.
        starts: int ``[F]``, where their outputs begin.
    """
    capacity = ring.tokens.shape[0]
    for which in range(rows.shape[0]):
        row = rows[which]
        length = table.lengths[row]
        first = max(starts[which], length - (capacity - BLOCK))
        position = ring.end[0]
        if first >= length:
            continue
        size = (length - first + BLOCK) // BLOCK * BLOCK
        for step in range(size):
            place = (position + step) % capacity
            inside = first + step < length
            ring.tokens[place] = table.tokens[row, first + step] if inside else SEPARATOR
            if place % BLOCK == 0:
                ring.owners[place // BLOCK] = table.namespaces[row]
        ring.end[0] = position + size
