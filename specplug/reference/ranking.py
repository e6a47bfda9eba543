"""Slow twin of :mod:`specplug.kernels.ranking`.

Order of the distinct tokens: by their first candidate. Ties in probability go to the first. One token: probability
against "none of them" alone. Sums run in the order written, in float64.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specplug.reference.quick import quick_exp, quick_log
from specplug.reference.streams import last_place
from specplug.reference.suffix_state import (
    LENGTH_BINS,
    STORE,
    TABLE_ROWS,
    Candidate,
    Depth,
    Model,
    Ranked,
    SuffixState,
)

Table = NDArray[np.float32] | NDArray[np.float64]


def rank_tokens(
    state: SuffixState,
    slot: int,
    depth: int,
    candidates: list[Candidate],
    previous: int,
    drafted: list[int],
) -> Depth:
    """Probabilities of the distinct next tokens of the candidates."""
    supporters: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        _classify(state, slot, depth, candidate)
        supporters.setdefault(candidate.token, []).append(candidate)
    longest = max(candidate.length for candidate in candidates)
    count = len(supporters)
    crowd = 0 if count == 1 else 1 if count <= 3 else 2 if count <= 8 else 3
    stored = [candidate.source == STORE for candidate in candidates]
    kind = 0 if not any(stored) else 1 if all(stored) else 2
    sets = (min(depth, 3), _length_bin(longest), 3 * crowd + kind)
    ranked = [
        _features(state, slot, token, group, previous, drafted)
        for token, group in supporters.items()
    ]
    w = state.models[state.streams[slot].model].weights
    total = 1.0
    for entry in ranked:
        z = [
            (w[0, sets[0], f] + w[1, sets[1], f] + w[2, sets[2], f]) * x
            for f, x in enumerate(entry.features)
        ]
        entry.probability = quick_exp(
            (((z[0] + z[1]) + (z[2] + z[3])) + ((z[4] + z[5]) + (z[6] + z[7]))) + z[8]
        )
        total += entry.probability
    for entry in ranked:
        entry.probability /= total
    return Depth(sets, ranked, candidates)


def _length_bin(length: int) -> int:
    for bin_, top in enumerate((0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)):
        if length <= top:
            return bin_
    return 11


def class_rate(state: SuffixState, which: int, source: int, length: int, kind: int) -> float:
    """Hit rate of a class of candidates, shrunk towards that of its source and length."""
    model = state.models[which]
    parent = source * LENGTH_BINS + _length_bin(length)
    rate = _rate(model.cells[0], parent * 9 + kind, 4.0, _parent_rate(model, parent))
    return min(0.995, max(0.005, rate))


def _log2_bin(value: int, top: int) -> int:
    return min(top, max(1, value).bit_length() - 1)


def _rate(table: Table, row: int, strength: float, prior: float) -> float:
    hits, trials = table[row].tolist()
    return float((hits + strength * prior) / (trials + strength))


def _odds(table: Table, row: int, strength: float, prior: float) -> float:
    hits, trials = table[row].tolist()
    return float((hits + strength * prior) / (trials - hits + strength * (1.0 - prior)))


def _parent_rate(model: Model, parent: int) -> float:
    hits, trials = model.parents[parent].tolist()
    return float(min(1.0 - 1e-4, max(1e-4, hits / trials)))


def _bounded_odds(table: Table, row: int, prior: float) -> float:
    return min(1e4, max(1e-4, _odds(table, row, 4.0, prior)))


def _hash_row(token: int, length: int, model: int) -> int:
    hashed = (token * 2654435769 + model * 40503) >> 7
    return hashed % (TABLE_ROWS // 8) * 8 + min(_length_bin(length), 7)


def _classify(state: SuffixState, slot: int, depth: int, c: Candidate) -> None:
    """The table cells of a candidate that was followed for ``depth`` tokens."""
    stream = state.streams[slot]
    offset = c.position - depth - stream.pointers[c.source]
    near = 2 if offset == 0 else 1 if -16 < offset < 48 else 0
    end = len(state.store.tokens) if c.source == STORE else len(stream.tokens)
    c.parent = c.source * LENGTH_BINS + _length_bin(c.length)
    age = _log2_bin(end - c.position + depth, 11)
    c.cells = (c.parent * 9 + c.kind, c.parent * 3 + near, c.parent * 12 + age)


def _features(
    state: SuffixState,
    slot: int,
    token: int,
    group: list[Candidate],
    previous: int,
    drafted: list[int],
) -> Ranked:
    which = state.streams[slot].model
    model = state.models[which]
    best = [0.0, 0.0, 0.0]
    near = age = 0.0
    for c in group:
        prior = _parent_rate(model, c.parent)
        against = (1.0 - prior) / prior
        reliability = _rate(model.cells[0], c.cells[0], 4.0, prior)
        best[c.source] = max(best[c.source], min(0.995, max(0.005, reliability)))
        near = max(near, _bounded_odds(model.cells[1], c.cells[1], prior) * against)
        age = max(age, _bounded_odds(model.cells[2], c.cells[2], prior) * against)
    length = max(c.length for c in group)
    first = max(best)
    second = min(max(best[0], best[1]), best[2])
    logit = quick_log(first / (1.0 - first))
    rows = (
        _hash_row(token, length, which),
        _hash_row(previous, length, which),
        _log2_bin(_ago(state, slot, token, drafted) + 1, 13) * 16 + _length_bin(length),
    )
    both = 0.0
    if second > 0.0:
        both = min(4.0, max(0.0, quick_log(second / (1.0 - second)) + 3.0))
    features = [
        logit,
        math.log(len(group)),
        1.0,
        quick_log(_odds(state.by_token, rows[0], 1.0, first)) - logit,
        quick_log(_odds(state.by_context, rows[1], 1.0, first)) - logit,
        quick_log(_odds(model.by_recency, rows[2], 4.0, first)) - logit,
        quick_log(near),
        quick_log(age),
        both,
    ]
    return Ranked(token, rows, features, source_of(best))


def source_of(best: list[float]) -> int:
    """The source with the greatest reliability; the first, of equals."""
    return best.index(max(best))


def _ago(state: SuffixState, slot: int, token: int, drafted: list[int]) -> int:
    """How long ago ``token`` occurred, in the draft so far or in the request; 8192 if that is not known."""
    if token in drafted:
        return drafted[::-1].index(token) + 1
    tokens = state.streams[slot].tokens
    seen = len(tokens) - 1 if tokens[-1] == token else last_place(state, slot, token)
    return 8192 if seen < 0 else len(tokens) + len(drafted) - seen
