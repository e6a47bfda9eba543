"""Slow twin of :mod:`specplug.kernels.flat_match`: the ring is a list of outputs, and matches are slices."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

BLOCK = 16
PADDING = 0


@dataclass
class Ring:
    """Finished outputs, oldest first, each with its namespace and its size in the ring, separators counted."""

    capacity: int
    outputs: list[tuple[int, list[int], int]] = field(default_factory=list)


@dataclass
class Request:
    """One row of the table."""

    tokens: list[int]
    namespace: int = 0
    limit: int = 1 << 30


def _matched(end: Sequence[int], before: Sequence[int], longest: int) -> int:
    """How many last tokens of two texts are equal, negative ones never."""
    lengths = range(1, min(len(end), len(before), longest) + 1)
    return max((n for n in lengths if end[-n:] == before[-n:] and min(end[-n:]) >= 0), default=0)


def _candidates(
    ring: Ring, request: Request, longest: int, width: int
) -> list[tuple[int, int, int, list[int]]]:
    """Match length, 1 for the request's own, recency, and what could be drafted."""
    found = []
    text = request.tokens
    for place in range(1, len(text)):
        again = list(itertools.islice(itertools.cycle(text[place:]), width))
        found.append((_matched(text, text[:place], longest), 1, place, again))
    position = 0
    for namespace, output, size in ring.outputs:
        for place in range(len(output)):
            if namespace == request.namespace and output[place] >= 0:
                matched = _matched(text, output[:place], longest)
                found.append((matched, 0, position + place, output[place:]))
        position += size
    return found


def look_up(
    table: Sequence[Request],
    ring: Ring,
    rows: Sequence[int],
    sampled: Sequence[int],
    rule: Any,
    drafts: list[list[int]],
    counts: list[int],
) -> None:
    """Draft for a batch."""
    for at, row in enumerate(rows):
        request = table[row]
        width = len(drafts[at])
        draft: list[int] = []
        best = max(_candidates(ring, request, rule.longest, width), default=(0, 0, 0, []))
        if sampled[at] > 0 and best[0] >= rule.shortest:
            room = max(0, min(width, rule.most, request.limit))
            if rule.growth > 0:
                room = min(room, rule.growth * best[0])
            for token in best[3][:room]:
                if token < 0:
                    break
                draft.append(token)
        drafts[at] = draft + [PADDING] * (width - len(draft))
        counts[at] = len(draft)


def append(
    ring: Ring, table: Sequence[Request], rows: Sequence[int], starts: Sequence[int]
) -> None:
    """Write what finished requests said into the ring, in this order."""
    for row, start in zip(rows, starts, strict=True):
        output = table[row].tokens[start:][-(ring.capacity - BLOCK) :]
        if output:
            size = (len(output) // BLOCK + 1) * BLOCK
            ring.outputs.append((table[row].namespace, output, size))
        excess = sum(size for _, _, size in ring.outputs) - ring.capacity
        while excess > 0:
            namespace, oldest, size = ring.outputs.pop(0)
            left = size - excess
            # The oldest output loses its beginning first.
            if left > 0:
                ring.outputs.insert(0, (namespace, oldest[excess:], left))
            excess = -left
