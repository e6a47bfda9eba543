"""Two-sample chi-square tests of the law of the first output tokens.

The first output token comes from the prefill, which has no draft; every later one can be a drafted one. Cells are
whole prefixes (of one, two, three tokens), so a wrong law at any position, or a wrong dependence between
positions, shows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from scipy.stats import chi2_contingency

from specplug.testing.engine_protocol import Counters, Driver, Prompt

Sample = list[tuple[int, ...]]

#: Requests per command; each takes the engine about half a minute on two cores.
PORTION = 500


@dataclass(frozen=True)
class LawTest:
    """Sampling parameters and how many requests."""

    params: dict[str, Any]
    samples: int


@dataclass
class Verdict:
    """Probability of a difference at least this large under one law, per prefix length."""

    p_values: dict[int, float] = field(default_factory=dict)
    cells: dict[int, int] = field(default_factory=dict)

    @property
    def worst_p(self) -> float:
        """The smallest of them."""
        return min(self.p_values.values())


def sample(
    engine: Driver,
    prompt: list[int],
    case: LawTest,
    seed: int,
    beside: list[tuple[Any, dict[str, Any]]] | None = None,
) -> tuple[Sample, Sample, Counters]:
    """``case.samples`` answers to one prompt, the answers to ``beside``, and the counters gained.

    Served in portions of at most :data:`PORTION`; the requests of ``beside`` are spread evenly among each.
    """
    before = engine.metrics()
    drawn: Sample = []
    apart: Sample = []
    others = beside or []
    while len(drawn) < case.samples:
        count = min(PORTION, case.samples - len(drawn))
        prompts: list[Any] = [prompt] * count
        params: list[dict[str, Any]] = [case.params] * count
        places = [(i + 1) * count // (len(others) + 1) + i for i in range(len(others))]
        for place, (other, own) in zip(places, others, strict=True):
            prompts.insert(place, other)
            params.insert(place, own)
        tokens = engine.generate(prompts, params, raw_seed=seed + len(drawn)).tokens
        apart += [tokens[place] for place in places]
        drawn += [t for i, t in enumerate(tokens) if i not in places]
    return drawn, apart, engine.metrics() - before


def compare_laws(a: Sample, b: Sample, expected: float = 5.0) -> Verdict:
    """Chi-square tests of homogeneity; cells expected less than ``expected`` times in a sample are merged."""
    verdict = Verdict()
    for length in range(1, min(len(t) for t in a + b) + 1):
        counts = Counter(t[:length] for t in a), Counter(t[:length] for t in b)
        share = min(len(a), len(b)) / (len(a) + len(b))
        common = [
            cell for cell, total in (counts[0] + counts[1]).items() if total * share >= expected
        ]
        rows = [[c[cell] for cell in common] for c in counts]
        for row, size in zip(rows, (len(a), len(b)), strict=True):
            row.append(size - sum(row))
        if rows[0][-1] + rows[1][-1] == 0:
            rows = [row[:-1] for row in rows]
        verdict.cells[length] = len(rows[0])
        if len(rows[0]) > 1:
            verdict.p_values[length] = float(chi2_contingency(rows).pvalue)
    return verdict


def follow_greedily(
    plain: Driver, text: Prompt, width: int
) -> tuple[list[int], dict[int, list[int]]]:
    """A script of drafts: after each likely first token the ``width`` tokens that the target finds likeliest."""
    once = {"temperature": 0, "max_tokens": 1, "logprobs": 20}
    result = plain.generate([text], once).results[0]
    assert result.only.logprobs is not None
    prompt = list(result.prompt_token_ids)
    firsts = list(result.only.logprobs[0])
    longer = {"temperature": 0, "max_tokens": width, "ignore_eos": True}
    answers = plain.generate([[*prompt, first] for first in firsts], longer).tokens
    return prompt, {first: list(answer) for first, answer in zip(firsts, answers, strict=True)}
