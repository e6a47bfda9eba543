"""Equality of greedy outputs, with an honest rule for exact near-ties.

Verifying several rows in one pass uses other kernels than decoding one row, so logits differ in their last bits
even in float32. Where the two best tokens are closer than that, either is a correct greedy answer. Two
outputs therefore count as equal if they are identical, or if at the first difference the plain engine's
own log-probabilities of the two tokens are less than :data:`NEAR_TIE` apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specplug.testing.engine_protocol import Completion, Driver

from .prompts import REPETITIVE, VARIED

#: Nats. Log-probabilities of one token differ by at most about 1e-4 between float32 passes of
#: different width; twice that, with room to spare, and far below any real difference of opinion.
NEAR_TIE = 1e-3


@dataclass
class Tally:
    """How many sequences were compared and how often the near-tie rule was needed."""

    compared: int = 0
    near_ties: list[str] = field(default_factory=list)


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """The first position where two sequences differ, or None if they are identical."""
    for position, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return position
    return None if len(expected) == len(got) else min(len(expected), len(got))


def check_greedy(
    plain: Driver,
    tally: Tally,
    name: str,
    prompt: Sequence[int],
    expected: Completion,
    got: Completion,
) -> None:
    """Assert that ``got`` is a greedy answer of the target where plain decoding said ``expected``."""
    tally.compared += 1
    where = first_difference(expected.token_ids, got.token_ids)
    if where is None:
        assert got.text == expected.text, name
        assert got.finish_reason == expected.finish_reason, name
        return
    shared = min(len(expected.token_ids), len(got.token_ids))
    assert where < shared, (
        f"{name}: same tokens, but {len(got.token_ids)} instead of {len(expected.token_ids)} of them "
        f"({got.finish_reason}, expected {expected.finish_reason})"
    )
    margin = _margin(plain, [*prompt, *expected.token_ids[:where]], expected, got, where)
    assert abs(margin) < NEAR_TIE, (
        f"{name}: token {where} is {got.token_ids[where]}, plain decoding says "
        f"{expected.token_ids[where]}, which is {margin:.3g} nats better (near-tie bound {NEAR_TIE})"
    )
    tally.near_ties.append(f"{name} at token {where}, margin {margin:.2g} nats")


def _margin(
    plain: Driver, prefix: list[int], expected: Completion, got: Completion, where: int
) -> float:
    once = {"temperature": 0, "max_tokens": 1, "logprobs": 20}
    found = plain.generate([prefix], once).results[0].only.logprobs
    assert found is not None
    floor = min(found[0].values())
    return found[0].get(expected.token_ids[where], floor) - found[0].get(
        got.token_ids[where], floor - 1.0
    )


def check_preemption(plain: Driver, small: Driver, tally: Tally, max_tokens: int) -> None:
    """Requests that do not fit side by side lose their places and come back, and answers stay those of ``plain``.

    Args:
        max_tokens: so many that the answers to ten prompts fill the KV cache of ``small`` more than twice.
    """
    names = REPETITIVE * 2
    prompts = [VARIED[name] for name in names]
    # Not with ignore_eos: SGLang keeps room for the whole answer of such a request.
    params = {"temperature": 0, "max_tokens": max_tokens}
    expected = plain.generate(prompts, params)
    before = small.metrics()
    got = small.generate(prompts, params)
    gained = small.metrics() - before
    assert gained.preemptions > 0, "the KV cache was large enough for all: nothing was tested"
    assert gained.accepted_tokens > 100
    for name, want, have in zip(names, expected.results, got.results, strict=True):
        check_greedy(plain, tally, name, want.prompt_token_ids, want.only, have.only)
