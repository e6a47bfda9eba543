"""Slow twin of :mod:`specplug.kernels.chains`. A context that is empty, or ends with a separator, has no hashes."""

from __future__ import annotations

from collections.abc import Sequence

from specplug.reference.streams import mix
from specplug.reference.suffix_state import ORDERS, Candidate


def hash_context(context: Sequence[int], seed: int) -> list[int]:
    """Hashes of the last ``ORDERS`` tokens of a context; -1 where there are not so many."""
    hashes = [-1] * len(ORDERS)
    hashed = seed
    for back, token in enumerate(reversed(context[-ORDERS[-1] :]), 1):
        if token < 0:
            break
        hashed = mix(hashed, token)
        if back in ORDERS:
            hashes[ORDERS.index(back)] = hashed
    return hashes


def class_of(edit: int, rank: int) -> int:
    """The class of a candidate: three bins of the edit extension times three of the rank."""
    return 3 * ((edit >= 3) + (edit >= 7)) + (rank >= 1) + (rank >= 4)


def take(position: int, length: int, kind: int, source: int) -> Candidate:
    """A candidate that was found."""
    return Candidate(position, length, kind, source)
