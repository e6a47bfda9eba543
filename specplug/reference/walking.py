"""How the slow twins walk a chain of places, whatever text they lie in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specplug.reference.chains import class_of, take
from specplug.reference.suffix_state import (
    MAX_EDIT,
    MAX_FOUND,
    MAX_MATCH,
    MAX_STEPS,
    ORDERS,
    STORE,
    Candidate,
)

#: The token of a text at a position, -1 where there is none.
Reader = Callable[[int], int]


def agreement(read: Reader, here: int, context: list[int], there: int, most: int) -> int:
    """Tokens that agree at and before ``here`` and ``context[there]``."""
    length = 0
    while length < most and there - length >= 0:
        token = read(here - length)
        if token < 0 or token != context[there - length]:
            break
        length += 1
    return length


def edit_extension(read: Reader, position: int, context: list[int], size: int) -> int:
    """Agreement past one substituted token, one inserted in the context, or one deleted from it."""
    return max(
        agreement(read, position - 1 - back, context, size - 1 - ahead, MAX_EDIT)
        for back, ahead in ((1, 1), (0, 1), (1, 0))
    )


def walk(
    read: Reader,
    chains: list[list[int]],
    context: list[int],
    belongs: Callable[[int], bool],
    enough: int,
    before: Sequence[Candidate] = (),
) -> list[Candidate]:
    """``before``, and candidates along the chains of each order (``chains[i]`` for ``ORDERS[i]``)."""
    found = list(before)
    for order in reversed(range(len(ORDERS))):
        if len(found) >= enough:
            break
        longer = ORDERS[order + 1] if order + 1 < len(ORDERS) else MAX_MATCH + 1
        rank = 0
        for position in chains[order][:MAX_STEPS]:
            if rank >= MAX_FOUND:
                break
            length = agreement(read, position - 1, context, len(context) - 1, MAX_MATCH)
            if length < ORDERS[order] or not belongs(position):
                continue
            if length < longer:
                edit = 0
                if 2 * length < MAX_MATCH:
                    edit = edit_extension(read, position - length, context, len(context) - length)
                found.append(take(position, length, class_of(edit, rank), STORE))
            rank += 1
    return found
