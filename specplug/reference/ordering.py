"""Slow twin of :mod:`specplug.kernels.ordering`: Python's sort, one run at a time."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from specplug.reference.contexts import token_of
from specplug.reference.corpus import context_of, entries


def deal_entries(shelf: Any, numbers: Any, places: Any, how: Any, keys: Any) -> None:
    """Every entry into the bucket of its last token, in the order of positions."""
    per_key, bits, position_bits = how
    for position in entries(shelf):
        context = [int(numbers[token]) for token in context_of(shelf, position)[1:]]
        key = 0
        for number in ([*context, *[0] * per_key])[:per_key]:
            key = key << bits | number
        bucket = int(numbers[token_of(shelf, position - 1)]) - 1
        keys[places[bucket]] = key << position_bits | position
        places[bucket] += 1


def sort_runs(order: Any, runs: Any, count: int, ranks: Any, how: Any, left: Any) -> int:
    """Sort every run by its keys; fills ``left`` with what agrees and has more to compare."""
    position_bits, more, back, further, rank_bits = how
    found = 0
    for start, end in runs[:count].tolist():
        numbers = [int(key) for key in order.keys[start:end]]
        positions = [number % 2**position_bits for number in numbers]
        if back:
            keys = [int(ranks[p - back]) for p in positions]
            if further:
                pairs = list(zip(keys, positions, strict=True))
                second = [
                    int(ranks[p - further]) if key and p >= further else 0 for key, p in pairs
                ]
                keys = [key << rank_bits | other for key, other in zip(keys, second, strict=True)]
            numbers = [key << position_bits | p for key, p in zip(keys, positions, strict=True)]
        numbers.sort()
        order.keys[start:end] = numbers
        at = start
        for _, group in groupby(numbers, key=lambda number: number >> position_bits):
            agreeing = list(group)
            if len(agreeing) > 1 and agreeing[0] & int(more):
                left[found] = at, at + len(agreeing)
                found += 1
            at += len(agreeing)
    return found


def rank_runs(order: Any, runs: Any, count: int, left: Any, how: Any, ranks: Any) -> None:
    """Renew the ranks of the entries of ``runs``: 1 plus the place where the run among ``left`` begins, or its own."""
    remaining, position_bits, first = how
    begins = {i: start for start, end in left[:remaining].tolist() for i in range(start, end)}
    for start, end in runs[:count].tolist():
        for i in range(start, end):
            ranks[int(order.keys[i]) % 2**position_bits] = first + begins.get(i, i) + 1
