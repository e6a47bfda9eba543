"""Exact output laws on tiny vocabularies: what losslessness is measured against.

A *law* maps an outcome (the tuple of emitted token ids, the stop token included) to its
probability. It is found by following every path; nothing is sampled, so two laws can be compared
to within rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from specplug.types import ProbArray

Tokens: TypeAlias = tuple[int, ...]
#: From the whole history (prompt and output so far) to float64 ``[V]``, the law of the next token.
NextLaw: TypeAlias = Callable[[Tokens], ProbArray]
Outcome = TypeVar("Outcome", bound=Hashable)


def plain_law(
    next_law: NextLaw, prompt: Tokens, limit: int, stop_token_ids: Collection[int] = ()
) -> dict[Tokens, float]:
    """The law of the output of plain decoding, one token at a time.

    Args:
        next_law: conditional law of the next token.
        prompt: the tokens before the output.
        limit: the output ends after this many tokens.
        stop_token_ids: the output ends with the first of these.

    Returns:
        Every possible output and its probability; O(V ** limit) of them.
    """
    law: dict[Tokens, float] = {}
    growing: list[tuple[Tokens, float]] = [((), 1.0)]
    while growing:
        output, weight = growing.pop()
        if len(output) == limit or (output and output[-1] in stop_token_ids):
            law[output] = weight
            continue
        for token, chance in enumerate(next_law(prompt + output).tolist()):
            if chance > 0.0:
                growing.append(((*output, token), weight * chance))
    return law


def product_law(laws: Sequence[Mapping[Tokens, float]]) -> dict[tuple[Tokens, ...], float]:
    """The joint law of independent outputs."""
    joint: dict[tuple[Tokens, ...], float] = {(): 1.0}
    for law in laws:
        joint = {
            (*outputs, output): weight * chance
            for outputs, weight in joint.items()
            for output, chance in law.items()
        }
    return joint


def total_variation(one: Mapping[Outcome, float], other: Mapping[Outcome, float]) -> float:
    """Half the sum of all absolute differences: the largest difference in probability of any event."""
    return 0.5 * sum(abs(one.get(o, 0.0) - other.get(o, 0.0)) for o in _union(one, other))


def side_by_side(
    expected: Mapping[Outcome, float], got: Mapping[Outcome, float], rows: int = 12
) -> str:
    """A table of the outcomes that differ most, for a person to read."""
    # Rounded, so that equal differences stand in the order of their outcomes.
    ranked = sorted(
        _union(expected, got),
        key=lambda o: (-round(abs(expected.get(o, 0.0) - got.get(o, 0.0)), 12), str(o)),
    )
    lines = [f"{'outcome':<28} {'expected':>14} {'got':>14} {'difference':>14}"]
    for outcome in ranked[:rows]:
        a, b = expected.get(outcome, 0.0), got.get(outcome, 0.0)
        lines.append(f"{outcome!s:<28} {a:14.9f} {b:14.9f} {b - a:+14.3e}")
    if len(ranked) > rows:
        lines.append(f"... and {len(ranked) - rows} more outcomes")
    return "\n".join(lines)


def _union(one: Mapping[Outcome, float], other: Mapping[Outcome, float]) -> Iterable[Outcome]:
    return dict.fromkeys([*one, *other])
