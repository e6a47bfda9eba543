"""Slow twin of :mod:`specplug.kernels.calibration`.

Nothing counted: the estimate is handed out as it is. All estimates of a bin came true: its odds rise with every one.
"""

from __future__ import annotations

from collections.abc import Sequence

from specplug.reference.suffix_state import CALIBRATION_BINS, Depth, Model, Stream, SuffixState

UNIT = 2**20


def _bin_of(surviving: float) -> int:
    return min(CALIBRATION_BINS - 1, int(surviving * CALIBRATION_BINS))


def _bin_ratio(model: Model, surviving: float) -> float:
    tried, expected, accepted = (float(x) for x in model.calibration[_bin_of(surviving)])
    right, wrong = accepted + 20.0, tried - accepted + 20.0
    return (right * (tried - expected + 20.0)) / ((expected + 20.0) * wrong)


def _at_odds(probability: float, ratio: float) -> float:
    return probability * ratio / (1.0 + probability * (ratio - 1.0))


def own_ratio(stream: Stream) -> float:
    """By what a request multiplies odds."""
    prior = 80.0 * UNIT
    tried, agreed, expected = stream.tried * UNIT, stream.agreed * UNIT, stream.expected
    return ((agreed + prior) * (tried - expected + prior)) / (
        (expected + prior) * (tried - agreed + prior)
    )


def corrected(model: Model, probability: float, surviving: float, own: float) -> float:
    """The probability of a token, if all before it are right, as it is handed out."""
    return _at_odds(probability, _bin_ratio(model, surviving) * own)


def learn_survival(
    state: SuffixState,
    slot: int,
    known: Sequence[tuple[Depth, int]],
    proposed: Sequence[tuple[Depth, float]],
) -> None:
    """Count the tokens of a draft up to the first wrong one: depths with the true token, and those proposed."""
    stream = state.streams[slot]
    model = state.models[stream.model]
    hanging = len(proposed)
    for (depth, true), (_, surviving) in zip(known, proposed, strict=False):
        best = max(depth.ranked, key=lambda entry: entry.probability)
        hit = best.token == true
        expected = int(_at_odds(best.probability, _bin_ratio(model, surviving)) * UNIT)
        stream.tried += hanging
        stream.expected += hanging * expected
        stream.agreed += hanging * int(hit)
        row = model.calibration[_bin_of(surviving)]
        row += (hanging, hanging * best.probability, hanging * float(hit))
        if row[0] > 1000.0:
            row *= 0.5
        if not hit:
            break
        hanging -= 1
