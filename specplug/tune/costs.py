"""What an engine step costs, from the file that ``specplug calibrate`` writes.

The file is that of :mod:`specplug.control.costfile` (relative costs by tokens in the step) with the seconds of a plain
step and where everything comes from beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.control.costfile import VERSION
from specplug.errors import SettingsError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class StepCosts:
    """How long a step takes by the number of tokens in it.

    Attributes:
        tokens: ascending counts, the first is 1.
        relative: what a step with so many tokens costs, in plain steps of one request; does not fall.
        plain_seconds: of a plain step of one request.
        facts: everything else in the file.
    """

    tokens: FloatArray
    relative: FloatArray
    plain_seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)

    def seconds(self, tokens: FloatArray | float) -> FloatArray:
        """Expected duration of steps with so many tokens; beyond the last knot as steep as before it."""
        wanted = np.asarray(tokens, np.float64)
        inside = np.interp(wanted, self.tokens, self.relative)
        slope = (self.relative[-1] - self.relative[-2]) / (self.tokens[-1] - self.tokens[-2])
        beyond = np.maximum(0.0, wanted - self.tokens[-1]) * slope
        return np.asarray((inside + beyond) * self.plain_seconds)

    def token_cost(self, requests: int, drafted: float = 4.0) -> float:
        """What one more draft token of each of ``requests`` costs, in plain steps of them: a proposer's verify_cost."""
        plain = float(self.seconds(float(requests)))
        longer = float(self.seconds(requests * (1.0 + drafted)))
        return (longer - plain) / plain / drafted


def read_costs(path: Path) -> StepCosts:
    """Read a cost file.

    Raises:
        SettingsError: it is missing or is none, with what is wrong.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return costs_of(found)
    except OSError as error:
        raise SettingsError(
            f"{path}: {error.strerror}; `specplug calibrate` writes a cost file"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise SettingsError(
            f"{path} is no cost file: {what}; `specplug calibrate` writes one"
        ) from error


def costs_of(found: Mapping[str, Any]) -> StepCosts:
    """Check the content of a cost file.

    Raises:
        ValueError, KeyError, TypeError: it is not one.
    """
    if found["version"] != VERSION:
        raise ValueError(f"version {found['version']!r}, expected {VERSION}")
    tokens = _numbers(found, "tokens")
    relative = _numbers(found, "relative")
    plain = float(found["plain_seconds"])
    if len(tokens) != len(relative) or len(tokens) < 2:
        raise ValueError(
            f"'tokens' and 'relative' must have one length of at least 2, got {len(tokens)} and {len(relative)}"
        )
    if tokens[0] != 1 or any(b <= a for a, b in pairwise(tokens)):
        raise ValueError(f"'tokens' must ascend from 1, got {tokens}")
    if not 0 < plain < math.inf:
        raise ValueError(f"'plain_seconds' must be positive, got {plain}")
    # Noise must not make a longer step look cheaper than a shorter one.
    rising = np.maximum.accumulate(np.array(relative))
    return StepCosts(np.array(tokens), rising, plain, dict(found))


def _numbers(found: Mapping[str, Any], name: str) -> list[float]:
    values: Sequence[Any] = found[name]
    numbers = [float(value) for value in values]
    if not all(0 < value < math.inf for value in numbers):
        raise ValueError(f"{name!r} must hold positive numbers, got {numbers}")
    return numbers
