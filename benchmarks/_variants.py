"""Variants of the suffix drafter for benchmarks/ablation.py: ideas left out, and other hyper-parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WHOLE = "whole"


@dataclass(frozen=True)
class Variant:
    """Lines of the sources that are replaced (file, old, new), or options, and what that leaves out.

    ``told`` is what the drafter is told that verifying costs, over what it does cost.
    """

    name: str
    says: str
    edits: tuple[tuple[str, str, str], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    told: float = 1.0


def _layout(old: str, new: str) -> tuple[tuple[str, str, str], ...]:
    return (("kernels/layout.py", old, new),)


def _learning(old: str, new: str) -> tuple[tuple[str, str, str], ...]:
    return (("kernels/learning.py", old, new),)


def _without(*features: str) -> tuple[str, str, str]:
    """The features of a ranked token that do not count; what is learned of them does not matter then."""
    old = "both = min(4.0, max(0.0, logs[at + O_BOTH] + 3.0))"
    nothing = "".join(f"\n        {name} = 0.0" for name in features)
    return "kernels/ranking.py", old, old + nothing


VARIANTS = (
    Variant(WHOLE, "everything"),
    Variant("store", "no text of other requests", options={"store_mb": 0}),
    Variant("prompts", "with the prompts of other requests", options={"share_prompts": True}),
    Variant(
        "templates",
        "one model for all prompts",
        (("index/templates.py", "if len(prompt) < PREFIX:", "if len(prompt) >= 0:"),),
    ),
    Variant(
        "pointers",
        "copying is not followed past an edit, and nearness to where it had got to is not asked",
        (
            ("kernels/match.py", "for inserted in range(2):", "for inserted in range(0):"),
            _without("near"),
        ),
    ),
    Variant(
        "edits",
        "how far a match goes on past an edited token does not count",
        (
            (
                "kernels/match.py",
                "edits = 0 if edit < 3 else (1 if edit < 7 else 2)",
                "edits = 0",
            ),
        ),
    ),
    Variant("newest", "one candidate per chain", _layout("MAX_FOUND = 24", "MAX_FOUND = 1")),
    Variant(
        "reliability",
        "hit rates of classes of candidates stay as they begin",
        _learning("        _learn_candidates(state, where, which, depth, true)\n", ""),
    ),
    Variant(
        "weights", "weights stay as they begin", _learning("STEP_SIZE = 0.02", "STEP_SIZE = 0.0")
    ),
    Variant(
        "agreement",
        "how many candidates and texts agree does not count",
        (_without("count", "both"),),
    ),
    Variant(
        "tables", "the token and the one before it do not count", (_without("token", "context"),)
    ),
    Variant("recency", "how long ago the token occurred does not count", (_without("recency"),)),
    Variant("age", "how old the candidates are does not count", (_without("age"),)),
    Variant(
        "stopping",
        "a draft ends at the cost of a token, not at cost times goodput",
        (
            (
                "kernels/branching.py",
                "return cost * learned[M_TOKENS] / learned[M_COST]",
                "return cost",
            ),
        ),
    ),
    Variant("8 candidates", "per chain instead of 24", _layout("MAX_FOUND = 24", "MAX_FOUND = 8")),
    Variant("16 links", "per chain instead of 64", _layout("MAX_STEPS = 64", "MAX_STEPS = 16")),
    Variant("keep 4", "followed after the first token, not 16", _layout("KEEP = 16", "KEEP = 4")),
    Variant(
        "step / 3", "weights learn slower", _learning("STEP_SIZE = 0.02", "STEP_SIZE = 0.0067")
    ),
    Variant("step x 3", "weights learn faster", _learning("STEP_SIZE = 0.02", "STEP_SIZE = 0.06")),
    Variant(
        "goodput x 10", "of 50 steps, not 500", _learning("DISCOUNT = 0.998", "DISCOUNT = 0.98")
    ),
    Variant(
        "16 pseudo-counts",
        "per class of candidates, not 4",
        (("kernels/ranking.py", "SHRINK_CELL = 4.0", "SHRINK_CELL = 16.0"),),
    ),
)


def _other(name: str, file: str, constant: str, value: str, *others: str) -> tuple[Variant, ...]:
    """A constant of a source file with other values than its own."""
    old = f"{constant} = {value}"
    return tuple(
        Variant(f"{name}, {other}", f"instead of {value}", ((file, old, f"{constant} = {other}"),))
        for other in others
    )


_LAYOUT, _LEARNING, _RANKING = "kernels/layout.py", "kernels/learning.py", "kernels/ranking.py"

#: Each number that somebody chose, halved and doubled; the whole is among them, to be compared with.
HYPER = (
    VARIANTS[0],
    Variant("cost told, 0.5 c", "a token costs twice what the drafter is told", told=0.5),
    Variant("cost told, 2 c", "a token costs half of what the drafter is told", told=2.0),
    *_other("candidates per chain", _LAYOUT, "MAX_FOUND", "24", "12", "48"),
    *_other("links per chain", _LAYOUT, "MAX_STEPS", "64", "32", "128"),
    *_other("candidates kept", _LAYOUT, "KEEP", "16", "8", "32"),
    *_other("candidates that are enough", _LAYOUT, "ENOUGH", "12", "6", "24"),
    *_other("longest match", _LAYOUT, "MAX_MATCH", "32", "16"),
    *_other("step size", _LEARNING, "STEP_SIZE", "0.02", "0.01", "0.04"),
    *_other("updates until it shrinks", _LEARNING, "STEP_DECAY", "1000.0", "500.0", "2000.0"),
    *_other("its floor", _LEARNING, "STEP_FLOOR", "0.2", "0.1", "0.4"),
    *_other("discount of goodput", _LEARNING, "DISCOUNT", "0.998", "0.996", "0.999"),
    *_other("trials until halved", _LEARNING, "FULL", "20000.0", "10000.0", "40000.0"),
    *_other("pseudo-counts, classes", _RANKING, "SHRINK_CELL", "4.0", "2.0", "8.0"),
    *_other("pseudo-counts, tokens", _RANKING, "SHRINK_TOKEN", "1.0", "0.5", "2.0"),
    *_other("pseudo-counts, recency", _RANKING, "SHRINK_RECENCY", "4.0", "2.0", "8.0"),
    *_other(
        "least reliability",
        _RANKING,
        "_LEAST, _MOST",
        "0.005, 0.995",
        "0.0025, 0.9975",
        "0.01, 0.99",
    ),
    *_other("tokens of a template", "index/templates.py", "PREFIX", "16", "8", "32"),
)
