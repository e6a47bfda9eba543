"""From measured steps to the content of a cost file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specplug.control.costfile import KNOTS, VERSION
from specplug.errors import SettingsError


class Point(NamedTuple):
    """One measured step.

    Attributes:
        kind: ``"decode"``: requests that generate, with drafts or without; ``"prefill"``: prompts.
        requests: in the step.
        tokens: in the step, drafts included.
        seconds: that it took.
    """

    kind: Literal["decode", "prefill"]
    requests: int
    tokens: int
    seconds: float


def cost_file(
    points: Sequence[Point], machine: str, source: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of a cost file: what :mod:`specplug.control` reads, and beside it what it was made from.

    Raises:
        SettingsError: too few steps were measured.
    """
    tokens, seconds = curve(points)
    plain = float(seconds[0])
    slope = max(0.0, float((seconds[-1] - seconds[-2]) / (tokens[-1] - tokens[-2])))
    knots = np.array(KNOTS, np.float64)
    values = np.interp(knots, tokens, seconds) + np.maximum(0.0, knots - tokens[-1]) * slope
    return {
        "version": VERSION,
        "machine": machine,
        "source": source,
        "tokens": list(KNOTS),
        "relative": [round(v / plain, 5) for v in values.tolist()],
        "plain_seconds": round(plain, 7),
        "measured_up_to": int(tokens[-1]),
        "provenance": dict(facts),
        "points": [{**p._asdict(), "seconds": round(p.seconds, 7)} for p in points],
    }


def curve(points: Iterable[Point]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds by tokens, ascending and not falling: of decoding steps, and beyond the largest of prefill steps.

    A prefill step of as many tokens is cheaper, since it computes probabilities for the last token of each prompt only;
    so only its growth is taken.
    """
    decode, prefill = _medians(points, "decode"), _medians(points, "prefill")
    if 1 not in decode or len(decode) < 2:
        raise SettingsError(
            f"at least a step of one token and a longer one are needed, got steps of {sorted(decode)} tokens"
        )
    tokens = sorted(decode)
    seconds = _rising([decode[t] for t in tokens])
    last = tokens[-1]
    sizes = sorted(prefill)
    if len(sizes) > 1:
        rising = _rising([prefill[s] for s in sizes])
        base = float(np.interp(last, sizes, rising))
        if last < sizes[0]:  # shorter than any prompt that was measured: as steep as the first two
            slope = (rising[1] - rising[0]) / (sizes[1] - sizes[0])
            base = max(0.0, rising[0] - slope * (sizes[0] - last))
        for size, value in zip(sizes, rising, strict=True):
            if size > last:
                tokens.append(size)
                seconds.append(seconds[len(decode) - 1] + value - base)
    return np.array(tokens, np.float64), np.array(seconds)


def _medians(points: Iterable[Point], kind: str) -> dict[int, float]:
    groups: dict[int, list[float]] = {}
    for point in points:
        if point.kind == kind and point.seconds > 0:
            groups.setdefault(point.tokens, []).append(point.seconds)
    return {tokens: median(values) for tokens, values in groups.items()}


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence that does not fall (isotonic regression by pooling neighbours)."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([value, 1.0])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, n), (b, m) = pools[-2], pools.pop()
            pools[-1] = [(a * n + b * m) / (n + m), n + m]
    return [mean for mean, count in pools for _ in range(int(count))]
