"""Random logits, histories and sampling parameters for the comparison of our transformations with an engine's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specplug.verify.params import VLLM, Order, SamplingParams
from specplug.verify.transform import Past, target_probs

VOCABULARY = 60
ROWS = 24
#: Relative: two float32 computations of one probability, each of a handful of roundings.
TOLERANCE = 1e-4


@dataclass
class Batch:
    """What both sides get."""

    logits: np.ndarray  # float32 [B, K + 1, V]
    params: list[SamplingParams]
    pasts: list[Past]
    drafts: list[list[int]]
    forbidden: np.ndarray | None = None  # bool [B, V]
    order: Order = VLLM
    law: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rows, positions, _ = self.logits.shape
        tokens = np.zeros((rows, positions - 1), np.int32)
        for row, draft in enumerate(self.drafts):
            tokens[row, : len(draft)] = draft
        grammar = None
        if self.forbidden is not None:
            grammar = np.repeat(~self.forbidden[:, None], positions, axis=1)
        self.law = target_probs(
            self.logits,
            self.params,
            self.pasts,
            tokens,
            [len(draft) for draft in self.drafts],
            grammar=grammar,
            order=self.order,
        )


def some(generator: np.random.Generator, **chances: Any) -> dict[str, Any]:
    """Each parameter is left at its default in a third of the rows."""
    return {name: value for name, value in chances.items() if generator.random() > 1 / 3}


EACH: dict[str, Any] = {
    "temperature": lambda g: {"temperature": g.choice([0.3, 0.7, 1.5])},
    "top_k": lambda g: {"top_k": int(g.integers(1, 12))},
    "top_p": lambda g: {"top_p": g.choice([0.3, 0.8, 0.95])},
    "min_p": lambda g: {"min_p": g.choice([0.02, 0.1, 0.4])},
    "repetition": lambda g: {"repetition_penalty": g.choice([0.7, 1.3, 2.0])},
    "frequency": lambda g: {"frequency_penalty": g.choice([-1.0, 0.4, 1.5])},
    "presence": lambda g: {"presence_penalty": g.choice([-1.0, 0.4, 1.5])},
    "bias": lambda g: {"logit_bias": {int(g.integers(8)): g.choice([-9.0, 2.0, 9.0])}},
    "bad_words": lambda g: {"bad_words": ((int(g.integers(8)), 3), (2, 1, 4), (5,))},
    "min_tokens": lambda g: {"min_tokens": 6, "stop_token_ids": frozenset({0, 7, 11})},
}


def batch(
    generator: np.random.Generator, names: list[str], width: int, order: Order = VLLM
) -> Batch:
    """Random logits, histories over few tokens so that they repeat, and parameters."""
    params = []
    for _ in range(ROWS):
        chosen = some(generator, **{name: EACH[name](generator) for name in names if name in EACH})
        params.append(SamplingParams(**{k: v for part in chosen.values() for k, v in part.items()}))
    histories = [generator.integers(0, 8, generator.integers(2, 9)).tolist() for _ in range(ROWS)]
    return Batch(
        generator.normal(scale=3.0, size=(ROWS, width + 1, VOCABULARY)).astype(np.float32),
        params,
        [Past(tuple(h[:2]), tuple(h[2:])) for h in histories],
        [generator.integers(0, 8, generator.integers(width + 1)).tolist() for _ in range(ROWS)],
        generator.random((ROWS, VOCABULARY)) < 0.2 if "grammar" in names else None,
        order,
    )


def assert_same(ours: np.ndarray, host: np.ndarray, case: Batch, row: int) -> None:
    """Two laws of one row: the same tokens are possible, with the same probabilities but for rounding."""
    where = f"row {row}: {case.params[row]}"
    np.testing.assert_array_equal(ours > 0, host > 0, err_msg=where)
    np.testing.assert_allclose(ours, host, rtol=TOLERANCE, atol=1e-30, err_msg=where)
