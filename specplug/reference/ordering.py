"""Slow twin of :mod:`specplug.kernels.ordering`: Python's sort, one run at a time."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from specplug.reference.contexts import token_of
from specplug.reference.corpus import context_of, entries


def deal_entries(shelf: Any, tally: Any, runs: Any, how: Any, keys: Any, spare: Any) -> None:
    """Every entry into the bucket of its last token, by the one before, then by position; ``runs`` are the buckets."""
    per_key, bits, position_bits = how
    numbers = {int(token): i + 1 for i, token in enumerate(tally.present)}
    buckets: list[list[int]] = [[] for _ in numbers]
    for position in entries(shelf):
        context = [numbers[token] for token in context_of(shelf, position)[1:]]
        key = 0
        for number in ([*context, *[0] * per_key])[:per_key]:
            key = key << bits | number
        last = numbers[token_of(shelf, position - 1)]
        buckets[last - 1].append(key << position_bits | position)
    place = 0
    for i, bucket in enumerate(buckets):
        bucket.sort(key=lambda key: key >> position_bits + (per_key - 1) * bits)
        runs[i] = place, place + len(bucket)
        keys[place : place + len(bucket)] = bucket
        place += len(bucket)


def rank_keys(order: Any, runs: Any, count: int, ranks: Any, how: Any) -> None:
    """New keys for the entries of every run: the ranks of what stands before."""
    position_bits, back, further, rank_bits = how
    for start, end in runs[:count].tolist():
        for i in range(start, end):
            position = int(order.keys[i]) % 2**position_bits
            key = int(ranks[position - back])
            if further:
                second = int(ranks[position - further]) if key and position >= further else 0
                key = key << rank_bits | second
            order.keys[i] = key << position_bits | position


def sort_runs(order: Any, runs: Any, count: int, how: Any, ranks: Any, left: Any) -> int:
    """Sort every run by its keys and rank its entries; fills ``left`` with what agrees and has more to compare."""
    position_bits, more, before, _ = how
    found = 0
    for start, end in runs[:count].tolist():
        numbers = sorted(int(key) for key in order.keys[start:end])
        order.keys[start:end] = numbers
        at = start
        for _, group in groupby(numbers, key=lambda number: number >> position_bits):
            positions = [number % 2**position_bits for number in group]
            together = bool(int(order.keys[at]) & int(more))
            if together and len(positions) > 1:
                left[found] = at, at + len(positions)
                found += 1
            if more:
                for i, position in enumerate(positions):
                    ranks[position] = before + 1 + at + (0 if together else i)
            at += len(positions)
    return found


def round_after(compared: int, depth: int, position_bits: int, rank_bits: int) -> tuple[int, int]:
    """How many tokens before a position the ranks of the next round stand."""
    back, further = min(compared, depth - compared), min(2 * compared, depth - compared)
    return back, further if further > back and position_bits + 2 * rank_bits <= 64 else 0


def bits_above(bits: int, position_bits: int) -> int:
    """Those of the last number of a key."""
    return int(2**bits - 1) << position_bits


def order_entries(
    shelf: Any, tally: Any, order: Any, runs: Any, left: Any, ranks: Any, how: Any
) -> None:
    """The positions of all entries in their order."""
    order.keys[: tally.starts[-1]] = sorted(
        entries(shelf), key=lambda position: (context_of(shelf, position), position)
    )
