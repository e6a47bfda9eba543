"""As much of PromQL as the dashboard needs, over two scrapes of a server.

``rate`` and ``increase`` take a series that is in both scrapes; a selector without a range reads the second scrape.
A vector is a mapping from labels (sorted pairs, without the name) to numbers.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

Labels = tuple[tuple[str, str], ...]
Vector = dict[Labels, float]

_TOKEN = re.compile(r'\s*([A-Za-z_:][\w:]*|\d+\.?\d*|"[^"]*"|[-+*/(){}\[\],=])')
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_PAIR = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else math.nan,
}


class Scrape(NamedTuple):
    """What a server showed.

    Attributes:
        series: by name.
        seconds: when.
    """

    series: Mapping[str, Vector]
    seconds: float


def scrape(text: str, seconds: float) -> Scrape:
    """Read the text format."""
    series: dict[str, Vector] = {}
    for line in text.splitlines():
        found = _LINE.match(line)
        if found and not line.startswith("#"):
            labels = tuple(sorted(_PAIR.findall(found.group(2) or "")))
            series.setdefault(found.group(1), {})[labels] = float(found.group(3))
    return Scrape(series, seconds)


def evaluate(query: str, before: Scrape, after: Scrape) -> Vector:
    """The instant vector of a query; a plain number has no labels.

    Raises:
        ValueError: not understood.
    """
    return _Parser(query, before, after).whole()


class _Parser:
    def __init__(self, query: str, before: Scrape, after: Scrape) -> None:
        self.query, self.before, self.after = query, before, after
        self.tokens = _TOKEN.findall(query)
        if "".join(self.tokens) != re.sub(r"\s+", "", query):
            raise ValueError(f"not understood: {query}")
        self.at = 0

    def whole(self) -> Vector:
        found = self._either()
        if self.at != len(self.tokens):
            raise ValueError(f"{self.query}: not understood from {self.tokens[self.at :]}")
        return found

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._peek()
        if not token or (wanted and token != wanted):
            raise ValueError(f"{self.query}: expected {wanted or 'more'}, got {token!r}")
        self.at += 1
        return token

    def _either(self) -> Vector:
        found = self._sum()
        while self._peek() == "or":
            self._take()
            found = {**self._sum(), **found}
        return found

    def _sum(self) -> Vector:
        found = self._product()
        while self._peek() in ("+", "-"):
            found = _combine(self._take(), found, self._product())
        return found

    def _product(self) -> Vector:
        found = self._factor()
        while self._peek() in ("*", "/"):
            found = _combine(self._take(), found, self._factor())
        return found

    def _factor(self) -> Vector:
        token = self._take()
        if token == "(":
            found = self._either()
            self._take(")")
            return found
        if token[0].isdigit():
            return {(): float(token)}
        if token == "sum":
            return self._aggregate()
        if token in ("rate", "increase"):
            return self._change(token)
        if token == "histogram_quantile":
            self._take("(")
            share = float(self._take())
            self._take(",")
            found = _quantile(share, self._either())
            self._take(")")
            return found
        return self._select(token, self.after)

    def _aggregate(self) -> Vector:
        kept: list[str] = []
        if self._peek() == "by":
            self._take()
            self._take("(")
            while self._peek() != ")":
                kept.append(self._take())
                if self._peek() == ",":
                    self._take()
            self._take(")")
        self._take("(")
        inner = self._either()
        self._take(")")
        found: Vector = {}
        for labels, value in inner.items():
            key = tuple(pair for pair in labels if pair[0] in kept)
            found[key] = found.get(key, 0.0) + value
        return found

    def _change(self, kind: str) -> Vector:
        self._take("(")
        name = self._take()
        place = self.at
        then = self._select(name, self.before)
        self.at = place
        now = self._select(name, self.after)
        self._take("[")
        while self._take() != "]":
            pass
        self._take(")")
        seconds = self.after.seconds - self.before.seconds if kind == "rate" else 1.0
        return {key: (now[key] - then[key]) / seconds for key in now if key in then}

    def _select(self, name: str, where: Scrape) -> Vector:
        wanted: list[tuple[str, str]] = []
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                label = self._take()
                self._take("=")
                wanted.append((label, self._take().strip('"')))
                if self._peek() == ",":
                    self._take()
            self._take("}")
        vector = where.series.get(name, {})
        return {key: value for key, value in vector.items() if set(wanted) <= set(key)}


def _combine(sign: str, left: Vector, right: Vector) -> Vector:
    """Series with the same labels; a number goes with all."""
    combine = _ARITHMETIC[sign]
    if set(left) == {()}:
        return {key: combine(left[()], value) for key, value in right.items()}
    if set(right) == {()}:
        return {key: combine(value, right[()]) for key, value in left.items()}
    return {key: combine(left[key], right[key]) for key in left if key in right}


def _quantile(share: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in buckets.items():
        bound = float(dict(labels)["le"])
        groups.setdefault(tuple(p for p in labels if p[0] != "le"), []).append((bound, value))
    found: Vector = {}
    for labels, pairs in groups.items():
        pairs.sort()
        rank = share * pairs[-1][1]
        low = below = 0.0
        for bound, count in pairs:
            if count >= rank:
                inside = (rank - below) / (count - below) if count > below else math.nan
                found[labels] = low if math.isinf(bound) else low + (bound - low) * inside
                break
            low, below = bound, count
    return found
