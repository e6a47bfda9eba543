"""What a draft token's survival is said to be: the drafter's own estimate, corrected by how such estimates have fared.

Each probability that a token is right, if all before it are, gets its odds multiplied by what has been observed: odds
of being right over odds expected, of all tokens whose estimate of survival was about as large (per model), and of this
request so far; both begin as if a few tokens had come just as expected. A token counts only where all before it were
right and the target said something there, so that nothing depends on where drafts were cut after they were made. It
counts as often as drafted tokens hang on it, itself included: the first token of a long draft, copied from the wrong
place, spoils as many estimates. What is drafted does not depend on the correction: only the estimates of chains do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.kernels._jit import lean_kernel
from specplug.kernels.layout import (
    C_ACCEPTED,
    C_EXPECTED,
    C_RATIO,
    C_TRIED,
    CALIBRATION_BINS,
    D_TOKENS,
    D_TOP,
    N_AGREED,
    N_EXPECTED,
    N_JUDGED,
    N_KNOWN,
    N_MODEL,
    N_OUTCOME,
    N_TRIED,
    Index,
    State,
)
from specplug.kernels.streams import token_at

#: Tokens right and wrong that are taken to have come as expected: per bin of a model, and per request.
BIN_PRIOR = 20.0
OWN_PRIOR = 80.0
#: Tokens at which a bin is halved, so that it keeps following changes.
BIN_FULL = 1000.0
#: Fixed point of the counts of a request.
UNIT = 1 << 20


@lean_kernel
def _bin_of(surviving: float) -> Any:
    return min(CALIBRATION_BINS - 1, np.int64(surviving * CALIBRATION_BINS))


@lean_kernel
def _at_odds(probability: float, ratio: float) -> Any:
    """The probability whose odds are ``ratio`` times those of ``probability``."""
    return probability * ratio / (1.0 + probability * (ratio - 1.0))


@lean_kernel
def own_ratio(state: State, slot: Index) -> Any:
    """By what the request in ``slot`` multiplies odds."""
    numbers, prior = state.slots.numbers[slot], OWN_PRIOR * UNIT
    tried, agreed, expected = numbers[N_TRIED], numbers[N_AGREED], numbers[N_EXPECTED]
    return ((agreed + prior) * (tried - expected + prior)) / (
        (expected + prior) * (tried - agreed + prior)
    )


@lean_kernel
def corrected(state: State, slot: Index, probability: float, surviving: float, own: float) -> Any:
    """``probability`` of a token, if all before it are right, as it is handed out.

    ``surviving`` is the estimate that it and all before it are; ``own`` is :func:`own_ratio`.
    """
    ratio = state.model.calibration[state.slots.numbers[slot, N_MODEL], _bin_of(surviving), C_RATIO]
    return _at_odds(probability, ratio * own)


@lean_kernel
def learn_survival(state: State, slot: Index, where: Index) -> None:
    """Count the tokens of the draft in log ``where``, whose outcome was noted, up to the first wrong one."""
    numbers, log = state.slots.numbers[slot], state.log
    bins = state.model.calibration[numbers[N_MODEL]]
    surviving = 1.0
    for depth in range(min(numbers[N_JUDGED], numbers[N_KNOWN])):
        depths = log.depths[where, depth]
        if depths[D_TOKENS] == 0:
            break
        true = token_at(state.slots, slot, numbers[N_OUTCOME] + depth)
        hit = 1 if log.tokens[where, depths[D_TOP], 0] == true else 0
        probability = log.probs[where, depths[D_TOP]]
        surviving *= probability
        row = bins[_bin_of(surviving)]
        hanging = numbers[N_JUDGED] - depth
        numbers[N_TRIED] += hanging * UNIT
        numbers[N_EXPECTED] += hanging * np.int64(_at_odds(probability, row[C_RATIO]) * UNIT)
        numbers[N_AGREED] += hanging * hit * UNIT
        row[C_TRIED] += float(hanging)
        row[C_EXPECTED] += hanging * probability
        row[C_ACCEPTED] += float(hanging * hit)
        if row[C_TRIED] > BIN_FULL:
            for column in range(C_RATIO):
                row[column] *= 0.5
        right, wrong = row[C_ACCEPTED] + BIN_PRIOR, row[C_TRIED] - row[C_ACCEPTED] + BIN_PRIOR
        hoped, feared = row[C_EXPECTED] + BIN_PRIOR, row[C_TRIED] - row[C_EXPECTED] + BIN_PRIOR
        row[C_RATIO] = (right * feared) / (hoped * wrong)
        if hit == 0:
            break
